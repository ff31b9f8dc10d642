"""One training step as the paper writes it: images, views, branches, loss, gradients, weights, EMA, pool.

Everything else wraps it from outside, a file each: compilation.py compiles the functions it is given, cuda/capture.py
records and replays it, across_ranks.py exchanges its targets between processes, nonfinite.py refuses bad losses.
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
from supancl.distributed import Ranks, RowRange
from supancl.recipes import Recipe
from supancl.training.inputs import StepInputs
from supancl.training.model import Model


@dataclass(frozen=True)
class StepFunctions:
    """What wraps parts of a step: the same functions as written, compiled, or of several ranks (compilation.py)."""

    render: Callable[..., Tensor]  # data/views: draw_and_render
    branches: Callable[..., tuple[Tensor, Tensor]]  # core/branches: Branches
    exchange: Callable[[Tensor, Tensor, RowRange], tuple[Tensor, dict[str, Any]]]  # keep_targets, or across_ranks.py
    compiler: Callable[[Any], Any]  # torch.compile, or nothing
    push: Callable[[Tensor, Tensor], None]  # core/pools: Pool.push
    is_finite: Callable[[Tensor], bool]  # nonfinite.py
    keeps_casts: bool = True  # a captured step must not rely on casts of an earlier one


class Step:
    """Calling it trains on one batch. It changes the model and counts in the inputs, and nothing else."""

    def __init__(self, recipe: Recipe, model: Model, inputs: StepInputs, run: StepFunctions, ranks: Ranks) -> None:
        self.recipe, self.model, self.inputs, self.run, self.ranks = recipe, model, inputs, run, ranks
        half = model.device.type == "cuda" and recipe.train.precision == "bf16"
        self.view_dtype = torch.bfloat16 if half else torch.float32  # as the encoder reads them; on a CPU always single
        self.compute_loss = run.compiler(self.forward_and_loss)  # compiled, or as it is written

    def forward_and_loss(
        self, views: Tensor, local: Tensor | None, labels: Tensor, row_range: RowRange
    ) -> tuple[Terms, Tensor]:
        """The loss of these views, and their targets: one graph to the compiler."""
        with autocast_for(self.model.device, self.recipe.train.precision, cache_weights=self.run.keeps_casts):
            anchors, targets = self.run.branches(views, local)  # (2, B, D) each, unit norm
        everyones, context = self.run.exchange(targets, labels, row_range)  # alone: these targets, and nothing to add
        terms = self.recipe.loss(anchors, targets, row_range.select(labels), self.model.pool, **context)
        return terms, everyones.detach()

    def __call__(self, batch: Batch | None = None) -> Tensor | None:
        """Train on the batch that is next and return its targets z2.

        Returns None, before the optimizer's step, if every loss is checked and this one or its gradient is not a finite
        number; `Trainer.advance` then restores what the forward changed. `batch` brings the pixels where they do not
        lie on the device.
        """
        recipe, model, inputs, run = self.recipe, self.model, self.inputs, self.run
        released = recipe.compat == "released-code"
        positions, labels = inputs.select(batch)
        momentum = inputs.set_rates(model.optimizer)
        model.optimizer.zero_grad(set_to_none=True)
        if released:
            model.branches.update_target(momentum)  # the released code moves the target before its forward
        losses, seen = [], []
        for number, (rows, row_range, read, augment) in enumerate(inputs.micro_batches, start=1):
            images = inputs.images.batch(positions[row_range.select(rows)]) if batch is None else batch.take(read)
            pixels = images, recipe.encoder.mean, recipe.encoder.std, model.generator
            views = augment(*pixels, renderer=run.render, dtype=self.view_dtype)  # (2, B, C, H, W)
            local = augment.local_views(*pixels, renderer=run.render, dtype=self.view_dtype)
            with self.ranks.no_sync(model.ddp_branches, enabled=number < len(inputs.micro_batches)):
                terms, targets = self.compute_loss(views, local, labels[rows], row_range)
                weighted = torch.stack(terms) * recipe.loss.batch_weight(row_range.select(labels[rows]), labels)
                (weighted[0] * self.ranks.size).backward()  # gradients are averaged over the ranks
            losses.append(weighted)
            seen.append(targets)
        total = self.ranks.all_reduce(torch.stack(losses).detach().double().sum(0))  # loss, ssl, sup of the whole batch
        targets = torch.cat(seen, dim=1)
        if not run.is_finite(total):
            return None
        model.optimizer.step()
        if not released:
            model.branches.update_target(momentum)
        run.push(targets[0 if released else -1], labels)  # z2, after the loss: a batch is never its own positive
        inputs.count(total)
        return targets[-1]
