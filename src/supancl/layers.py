"""Two layers of ResNets and ViTs that compute what torch's own do, arranged as a GPU likes them.

A layer changes its class and back: parameters, buffers and their names stay as they are.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FoldedConv2d(nn.Conv2d):
    """A strided convolution of few channels, as one without stride of stride^2 times as many.

    Each stride x stride square of pixels becomes one place; the kernel is padded with zeros to whole squares and
    folded likewise. Tensor cores take channels in eights: of a stem that reads three, most of each went unused.
    """

    def forward(self, images: Tensor) -> Tensor:
        size, stride, padding = self.kernel_size[0], self.stride[0], int(self.padding[0])
        front = -padding % stride
        whole = math.ceil((size + front) / stride) * stride
        pad = [0, 0, 0, 0]
        for side, pixels in ((0, images.shape[-1]), (2, images.shape[-2])):
            places = (pixels + 2 * padding - size) // stride + 1
            pad[side] = padding + front
            pad[side + 1] = (places - 1) * stride + whole - pixels - pad[side]
        rest = whole - size - front
        parts = F.pad(images, pad), F.pad(self.weight, (front, rest, front, rest))
        folded, weight = (F.pixel_unshuffle(part, stride) for part in parts)
        spare = -folded.shape[1] % 8
        if spare:
            folded, weight = (F.pad(part, (0, 0, 0, 0, 0, spare)) for part in (folded, weight))
        return F.conv2d(folded.contiguous(memory_format=torch.channels_last), weight, self.bias)


class EvenMaxPool2d(nn.MaxPool2d):
    """3 x 3 with stride 2 and padding 1 of maps with even sides: a gradient is gathered from at most four places.

    Only where it is compiled into one kernel; otherwise, and for odd sides, it is torch's own.
    """

    def forward(self, maps: Tensor) -> Tensor:
        if not torch.compiler.is_compiling() or maps.shape[-1] % 2 or maps.shape[-2] % 2:
            return F.max_pool2d(maps, 3, 2, 1)
        made: Tensor = Highest.apply(maps.movedim(1, -1))
        return made.movedim(-1, 1)


class Highest(torch.autograd.Function):
    """(n, H, W, C) -> (n, H / 2, W / 2, C): the highest of nine, and in a byte which one, the first of equals."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor) -> Tensor:
        height, width = maps.shape[1:3]
        padded = F.pad(maps, (0, 0, 1, 0, 1, 0), value=-math.inf)
        best = padded[:, 0:height - 1:2, 0:width - 1:2]
        which = torch.zeros_like(best, dtype=torch.uint8)
        for place in range(1, 9):
            row, column = divmod(place, 3)
            seen = padded[:, row:row + height - 1:2, column:column + width - 1:2]
            better = (seen > best) | seen.isnan()
            best, which = torch.where(better, seen, best), torch.where(better, place, which)
        ctx.save_for_backward(which)
        return best.contiguous()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (which,), grad = ctx.saved_tensors, grads[0]

        def won(place: int) -> Tensor:
            return torch.where(which == place, grad, torch.zeros_like(grad))

        def below(part: Tensor) -> Tensor:
            return F.pad(part, (0, 0, 0, 0, 0, 1))[:, 1:]

        def right(part: Tensor) -> Tensor:
            return F.pad(part, (0, 0, 0, 1))[:, :, 1:]

        even = won(4), won(5) + right(won(3))  # of even rows: even columns lie in one window, odd ones in two
        odd = won(7) + below(won(1)), won(8) + right(won(6)) + below(won(2) + right(won(0)))
        rows = [torch.stack(row, dim=3) for row in (even, odd)]
        return torch.stack(rows, dim=2).flatten(1, 2).flatten(2, 3)


def arrange(module: nn.Module) -> None:
    """Give every layer that has one its arrangement for GPUs, in place."""
    for layer in module.modules():
        if _foldable(layer):
            layer.__class__ = FoldedConv2d
        elif _is_even_pool(layer):
            layer.__class__ = EvenMaxPool2d


def plain(module: nn.Module) -> None:
    """Take `arrange` back: whoever uses the encoder next finds torch's own layers."""
    for layer in module.modules():
        if isinstance(layer, FoldedConv2d | EvenMaxPool2d):
            layer.__class__ = type(layer).__mro__[1]


def _foldable(layer: nn.Module) -> bool:
    """A square, strided convolution of at most four channels, with zeros around its input."""
    return (
        type(layer) is nn.Conv2d and layer.in_channels <= 4 and layer.groups == 1 and layer.padding_mode == "zeros"
        and layer.dilation == (1, 1) and not isinstance(layer.padding, str) and layer.stride[0] > 1
        and all(len(set(sides)) == 1 for sides in (layer.kernel_size, layer.stride, layer.padding))
    )  # fmt: skip


def _is_even_pool(layer: nn.Module) -> bool:
    if type(layer) is not nn.MaxPool2d or layer.ceil_mode or layer.return_indices:
        return False
    return (layer.kernel_size, layer.stride, layer.padding, layer.dilation) == (3, 2, 1, 1)
