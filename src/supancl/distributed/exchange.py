"""Collectives with gradients. The loss is the sum of the ranks' losses, so gradients are summed as well."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class AllReduceSum(torch.autograd.Function):
    """Sum a tensor over the ranks."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


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
