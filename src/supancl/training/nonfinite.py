"""Losses and gradients that are not finite numbers: how a step notices one, and what the run does about it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from supancl.errors import NonFinite, program
from supancl.recipes import Recipe
from supancl.recipes.plugins import plugin_flags
from supancl.training.inputs import StepInputs
from supancl.training.model import Model

if TYPE_CHECKING:
    from supancl.training.loop import Loop

MOST_SKIPS = 20  # steps without a finite loss, before a run that skips them gives up
MOST_ROLLBACKS = 3


def checks_every_step(recipe: Recipe, device: torch.device) -> bool:
    """Whether the host looks at every loss; on a GPU it would wait for each, so there only where steps are skipped."""
    return device.type == "cpu" or recipe.train.on_nan == "skip"


class FiniteCheck:
    """Says whether a step may go on; where nobody looks at once, it notes the first bad step on the device."""

    def __init__(self, recipe: Recipe, model: Model, inputs: StepInputs) -> None:
        self.model, self.inputs = model, inputs
        self.skips = recipe.train.on_nan == "skip"
        self.moves_early = recipe.compat == "released-code"
        self.looks = checks_every_step(recipe, model.device)

    def __call__(self, losses: Tensor) -> bool:
        gradients = [p.grad for p in self.model.branches.parameters() if p.grad is not None]
        finite = torch.isfinite(losses).all() & torch.isfinite(torch.nn.utils.get_total_norm(gradients))
        if self.looks:
            return bool(finite)
        first, step = self.inputs.first_nonfinite_step, self.inputs.step_tensor
        first.copy_(torch.where((first < 0) & ~finite, step, first))
        return True

    def snapshot_buffers(self) -> list[tuple[Tensor, Tensor]]:
        """What a forward (batch-norm statistics) or the released code's early EMA changes, if steps may be skipped."""
        if not self.skips:
            return []
        branches = self.model.branches
        moving = [*branches.buffers(), *(branches.target_parameters() if self.moves_early else ())]
        return [(value, value.clone()) for value in moving]

    @staticmethod
    @torch.no_grad()
    def restore(snapshot: list[tuple[Tensor, Tensor]]) -> None:
        for value, old in snapshot:
            value.copy_(old)


def handle_nonfinite(loop: Loop, step: int) -> None:
    """Stop, pass the step over, or go back to the last checkpoint and pass it over then."""
    trainer, settings = loop.trainer, loop.trainer.recipe.train
    files = loop.data.train.names_at(trainer.inputs.schedule.order.positions(step))
    shown = ", ".join(files[:4]) + (f" and {len(files) - 4} more" if len(files) > 4 else "")
    what = f"the loss or its gradient is not a finite number at step {step} (images {shown})"
    anew = "start anew with a lower --set optimizer.lr"
    anew += " or --precision fp32" if settings.precision == "bf16" else ""
    resume = f"{program()} pretrain --resume --on-nan skip --out {shlex.quote(str(loop.folder.path))}"
    resume += plugin_flags(loop.folder.read_plugins())
    ways = f"to go on without such steps, looking at every loss (slower on a GPU): {resume}; or {anew}"
    if settings.on_nan == "stop":
        raise NonFinite(what, ways)
    if settings.on_nan == "rollback":
        if loop.rollbacks >= MOST_ROLLBACKS:
            raise NonFinite(f"{what}, after {loop.rollbacks} rollbacks", ways)
        loop.go_back()
        loop.reporter.warn(f"{what}; back to step {trainer.step}, this batch will be left out")
    else:
        loop.reporter.warn(f"{what}; step skipped")
    loop.rollbacks += 1
    trainer.skipped_steps.append(step)
    if settings.on_nan == "skip" and len(trainer.skipped_steps) > MOST_SKIPS:
        raise NonFinite(f"{what}, after {MOST_SKIPS} skipped steps", anew)
