"""Layers with the results of torch's, computed in a way that is faster on a GPU.

Only the class of a layer changes; parameters, buffers and their names do not. They are used in training only: users of
the encoder get one with torch's layers (Model.copy_encoder).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FoldedConv2d(nn.Conv2d):
    """A strided convolution of few channels, computed as one of stride 1 with stride^2 times as many channels.

    Each stride x stride square of pixels becomes one pixel; the kernel is padded with zeros to full squares and folded
    in the same way. Tensor cores process eight channels at a time, so a stem with three wastes most of them.
    """

    def forward(self, images: Tensor) -> Tensor:
        size, stride, padding = self.kernel_size[0], self.stride[0], int(self.padding[0])
        front = -padding % stride
        padded_size = math.ceil((size + front) / stride) * stride
        pad = [0, 0, 0, 0]
        for side, pixels in ((0, images.shape[-1]), (2, images.shape[-2])):
            outputs = (pixels + 2 * padding - size) // stride + 1
            pad[side] = padding + front
            pad[side + 1] = (outputs - 1) * stride + padded_size - pixels - pad[side]
        back = padded_size - size - front
        padded = F.pad(images, pad), F.pad(self.weight, (front, back, front, back))
        folded, weight = (F.pixel_unshuffle(tensor, stride) for tensor in padded)
        extra_channels = -folded.shape[1] % 8
        if extra_channels:
            folded, weight = (F.pad(tensor, (0, 0, 0, 0, 0, extra_channels)) for tensor in (folded, weight))
        return F.conv2d(folded.contiguous(memory_format=torch.channels_last), weight, self.bias)


def optimize_for_cuda(module: nn.Module) -> None:
    """Change the layers that have a faster form on GPUs, in place."""
    for layer in module.modules():
        if _is_foldable(layer):
            layer.__class__ = FoldedConv2d


def _is_foldable(layer: nn.Module) -> bool:
    """Whether it is a square, strided convolution of at most four channels with zero padding."""
    return (
        type(layer) is nn.Conv2d and layer.in_channels <= 4 and layer.groups == 1 and layer.padding_mode == "zeros"
        and layer.dilation == (1, 1) and not isinstance(layer.padding, str) and layer.stride[0] > 1
        and all(len(set(sides)) == 1 for sides in (layer.kernel_size, layer.stride, layer.padding))
    )  # fmt: skip
