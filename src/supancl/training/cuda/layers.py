"""Layers that compute what torch's own do, arranged otherwise: stems as a GPU likes them.

A layer changes its class: parameters, buffers and their names stay as they are. It is the run's own layer; whoever uses
the encoder afterwards gets one with torch's layers (Model.copy_encoder).
"""

from __future__ import annotations

import math

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


def optimize_for_cuda(module: nn.Module) -> None:
    """Give every layer that has one its arrangement for GPUs, in place."""
    for layer in module.modules():
        if _foldable(layer):
            layer.__class__ = FoldedConv2d


def _foldable(layer: nn.Module) -> bool:
    """A square, strided convolution of at most four channels, with zeros around its input."""
    return (
        type(layer) is nn.Conv2d and layer.in_channels <= 4 and layer.groups == 1 and layer.padding_mode == "zeros"
        and layer.dilation == (1, 1) and not isinstance(layer.padding, str) and layer.stride[0] > 1
        and all(len(set(sides)) == 1 for sides in (layer.kernel_size, layer.stride, layer.padding))
    )  # fmt: skip
