"""The online branch and the target branch: views -> anchors, targets."""

from __future__ import annotations

import copy
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supancl.core.specs import BranchSpec as BranchSpec  # where it was
from supancl.core.specs import HeadSpec as HeadSpec
from supancl.distributed.norms import PerView


class PerViewBatchNorm1d(PerView, nn.BatchNorm1d):
    """BatchNorm1d, per view."""


class PerViewBatchNorm2d(PerView, nn.BatchNorm2d):
    """BatchNorm2d, per view."""


PER_VIEW: dict[type, type] = {nn.BatchNorm1d: PerViewBatchNorm1d, nn.BatchNorm2d: PerViewBatchNorm2d}


class Branches(nn.Module):
    """(2, B, C, H, W) views -> anchors and targets, each (2, B, D) and of unit norm.

    Batch-norm statistics are per view: each view goes through by itself, or, once `join` was asked for, all go
    through as one batch whose norms look at each view by itself (the same values, fewer and larger kernels).
    The momentum copy stays in train mode with running statistics of its own; EMA touches parameters only.
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
        self.joined = False

    def forward(self, views: Tensor, local: Tensor | None = None) -> tuple[Tensor, Tensor]:
        projections = self._each(views, self.encoder, self.projector)
        predictions, targets = self._predicted(projections), self._targets(views, projections)
        if local is not None:
            predictions = torch.cat([predictions, self._predicted(self._each(local, self.encoder, self.projector))])
        return self._unit(predictions), self._unit(targets)

    def _each(self, views: Tensor, *modules: nn.Module) -> Tensor:
        """(V, B, ...) through the modules, statistics per view."""

        def through(batch: Tensor) -> Tensor:
            for module in modules:
                batch = module(batch)
            return batch

        if self.joined:
            together = through(views.flatten(0, 1))
            return together.view(len(views), -1, *together.shape[1:])
        return torch.stack([through(view) for view in views])

    def _predicted(self, projections: Tensor) -> Tensor:
        return projections if self.predictor is None else self._each(projections, self.predictor)

    def _targets(self, views: Tensor, projections: Tensor) -> Tensor:
        if self.target == "shared":
            return projections
        if self.target_encoder is None or self.target_projector is None:
            return projections.detach()
        with torch.no_grad():
            return self._each(views, self.target_encoder, self.target_projector)

    def _unit(self, features: Tensor) -> Tensor:
        if not self.normalize:
            return features
        # in bf16 the norm would be off by up to 0.4%
        return F.normalize(features.to(torch.promote_types(features.dtype, torch.float32)), dim=-1)

    def join(self, views: int) -> bool:
        """Let that many views go through as one batch; 1 takes it back. Gives whether every norm can."""
        norms = [module for module in self.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
        if not all(type(norm) in PER_VIEW or isinstance(norm, PerView) for norm in norms):
            return False
        for norm in norms:
            norm.__class__ = PER_VIEW.get(type(norm), type(norm))
            cast(PerView, norm).views = views
        self.joined = views > 1
        return True

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
            # of the parameters' own type: of another one, torch takes a kernel for each of them
            torch._foreach_mul_(toward, (1.0 - momentum).to(targets[0].dtype))
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
