"""One training step as in the paper: images, views, branches, loss, gradients, weights, EMA, pool.

Everything else wraps it from outside: speed.py compiles, records and replays it. What
differs between steps (number, order, rates, momentum) is on the device, in `StepInputs`: a step waits for
nothing and can be recorded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from supancl.core.losses import GlobalBatch, Terms
from supancl.core.specs import ema_momentum, learning_rate
from supancl.data.splits import Data, Split
from supancl.data.store.memory import Batch
from supancl.data.views.specs import draw_and_render
from supancl.distributed import Ranks, RowRange
from supancl.distributed.ranks import autocast_for
from supancl.recipes import Recipe
from supancl.training.monitor import relative_std

if TYPE_CHECKING:
    from supancl.training.trainer import Model


class Step:
    """Calling it trains on one batch. It changes only the model and the counters of the inputs.

    speed.py replaces `render`, `branches`, `forward_and_loss` and `push` by compiled ones.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: Model,
        inputs: StepInputs,
        ranks: Ranks,
        cache_casts: bool = True,
    ) -> None:
        """Without `cache_casts` no weights are used that an earlier step cast to bf16, as a captured step must not."""
        self.recipe, self.model, self.inputs, self.ranks = recipe, model, inputs, ranks
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
            return targets, {}
        if self.recipe.loss.sees_batch(self.model.pool):
            all_targets = self.ranks.gather(targets, row_range.total, 1)
            return all_targets, {"global_batch": GlobalBatch(all_targets, labels, row_range)}
        first_view = 0 if self.recipe.compat == "released-code" else 1  # z1 is gathered only if it is pushed
        all_targets = self.ranks.gather(targets.detach()[first_view:], row_range.total, 1)
        return all_targets, {"global_batch": GlobalBatch(targets, labels, row_range)}

    def __call__(self, batch: Batch | None = None) -> Tensor:
        """Train on the next batch and return its targets z2. `batch` has the pixels unless they are on the device."""
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
        inputs.note_if_not_finite(total, model.branches.parameters())
        model.optimizer.step()
        if not released_code:
            model.branches.update_target(momentum)
        self.push(targets[0 if released_code else -1], labels)  # z2, after the loss: never its own positive
        inputs.count(total)
        return targets[-1]


# --- what a step reads and counts on the device -----------------------------------------------------------------------


class StepStats(NamedTuple):
    """Mean losses of the steps since the last call, the targets' std, and the first step without a finite loss."""

    loss: float
    ssl: float
    sup: float
    std: float
    nonfinite_step: int | None


class Schedule:
    """Images, learning rates and momentum of each step of a run, as functions of the step."""

    def __init__(self, recipe: Recipe, train: Split) -> None:
        settings = recipe.train
        self.order = train.order(
            settings.seed, settings.batch_size, recipe.data.balanced, recipe.loss.learns_unlabelled
        )
        self.steps_per_epoch: int = self.order.steps_per_epoch
        self.steps = self.steps_per_epoch * settings.epochs
        self.rates = [
            learning_rate(recipe.schedule, recipe.learning_rate, settings.epochs, self.steps_per_epoch, predictor)
            for predictor in (False, True)
        ]
        if (scale := recipe.optimizer.encoder_lr_scale) != 1:
            self.rates.append(lambda step: scale * self.rates[0](step))
        self.momentum = ema_momentum(recipe.branches.momentum, recipe.branches.momentum_end, self.steps)

    def values(self, epoch: int) -> Tensor:
        """(rates + 1, steps of the epoch): learning rates, then momentum, in double for the digits of 1 - 0.9999."""
        steps = range(epoch * self.steps_per_epoch, (epoch + 1) * self.steps_per_epoch)
        rows = [[value(step) for step in steps] for value in (*self.rates, self.momentum)]
        return torch.tensor(rows, dtype=torch.float64)


