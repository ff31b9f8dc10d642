"""Batch norm per view where several views come as one batch, and over all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from supancl.distributed.exchange import Sum
from supancl.errors import BadInput


class PerView(nn.modules.batchnorm._BatchNorm):
    """A batch norm that sees `views` batches in one: statistics of each, running ones updated view after view."""

    views = 1

    def forward(self, features: Tensor) -> Tensor:
        made: Tensor
        if self.views == 1 or not self.training:
            made = super().forward(features)
            return made
        return torch.cat([super(PerView, self).forward(view) for view in features.chunk(self.views)])


class OfAllRanks(PerView):
    """Batch norm with the statistics of the whole batch, of each view by itself where several come as one batch."""


class _Summed(nn.modules.batchnorm._BatchNorm):
    """One differentiable sum over the ranks, of values, squares and how many there are."""

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of dimensions will do."""

    def forward(self, features: Tensor) -> Tensor:
        made: Tensor
        if not self.training:
            made = super().forward(features)
            return made
        dims = [0, *range(2, features.ndim)]
        shape = [1, -1] + [1] * (features.ndim - 2)
        wide = features.double()  # so that the mean of the squares less the square of the mean keeps its digits
        count = wide.new_full((1,), wide.numel() // wide.shape[1])
        sums = Sum.apply(torch.cat([wide.sum(dims), wide.square().sum(dims), count]))
        mean, squares = (sums[:-1] / sums[-1]).chunk(2)
        variance = (squares - mean.square()).clamp(min=0)
        self._remember(mean.detach(), variance.detach(), sums[-1].detach())
        values = features.to(torch.promote_types(features.dtype, torch.float32))
        centred = values - mean.to(values.dtype).view(shape)
        variance = variance.to(values.dtype)
        result = centred * (variance + self.eps).rsqrt().view(shape)
        if self.weight is not None:
            result = result * self.weight.view(shape) + self.bias.view(shape)
        made = result.to(features.dtype)
        return made

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked += 1
        toward = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), toward)
        unbiased = variance * count / (count - 1)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), toward)


class SyncedNorm(OfAllRanks, nn.SyncBatchNorm):
    """On a GPU: torch's own."""


class SummedNorm(OfAllRanks, _Summed):
    """On the CPU, whose tensors torch's own refuses."""


def synchronize(module: nn.Module, device: torch.device) -> None:
    """Let every batch norm of the module see the whole batch; their class changes, their tensors and names do not."""
    for name, norm in module.named_modules():
        if not isinstance(norm, nn.modules.batchnorm._BatchNorm) or isinstance(norm, OfAllRanks):
            continue
        if type(norm).forward is not nn.modules.batchnorm._BatchNorm.forward and not isinstance(norm, PerView):
            raise BadInput(
                f"{name} is a {type(norm).__name__}, which cannot be synchronised over ranks; --set "
                "train.sync_norm=false, or choose an encoder with plain batch norm"
            )
        changed: Any = norm
        changed.process_group = None
        changed.__class__ = SummedNorm if device.type == "cpu" else SyncedNorm
