"""Non-finite losses and gradients: how a step detects them, and what the run does then."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from supancl.errors import NonFinite, program_name
from supancl.recipes import Recipe
from supancl.recipes.plugin_files import plugin_flags, plugins_to_continue
from supancl.training.inputs import StepInputs
from supancl.training.model import Model

if TYPE_CHECKING:
    from supancl.training.loop import Loop

# a run with on_nan=skip gives up at this many steps, or at more than this fraction of an epoch's steps
MAX_SKIPPED_STEPS = 20
MAX_SKIPPED_FRACTION = 0.05  # one step of an epoch may always be skipped
MAX_ROLLBACKS = 3


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


def handle_nonfinite(loop: Loop, step: int) -> None:
    """Stop, skip the step, or roll back to the last checkpoint and skip the step then."""
    trainer, settings = loop.trainer, loop.trainer.recipe.train
    files = loop.data.train.names_at(trainer.inputs.schedule.order.positions(step))
    listed = ", ".join(files[:4]) + (f" and {len(files) - 4} more" if len(files) > 4 else "")
    cause = f"the loss or its gradient is not a finite number at step {step} (images {listed})"
    restart = "start again with a lower optimizer.lr"
    restart += " or precision fp32" if settings.precision == "bf16" else ""
    resume = f"{program_name()} pretrain --resume --on-nan skip --out {shlex.quote(str(loop.folder.path))}"
    resume += plugin_flags(plugins_to_continue(loop.folder.read_plugins()))
    advice = f"to continue without such steps, checking every loss (slower on a GPU): {resume}; or {restart}"
    if settings.on_nan == "stop":
        raise NonFinite(cause, advice)
    if settings.on_nan == "rollback":
        if loop.rollbacks >= MAX_ROLLBACKS:
            raise NonFinite(f"{cause}, after {loop.rollbacks} rollbacks", advice)
        loop.roll_back()
        loop.reporter.warn(f"{cause}; rolled back to step {trainer.step}, this batch will be skipped")
    else:
        loop.reporter.warn(f"{cause}; step skipped")
    loop.rollbacks += 1
    trainer.skipped_steps.append(step)
    if settings.on_nan == "skip":
        check_skipped_steps(trainer.skipped_steps, step, trainer.steps_per_epoch, cause, restart)


def check_skipped_steps(skipped: Sequence[int], step: int, steps_per_epoch: int, cause: str, advice: str) -> None:
    """Give up if too many steps were skipped: what is left would not be the run that was asked for."""
    if len(skipped) >= MAX_SKIPPED_STEPS:
        raise NonFinite(f"{cause}, as at {len(skipped) - 1} steps before", advice)
    in_epoch = sum(other // steps_per_epoch == step // steps_per_epoch for other in skipped)
    if in_epoch > max(1, MAX_SKIPPED_FRACTION * steps_per_epoch):
        percent = f"{MAX_SKIPPED_FRACTION:.0%}"
        raise NonFinite(f"{cause}: {in_epoch} of the epoch's {steps_per_epoch} steps, more than {percent}", advice)
