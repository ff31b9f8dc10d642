"""One training step as in the paper: images, views, branches, loss, gradients, weights, EMA, pool.

Everything else wraps it from outside: speed.py compiles, records and replays it, `FiniteCheck` in inputs.py checks its
losses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from supancl.core.losses import GlobalBatch, Terms
from supancl.core.precision import autocast_for
from supancl.data.store.memory import Batch
from supancl.data.views.specs import draw_and_render
from supancl.distributed import Ranks, RowRange
from supancl.recipes import Recipe
from supancl.training.inputs import StepInputs
from supancl.training.model import Model


class Step:
    """Calling it trains on one batch. It changes only the model and the counters of the inputs.

    speed.py replaces `render`, `branches`, `forward_and_loss` and `push` by compiled ones.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: Model,
        inputs: StepInputs,
        is_finite: Callable[[Tensor], bool],
        ranks: Ranks,
        cache_casts: bool = True,
    ) -> None:
        """Without `cache_casts` no weights are used that an earlier step cast to bf16, as a captured step must not."""
        self.recipe, self.model, self.inputs, self.is_finite, self.ranks = recipe, model, inputs, is_finite, ranks
        self.cache_casts = cache_casts
        self.render: Callable[..., Tensor] = draw_and_render
        self.branches: Callable[..., tuple[Tensor, Tensor]] = model.ddp_branches
        self.push: Callable[[Tensor, Tensor], None] = model.push_targets
        uses_bf16 = model.device.type == "cuda" and recipe.train.precision == "bf16"
        self.view_dtype = torch.bfloat16 if uses_bf16 else torch.float32  # on a CPU always float32

    def render_views(self, images: Batch, row_range: RowRange) -> tuple[Tensor, Tensor | None]:
        """Both views (2, B, C, H, W) and, if the recipe has them, local views (L, B, C, h, w)."""
        views, spec, generator = self.recipe.views, self.recipe.encoder, self.model.generator
        options: dict[str, Any] = {"renderer": self.render, "dtype": self.view_dtype, "row_range": row_range}
        pair = views(images, spec.mean, spec.std, generator, **options)
        return pair, views.local_views(images, spec.mean, spec.std, generator, **options)

    def forward_and_loss(
        self, views: Tensor, local_views: Tensor | None, labels: Tensor, row_range: RowRange
    ) -> tuple[Terms, Tensor]:
        """The loss of these views, and the targets of all ranks. Compiled as one graph."""
        with autocast_for(self.model.device, self.recipe.train.precision, self.cache_casts):
            anchors, targets = self.branches(views, local_views)  # (2, B, D) each, unit norm
        all_targets, context = self.exchange(targets, labels, row_range)
        terms = self.recipe.loss(anchors, targets, row_range.select(labels), self.model.pool, **context)
        return terms, all_targets.detach()

    def exchange(self, targets: Tensor, labels: Tensor, row_range: RowRange) -> tuple[Tensor, dict[str, Any]]:
        """The targets of all ranks, and keyword arguments of the loss.

        They have gradients for a loss that compares samples; for others only the targets for the pool are gathered.
        """
        if self.ranks.size == 1:
            return targets, {} if self.inputs.alpha is None else {"alpha": self.inputs.alpha}  # on the device
        if self.recipe.loss.sees_batch(self.model.pool):
            all_targets = self.ranks.gather(targets, row_range.total, 1)
            return all_targets, {"global_batch": GlobalBatch(all_targets, labels, row_range)}
        first_view = 0 if self.recipe.compat == "released-code" else 1  # z1 is gathered only if it is pushed
        all_targets = self.ranks.gather(targets.detach()[first_view:], row_range.total, 1)
        return all_targets, {"global_batch": GlobalBatch(targets, labels, row_range)}

    def __call__(self, batch: Batch | None = None) -> Tensor | None:
        """Train on the next batch and return its targets z2.

        Returns None, before the optimizer's step, if losses are checked at every step and this one or its gradient is
        not finite; `Trainer.advance` then restores what the forward pass changed. `batch` has the pixels unless they
        are on the device.
        """
        recipe, model, inputs = self.recipe, self.model, self.inputs
        released_code = recipe.compat == "released-code"
        positions, labels = inputs.select()
        momentum = inputs.set_rates(model.optimizer)
        model.optimizer.zero_grad(set_to_none=True)
        if released_code:
            model.branches.update_target(momentum)  # the released code updates it before the forward pass
        losses, all_targets = [], []
        for number, (rows, row_range, local_rows) in enumerate(inputs.micro_batches, start=1):
            images = inputs.images.batch(positions[row_range.select(rows)]) if batch is None else batch.take(local_rows)
            views, local_views = self.render_views(images, row_range)  # (2, B, C, H, W)
            with self.ranks.no_sync(model.ddp_branches, enabled=number < len(inputs.micro_batches)):
                terms, targets = self.forward_and_loss(views, local_views, labels[rows], row_range)
                weighted = torch.stack(terms) * recipe.loss.batch_weight(row_range.select(labels[rows]), labels)
                (weighted[0] * self.ranks.size).backward()  # DDP averages gradients over the ranks
            losses.append(weighted)
            all_targets.append(targets)
        total = self.ranks.all_reduce(torch.stack(losses).detach().double().sum(0))  # loss, ssl, sup of the batch
        targets = torch.cat(all_targets, dim=1)
        if not self.is_finite(total):
            return None
        model.optimizer.step()
        if not released_code:
            model.branches.update_target(momentum)
        self.push(targets[0 if released_code else -1], labels)  # z2, after the loss: never its own positive
        inputs.count(total)
        return targets[-1]
