"""What passes gradients between ranks: sums, gathering, and batch norm, whose statistics may also be per view."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from supancl.errors import BadInput


class AllReduceSum(torch.autograd.Function):
    """Sum a tensor over the ranks. The loss is the sum of the ranks' losses, so gradients are summed as well."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return AllReduceSum.forward(ctx, grads[0])


class AllGather(torch.autograd.Function):
    """Gather the tensors of all ranks; their shapes are equal."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> tuple[Tensor, ...]:
        gathered = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, rows)
        return tuple(gathered)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = torch.stack(grads)
        dist.all_reduce(total)
        return total[dist.get_rank()]


class PerViewBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm of `views` equal chunks of a batch: statistics per chunk; running ones are updated chunk by chunk."""

    views = 1

    def forward(self, features: Tensor) -> Tensor:
        if self.views == 1 or not self.training:
            output: Tensor = super().forward(features)
            return output
        return torch.cat([super(PerViewBatchNorm, self).forward(view) for view in features.chunk(self.views)])


class _AllReduceBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Sums values, squares and counts over the ranks, in one differentiable call."""

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept any number of dimensions."""

    def forward(self, features: Tensor) -> Tensor:
        if not self.training:
            output: Tensor = super().forward(features)
            return output
        dims = [0, *range(2, features.ndim)]
        shape = [1, -1] + [1] * (features.ndim - 2)
        doubles = features.double()  # E[x^2] - E[x]^2 loses digits in float32
        count = doubles.new_full((1,), doubles.numel() // doubles.shape[1])
        sums = AllReduceSum.apply(torch.cat([doubles.sum(dims), doubles.square().sum(dims), count]))
        mean, squares = (sums[:-1] / sums[-1]).chunk(2)
        variance = (squares - mean.square()).clamp(min=0)
        self._update_running(mean.detach(), variance.detach(), sums[-1].detach())
        values = features.to(torch.promote_types(features.dtype, torch.float32))
        centred = values - mean.to(values.dtype).view(shape)
        variance = variance.to(values.dtype)
        normalized: Tensor = centred * (variance + self.eps).rsqrt().view(shape)
        if self.weight is not None:
            normalized = normalized * self.weight.view(shape) + self.bias.view(shape)
        return normalized.to(features.dtype)

    @torch.no_grad()
    def _update_running(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked += 1
        weight = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
        unbiased = variance * count / (count - 1)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), weight)


class GpuCrossRankBatchNorm(PerViewBatchNorm, nn.SyncBatchNorm):
    """Statistics of the whole batch over all ranks, per view: on a GPU torch's SyncBatchNorm."""


class CpuCrossRankBatchNorm(PerViewBatchNorm, _AllReduceBatchNorm):
    """The same on the CPU, which torch's SyncBatchNorm does not support."""


def synchronize_norms(module: nn.Module, device: torch.device) -> None:
    """Make every batch norm of the module use the whole batch. Classes change; tensors and their names do not."""
    for name, norm in module.named_modules():
        is_done = isinstance(norm, (GpuCrossRankBatchNorm, CpuCrossRankBatchNorm))
        if is_done or not isinstance(norm, nn.modules.batchnorm._BatchNorm):
            continue
        if type(norm).forward is not nn.modules.batchnorm._BatchNorm.forward and not isinstance(norm, PerViewBatchNorm):
            raise BadInput(
                f"{name} is a {type(norm).__name__}, which cannot be synchronised over ranks; "
                "train.sync_norm=false, or choose an encoder with standard batch norm"
            )
        untyped: Any = norm
        untyped.process_group = None
        untyped.__class__ = CpuCrossRankBatchNorm if device.type == "cpu" else GpuCrossRankBatchNorm
