"""The online branch and the target branch: views -> anchors, targets."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supancl.config import Fraction
from supancl.heads import MLP


@dataclass(frozen=True)
class BranchSpec:
    """Where targets come from, and the momentum of the EMA where it is a momentum copy.

    shared         the online branch itself, gradient flows (SimCLR, SupCon)
    stop-gradient  the online branch itself, gradient stopped (SimSiam, SupSiam)
    momentum       a copy that follows by EMA (BYOL, SupBYOL, MoCo)
    """

    target: Literal["shared", "stop-gradient", "momentum"] = "stop-gradient"
    momentum: Fraction = 0.996
    momentum_end: Fraction = 1.0  # equal to `momentum`: constant


@dataclass(frozen=True)
class HeadSpec:
    """The projector g and, where the method has one, the predictor h."""

    projector: MLP = MLP(hidden=(2048, 2048), out=2048)
    predictor: MLP | None = None


class Branches(nn.Module):
    """(2, B, C, H, W) views -> anchors and targets, each (2, B, D) and of unit norm.

    Each view goes through by itself, so batch-norm statistics are per view. The momentum copy stays in
    train mode with running statistics of its own; EMA touches parameters only.
    Local views (L, B, C, h, w) go through the online branch only, after the others: they give L more anchors.
    """

    def __init__(
        self,
        encoder: nn.Module,
        projector: nn.Module,
        predictor: nn.Module | None = None,
        target: Literal["shared", "stop-gradient", "momentum"] = "stop-gradient",
        normalize: bool = True,
    ) -> None:
        super().__init__()
        self.encoder, self.projector, self.predictor = encoder, projector, predictor
        self.target, self.normalize = target, normalize
        self.target_encoder: nn.Module | None = None
        self.target_projector: nn.Module | None = None
        if target == "momentum":
            self.target_encoder = copy.deepcopy(encoder).requires_grad_(False)
            self.target_projector = copy.deepcopy(projector).requires_grad_(False)

    def forward(self, views: Tensor, local: Tensor | None = None) -> tuple[Tensor, Tensor]:
        projections = [self.projector(self.encoder(view)) for view in views]
        predictions, targets = self._predicted(projections), self._targets(views, projections)
        if local is not None:
            predictions = predictions + self._predicted([self.projector(self.encoder(view)) for view in local])
        return self._unit(predictions), self._unit(targets)

    def _predicted(self, projections: list[Tensor]) -> list[Tensor]:
        return projections if self.predictor is None else [self.predictor(z) for z in projections]

    def _targets(self, views: Tensor, projections: list[Tensor]) -> list[Tensor]:
        if self.target == "shared":
            return projections
        if self.target_encoder is None or self.target_projector is None:
            return [z.detach() for z in projections]
        with torch.no_grad():
            return [self.target_projector(self.target_encoder(view)) for view in views]

    def _unit(self, features: list[Tensor]) -> Tensor:
        stacked = torch.stack(features)
        if not self.normalize:
            return stacked
        # in bf16 the norm would be off by up to 0.4%
        return F.normalize(stacked.to(torch.promote_types(stacked.dtype, torch.float32)), dim=-1)

    @torch.no_grad()
    def update_target(self, momentum: float | Tensor) -> None:
        """theta_target <- m * theta_target + (1 - m) * theta_online, for every parameter (Sec. 3.1).

        A momentum that changes from step to step may be a tensor (), so that nobody waits for it.
        """
        targets = self.target_parameters()
        if not targets:
            return
        online: list[Tensor] = [*self.encoder.parameters(), *self.projector.parameters()]
        if isinstance(momentum, Tensor):
            toward = torch._foreach_sub(online, targets)
            torch._foreach_mul_(toward, 1.0 - momentum)
            torch._foreach_add_(targets, toward)
        else:
            torch._foreach_lerp_(targets, online, 1.0 - momentum)

    def target_parameters(self) -> list[Tensor]:
        """The parameters of the momentum copy; none where the target branch is shared."""
        if self.target_encoder is None or self.target_projector is None:
            return []
        return [*self.target_encoder.parameters(), *self.target_projector.parameters()]

    @torch.no_grad()
    def copy_to_target(self) -> None:
        """Start the momentum copy from the online branch, buffers included."""
        if self.target_encoder is not None and self.target_projector is not None:
            self.target_encoder.load_state_dict(self.encoder.state_dict())
            self.target_projector.load_state_dict(self.projector.state_dict())
