"""What ranks exchange, with its gradient: each rank's loss is a share of the whole one, so gradients add up."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Sum(torch.autograd.Function):
    """The sum over the ranks."""

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


class Gathered(torch.autograd.Function):
    """The tensors of all ranks, which have one shape."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> tuple[Tensor, ...]:
        everyones = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(everyones, rows)
        return tuple(everyones)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = torch.stack(grads)
        dist.all_reduce(total)
        return total[dist.get_rank()]
