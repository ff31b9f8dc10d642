"""What a step reads and counts on the device: its number, the epoch's order, rates, momentum, alpha, summed losses.

All that differs from one step to the next lies there, so that the step waits for nothing and can be recorded and
replayed (cuda/capture.py).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from supancl.core.schedules import ema_momentum, learning_rate
from supancl.data.splits import Data, Split
from supancl.data.store.memory import Batch, Progress
from supancl.data.views.specs import ViewSpec, views_for_rows
from supancl.distributed import Part, Ranks
from supancl.recipes import Recipe
from supancl.training.monitor import relative_std


class MicroBatch(NamedTuple):
    """Some rows of a batch: which, which of them this rank takes, where those are in what it reads, and their views."""

    rows: Tensor
    part: Part
    read: Tensor
    augment: ViewSpec


class StepStats(NamedTuple):
    """Losses averaged over the steps since they were last read, the targets' std, and the first step that failed."""

    loss: float
    ssl: float
    sup: float
    std: float
    nonfinite_step: int | None


class Schedule:
    """Which images, which learning rates and which momentum each step of a run has: functions of the step's number."""

    def __init__(self, recipe: Recipe, train: Split) -> None:
        settings = recipe.train
        self.order = train.order(settings.seed, settings.batch_size, recipe.data.balanced)
        self.steps_per_epoch: int = self.order.steps_per_epoch
        self.steps = self.steps_per_epoch * settings.epochs
        self.rates = [
            learning_rate(recipe.schedule, recipe.learning_rate, settings.epochs, self.steps_per_epoch, predictor)
            for predictor in (False, True)
        ]
        self.momentum = ema_momentum(recipe.branches.momentum, recipe.branches.momentum_end, self.steps)

    def values(self, epoch: int) -> Tensor:
        """(3, its steps): both learning rates and the momentum; in double: 1 - 0.9999 would lose four digits."""
        steps = range(epoch * self.steps_per_epoch, (epoch + 1) * self.steps_per_epoch)
        rows = [[value(step) for step in steps] for value in (*self.rates, self.momentum)]
        return torch.tensor(rows, dtype=torch.float64)


class StepInputs:
    """The training images, and the tensors in which a step finds its place and leaves its losses."""

    def __init__(
        self, recipe: Recipe, data: Data, device: torch.device, ranks: Ranks, progress: Progress | None = None
    ) -> None:
        self.device, self.ranks = device, ranks
        self.images = data.train.place_on(device, progress)
        streamed = data.train.is_streamed  # then batches bring their labels
        self.labels = torch.empty(0, dtype=torch.long, device=device) if streamed else data.train.labels.to(device)
        self.micro_batches = [
            MicroBatch(rows, part, read, views_for_rows(recipe.views, part))
            for rows, part, read in ranks.micros(recipe.train.batch_size, recipe.train.accumulate, device)
        ]
        self.schedule = Schedule(recipe, data.train)
        self.values = torch.zeros(3, self.schedule.steps_per_epoch, dtype=torch.float64, device=device)  # of this epoch
        self.order = torch.zeros(len(self.labels), dtype=torch.long, device=device)  # of this epoch
        self.sums = torch.zeros(4, dtype=torch.float64, device=device)  # loss, ssl, sup, steps since they were read
        self.momentum = torch.zeros((), dtype=torch.float64, device=device)
        self.rows = torch.arange(recipe.train.batch_size, device=device)
        self.step_tensor = torch.zeros(1, dtype=torch.long, device=device)
        self.first_nonfinite_step = torch.full((1,), -1, device=device)
        # where a captured step reads alpha; on a CPU it is the loss's own number
        reads_alpha = recipe.loss.takes_alpha and recipe.pool.kind != "none" and device.type == "cuda"
        self.alpha = torch.zeros((), device=device) if reads_alpha else None
        self._epoch, self._step_on_host = -1, 0
        self._fill_alpha(recipe)

    def restart(self, recipe: Recipe, data: Data) -> None:
        """Begin another run of equal shapes in the same tensors."""
        self.schedule = Schedule(recipe, data.train)
        self._fill_alpha(recipe)
        self.sums.zero_()
        self.forget_place()

    def _fill_alpha(self, recipe: Recipe) -> None:
        if self.alpha is not None:
            self.alpha.fill_(getattr(recipe.loss, "alpha", 1.0))

    def forget_place(self) -> None:
        """After a load or a restart: the next `move_to` fills everything anew."""
        self._epoch, self._step_on_host = -1, -1
        self.first_nonfinite_step.fill_(-1)

    # --- on the host, before and after a step -------------------------------------------------------------------------

    def move_to(self, step: int) -> None:
        """Let the step tensor, the order and the rates be those of this step."""
        if self._step_on_host != step:
            self.step_tensor.fill_(step)
            self._step_on_host = step
        epoch = step // self.schedule.steps_per_epoch
        if epoch != self._epoch:
            self.order.copy_(self.schedule.order.epoch(epoch), non_blocking=True)
            self.values.copy_(self.schedule.values(epoch), non_blocking=True)
            self._epoch = epoch

    def step_taken(self) -> None:
        """The device has counted one step more (`count`)."""
        self._step_on_host += 1

    def own_positions(self, step: int) -> Tensor:
        """Which images of a step this rank takes."""
        positions: Tensor = self.schedule.order.positions(step)
        if self.ranks.size == 1:
            return positions
        return torch.cat([positions[micro.part.of(micro.rows).cpu()] for micro in self.micro_batches])

    def drain_log(self, targets: Tensor) -> StepStats:
        """What the log wants to know, the std of these targets included, in one copy from the device."""
        std = relative_std(targets).to(self.sums) if len(targets) else self.sums.new_full((), math.nan)
        values = torch.cat([self.sums, std[None], self.first_nonfinite_step.to(self.sums)])
        self.sums.zero_()
        loss, ssl, sup, steps, spread, failed = values.tolist()
        steps = steps or math.nan
        return StepStats(loss / steps, ssl / steps, sup / steps, spread, int(failed) if failed >= 0 else None)

    def nonfinite_step(self) -> int | None:
        """The first step since the last checkpoint that gave no finite loss; waits for the device."""
        found = int(self.first_nonfinite_step)
        return found if found >= 0 else None

    # --- on the device, within a step ---------------------------------------------------------------------------------

    def select(self, batch: Batch | None) -> tuple[Tensor, Tensor]:
        """Positions of this step's images, and the labels of the whole batch."""
        if batch is not None and batch.labels is not None:
            return self.rows, self._labels_of_all(batch.labels)
        place = self.step_tensor % self.schedule.steps_per_epoch * len(self.rows) + self.rows
        positions = self.order.index_select(0, place)
        return positions, self.labels.index_select(0, positions)

    def _labels_of_all(self, labels: Tensor) -> Tensor:
        """Those of every rank, from those that came with this rank's images."""
        if self.ranks.size == 1:
            return labels
        return torch.cat([self.ranks.gather(labels[micro.read], micro.part.total) for micro in self.micro_batches])

    def set_rates(self, optimizer: torch.optim.Optimizer) -> Tensor:
        """Give the optimizer this step's learning rates; return this step's momentum."""
        now = self.values.index_select(1, self.step_tensor % self.schedule.steps_per_epoch)[:, 0]
        for number, group in enumerate(optimizer.param_groups):
            group["lr"].copy_(now[number])
        self.momentum.copy_(now[2])
        return self.momentum

    def count(self, losses: Tensor) -> None:
        """One step more, with these losses."""
        self.sums += torch.cat([losses, losses.new_ones(1)])
        self.step_tensor += 1
