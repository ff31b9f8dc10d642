"""What a step reads and counts on the device: its number, the epoch's order, rates, momentum, alpha, loss sums.

Everything that differs between steps is on the device, so that a step waits for nothing and can be recorded and
replayed (speed.py).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from supancl.core.schedules import ema_momentum, learning_rate
from supancl.data.splits import Data, Split
from supancl.distributed import Ranks
from supancl.recipes import Recipe
from supancl.training.model import Model
from supancl.training.monitor import relative_std


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
        # a captured step reads alpha from here; on a CPU it is a number in the loss
        reads_alpha = recipe.loss.takes_alpha and recipe.pool.kind != "none" and device.type == "cuda"
        self.alpha = torch.zeros((), device=device) if reads_alpha else None
        self._epoch, self._step_on_host = -1, 0
        self._fill_alpha(recipe)

    def restart(self, recipe: Recipe, data: Data) -> None:
        """Begin another run of equal shapes in the same tensors."""
        self.schedule = Schedule(recipe, data.train)
        self._fill_alpha(recipe)
        self.sums.zero_()
        self.invalidate()

    def _fill_alpha(self, recipe: Recipe) -> None:
        if self.alpha is not None:
            self.alpha.fill_(getattr(recipe.loss, "alpha", 1.0))

    def invalidate(self) -> None:
        """After a load or a restart: let the next `move_to` fill everything again."""
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

    def count(self, losses: Tensor) -> None:
        """Count a step with these losses."""
        self.sums += torch.cat([losses, losses.new_ones(1)])
        self.step_tensor += 1


def checks_every_step(recipe: Recipe, device: torch.device) -> bool:
    """Whether the host checks every loss. On a GPU it has to wait for each, so only if bad steps are skipped."""
    return device.type == "cpu" or recipe.train.on_nan == "skip"


class FiniteCheck:
    """Checks the loss and gradients of a step: on the host, or by noting the first bad step on the device."""

    def __init__(self, recipe: Recipe, model: Model, inputs: StepInputs) -> None:
        self.model, self.inputs = model, inputs
        self.skips = recipe.train.on_nan == "skip"
        self.updates_target_early = recipe.compat == "released-code"
        self.checks_every_step = checks_every_step(recipe, model.device)

    def __call__(self, losses: Tensor) -> bool:
        gradients = [p.grad for p in self.model.branches.parameters() if p.grad is not None]
        finite = torch.isfinite(losses).all() & torch.isfinite(torch.nn.utils.get_total_norm(gradients))
        if self.checks_every_step:
            return bool(finite)
        first, step = self.inputs.first_nonfinite_step, self.inputs.step_tensor
        first.copy_(torch.where((first < 0) & ~finite, step, first))
        return True

    def snapshot_buffers(self) -> list[tuple[Tensor, Tensor]]:
        """Copy what a forward pass (norm statistics) or the released code's EMA changes, to undo a step."""
        if not self.skips:
            return []
        branches = self.model.branches
        changing = [*branches.buffers(), *(branches.target_parameters() if self.updates_target_early else ())]
        return [(value, value.clone()) for value in changing]

    @staticmethod
    @torch.no_grad()
    def restore(snapshot: list[tuple[Tensor, Tensor]]) -> None:
        for value, old in snapshot:
            value.copy_(old)
