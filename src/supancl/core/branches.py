"""The online branch and the target branch: views -> anchors, targets."""

from __future__ import annotations

import copy
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supancl.config import checked
from supancl.core.specs import BranchSpec as BranchSpec  # its place before 0.2
from supancl.core.specs import HeadSpec as HeadSpec
from supancl.core.specs import Target
from supancl.distributed.norms import PerViewBatchNorm


class PerViewBatchNorm1d(PerViewBatchNorm, nn.BatchNorm1d):
    """BatchNorm1d, per view."""


class PerViewBatchNorm2d(PerViewBatchNorm, nn.BatchNorm2d):
    """BatchNorm2d, per view."""


PER_VIEW_NORMS: dict[type, type] = {nn.BatchNorm1d: PerViewBatchNorm1d, nn.BatchNorm2d: PerViewBatchNorm2d}


class Branches(nn.Module):
    """(2, B, C, H, W) views -> anchors and targets, each (2, B, D) and of unit norm.

    Batch norm statistics are per view: each view is a forward pass, or, after `join_views`, both are one batch with
    statistics per view (the same values, with fewer and larger kernels). The momentum copy is in train mode with its
    own running statistics; EMA updates parameters only. Local views (L, B, C, h, w) pass the online branch only, after
    the others, and give L more anchors.
    """

    def __init__(
        self, encoder: nn.Module, projector: nn.Module, predictor: nn.Module | None = None,
        target: Target = "stop-gradient", normalize: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        checked(target, Target, "Branches target")
        self.encoder, self.projector, self.predictor = encoder, projector, predictor
        self.target, self.normalize = target, normalize
        self.target_encoder: nn.Module | None = None
        self.target_projector: nn.Module | None = None
        if target == "momentum":
            self.target_encoder = copy.deepcopy(encoder).requires_grad_(False)
            self.target_projector = copy.deepcopy(projector).requires_grad_(False)
        self.joined = False

    def forward(self, views: Tensor, local: Tensor | None = None) -> tuple[Tensor, Tensor]:
        projections = self._forward_per_view(views, self.encoder, self.projector)
        predictions, targets = self._predict(projections), self._compute_targets(views, projections)
        if local is not None:
            local_projections = self._forward_per_view(local, self.encoder, self.projector)
            predictions = torch.cat([predictions, self._predict(local_projections)])
        return self._normalize(predictions), self._normalize(targets)

    def _forward_per_view(self, views: Tensor, *modules: nn.Module) -> Tensor:
        """(V, B, ...) through the modules, statistics per view."""

        def forward(batch: Tensor) -> Tensor:
            for module in modules:
                batch = module(batch)
            return batch

        if self.joined:
            joined = forward(views.flatten(0, 1))
            return joined.view(len(views), -1, *joined.shape[1:])
        return torch.stack([forward(view) for view in views])

    def _predict(self, projections: Tensor) -> Tensor:
        return projections if self.predictor is None else self._forward_per_view(projections, self.predictor)

    def _compute_targets(self, views: Tensor, projections: Tensor) -> Tensor:
        if self.target == "shared":
            return projections
        if self.target_encoder is None or self.target_projector is None:
            return projections.detach()
        with torch.no_grad():
            return self._forward_per_view(views, self.target_encoder, self.target_projector)

    def _normalize(self, features: Tensor) -> Tensor:
        if not self.normalize:
            return features
        # in bf16 the norm would be off by up to 0.4%
        return F.normalize(features.to(torch.promote_types(features.dtype, torch.float32)), dim=-1)

    def join_views(self) -> bool:
        """Pass both views as one batch from now on; False, and no change, if a norm does not support it."""
        norms = [module for module in self.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
        if not all(type(norm) in PER_VIEW_NORMS or isinstance(norm, PerViewBatchNorm) for norm in norms):
            return False
        for norm in norms:
            norm.__class__ = PER_VIEW_NORMS.get(type(norm), type(norm))
            cast(PerViewBatchNorm, norm).views = 2
        self.joined = True
        return True

    @torch.no_grad()
    def update_target(self, momentum: float | Tensor) -> None:
        """theta_target <- m * theta_target + (1 - m) * theta_online, for every parameter (Sec. 3.1)."""
        targets = self.target_parameters()
        if not targets:
            return
        online: list[Tensor] = [*self.encoder.parameters(), *self.projector.parameters()]
        if isinstance(momentum, Tensor):
            difference = torch._foreach_sub(online, targets)
            # in the dtype of the parameters: with another one torch starts a kernel per parameter
            torch._foreach_mul_(difference, (1.0 - momentum).to(targets[0].dtype))
            torch._foreach_add_(targets, difference)
        else:
            torch._foreach_lerp_(targets, online, 1.0 - momentum)

    def target_parameters(self) -> list[Tensor]:
        """The parameters of the momentum copy, if there is one."""
        if self.target_encoder is None or self.target_projector is None:
            return []
        return [*self.target_encoder.parameters(), *self.target_projector.parameters()]

    @torch.no_grad()
    def copy_to_target(self) -> None:
        """Copy the online branch, with buffers, to the momentum branch."""
        if self.target_encoder is not None and self.target_projector is not None:
            self.target_encoder.load_state_dict(self.encoder.state_dict())
            self.target_projector.load_state_dict(self.projector.state_dict())
