"""Losses and gradients that are not finite numbers: how a step notices one, and what the run does about it."""

from __future__ import annotations

import torch
from torch import Tensor

from supancl.recipes import Recipe
from supancl.training.inputs import StepInputs
from supancl.training.model import Model


def checks_every_step(recipe: Recipe, device: torch.device) -> bool:
    """On a GPU that would make the host wait; there the log's interval is soon enough, unless steps are skipped."""
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
