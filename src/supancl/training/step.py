"""One training step as in the paper: images, views, branches, loss, gradients, weights, EMA, pool.

Everything else wraps it from outside, one file each: compilation.py compiles its functions, cuda/capture.py records and
replays it, across_ranks.py exchanges its targets between processes, nonfinite.py checks its losses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from supancl.core.losses import Terms
from supancl.core.precision import autocast_for
from supancl.data.store.memory import Batch
from supancl.data.views.specs import ViewSpec
from supancl.distributed import Ranks, RowRange
from supancl.recipes import Recipe
from supancl.training.inputs import StepInputs
from supancl.training.model import Model


@dataclass(frozen=True)
class StepFunctions:
    """The functions that a step calls: as written, compiled, or for several ranks (compilation.py)."""

    render: Callable[..., Tensor]  # data/views: draw_and_render
    branches: Callable[..., tuple[Tensor, Tensor]]  # core/branches: Branches
    exchange: Callable[[Tensor, Tensor, RowRange], tuple[Tensor, dict[str, Any]]]  # keep_targets, or across_ranks.py
    compiler: Callable[[Any], Any]  # torch.compile, or do_not_compile
    push: Callable[[Tensor, Tensor], None]  # core/pools: Pool.push
    is_finite: Callable[[Tensor], bool]  # nonfinite.py
    cache_casts: bool = True  # a captured step must not use weights that an earlier step cast to bf16


class Step:
    """Calling it trains on one batch. It changes only the model and the counters of the inputs."""

    def __init__(
        self, recipe: Recipe, model: Model, inputs: StepInputs, functions: StepFunctions, ranks: Ranks
    ) -> None:
        self.recipe, self.model, self.inputs, self.functions, self.ranks = recipe, model, inputs, functions, ranks
        uses_bf16 = model.device.type == "cuda" and recipe.train.precision == "bf16"
        self.view_dtype = torch.bfloat16 if uses_bf16 else torch.float32  # on a CPU always float32
        self.compute_loss = functions.compiler(self.forward_and_loss)

    def render_views(self, images: Batch, augment: ViewSpec) -> tuple[Tensor, Tensor | None]:
        """Both views (2, B, C, H, W) and, if the recipe has them, local views (L, B, C, h, w)."""
        encoder, generator, renderer = self.recipe.encoder, self.model.generator, self.functions.render
        views = augment(images, encoder.mean, encoder.std, generator, renderer=renderer, dtype=self.view_dtype)
        local_views = augment.local_views(
            images, encoder.mean, encoder.std, generator, renderer=renderer, dtype=self.view_dtype
        )
        return views, local_views

    def forward_and_loss(
        self, views: Tensor, local_views: Tensor | None, labels: Tensor, row_range: RowRange
    ) -> tuple[Terms, Tensor]:
        """The loss of these views, and the targets of all ranks. Compiled as one graph."""
        with autocast_for(self.model.device, self.recipe.train.precision, self.functions.cache_casts):
            anchors, targets = self.functions.branches(views, local_views)  # (2, B, D) each, unit norm
        all_targets, context = self.functions.exchange(targets, labels, row_range)  # one process: the same targets, {}
        terms = self.recipe.loss(anchors, targets, row_range.select(labels), self.model.pool, **context)
        return terms, all_targets.detach()

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
        for number, (rows, row_range, local_rows, augment) in enumerate(inputs.micro_batches, start=1):
            images = inputs.images.batch(positions[row_range.select(rows)]) if batch is None else batch.take(local_rows)
            views, local_views = self.render_views(images, augment)  # (2, B, C, H, W)
            with self.ranks.no_sync(model.ddp_branches, enabled=number < len(inputs.micro_batches)):
                terms, targets = self.compute_loss(views, local_views, labels[rows], row_range)
                weighted = torch.stack(terms) * recipe.loss.batch_weight(row_range.select(labels[rows]), labels)
                (weighted[0] * self.ranks.size).backward()  # DDP averages gradients over the ranks
            losses.append(weighted)
            all_targets.append(targets)
        total = self.ranks.all_reduce(torch.stack(losses).detach().double().sum(0))  # loss, ssl, sup of the batch
        targets = torch.cat(all_targets, dim=1)
        if not self.functions.is_finite(total):
            return None
        model.optimizer.step()
        if not released_code:
            model.branches.update_target(momentum)
        self.functions.push(targets[0 if released_code else -1], labels)  # z2, after the loss: never its own positive
        inputs.count(total)
        return targets[-1]