class StepInputs:
    """The training images, and the tensors that a step reads its settings from and adds its losses to."""

    def __init__(self, recipe: Recipe, data: Data, device: torch.device, ranks: Ranks) -> None:
        self.device, self.ranks = device, ranks
        self.images = data.train.place_on(device)
        self.labels = data.train.all_labels.tensor.to(device)
        self.micro_batches = ranks.micro_batches(recipe.train.batch_size, recipe.train.accumulate, device)
        self.schedule = Schedule(recipe, data.train)
        rows = len(self.schedule.rates) + 1
        # rates and momentum of the steps of this epoch
        self.values = torch.zeros(rows, self.schedule.steps_per_epoch, dtype=torch.float64, device=device)
        self.order = torch.zeros(len(self.labels), dtype=torch.long, device=device)  # of this epoch
        # loss, ssl, sup and number of steps since the last log
        self.sums = torch.zeros(4, dtype=torch.float64, device=device)
        self.momentum = torch.zeros((), dtype=torch.float64, device=device)
        self.rows = torch.arange(recipe.train.batch_size, device=device)
        self.step_tensor = torch.zeros(1, dtype=torch.long, device=device)
        self.first_nonfinite_step = torch.full((1,), -1, device=device)
        self._epoch, self._step_on_host = -1, 0

    def invalidate(self) -> None:
        """After a load: let the next `move_to` fill everything again."""
        self._epoch, self._step_on_host = -1, -1
        self.first_nonfinite_step.fill_(-1)

    # --- on the host, before and after a step -------------------------------------------------------------------------

    def move_to(self, step: int) -> None:
        """Set the step tensor, the order and the rates for this step."""
        if self._step_on_host != step:
            self.step_tensor.fill_(step)
            self._step_on_host = step
        epoch = step // self.schedule.steps_per_epoch
        if epoch != self._epoch:
            self.order.copy_(self.schedule.order.epoch(epoch), non_blocking=True)
            self.values.copy_(self.schedule.values(epoch), non_blocking=True)
            self._epoch = epoch

    def mark_step_done(self) -> None:
        """Count a step on the host, as `count` has done on the device."""
        self._step_on_host += 1

    def local_positions(self, step: int) -> Tensor:
        """Positions of this rank's images of a step."""
        positions: Tensor = self.schedule.order.positions(step)
        if self.ranks.size == 1:
            return positions
        return torch.cat([positions[row_range.select(rows).cpu()] for rows, row_range, _ in self.micro_batches])

    def drain_log(self, targets: Tensor) -> StepStats:
        """Read and clear the values for the log, with the std of these targets, in one copy from the device."""
        std = relative_std(targets).to(self.sums) if len(targets) else self.sums.new_full((), math.nan)
        values = torch.cat([self.sums, std[None], self.first_nonfinite_step.to(self.sums)])
        self.sums.zero_()
        loss, ssl, sup, steps, target_std, failed = values.tolist()
        steps = steps or math.nan
        return StepStats(loss / steps, ssl / steps, sup / steps, target_std, int(failed) if failed >= 0 else None)

    def nonfinite_step(self) -> int | None:
        """The first step since the last checkpoint without a finite loss; waits for the device."""
        step = int(self.first_nonfinite_step)
        return step if step >= 0 else None

    # --- on the device, within a step ---------------------------------------------------------------------------------

    def select(self) -> tuple[Tensor, Tensor]:
        """Positions of this step's images, and the labels of the whole batch."""
        index = self.step_tensor % self.schedule.steps_per_epoch * len(self.rows) + self.rows
        positions = self.order.index_select(0, index)
        return positions, self.labels.index_select(0, positions)

    def set_rates(self, optimizer: torch.optim.Optimizer) -> Tensor:
        """Set the optimizer's learning rates for this step; return its momentum."""
        values = self.values.index_select(1, self.step_tensor % self.schedule.steps_per_epoch)[:, 0]
        for number, group in enumerate(optimizer.param_groups):
            group["lr"].copy_(values[number])
        self.momentum.copy_(values[-1])
        return self.momentum

    def note_if_not_finite(self, losses: Tensor, parameters: Iterable[Tensor]) -> None:
        """Note the first step whose loss or gradient is not finite; nobody waits for it."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        is_finite = torch.isfinite(losses).all() & torch.isfinite(torch.nn.utils.get_total_norm(gradients))
        first = self.first_nonfinite_step
        first.copy_(torch.where((first < 0) & ~is_finite, self.step_tensor, first))

    def count(self, losses: Tensor) -> None:
        """Count a step with these losses."""
        self.sums += torch.cat([losses, losses.new_ones(1)])
        self.step_tensor += 1
