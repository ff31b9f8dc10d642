"""The arranged layers give what torch's own give, values and gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from supancl.core.encoders import EncoderSpec
from supancl.training.speed import FoldedConv2d, optimize_for_cuda
from tests.helpers import seeded


def made_and_gradients(layer, images):
    images = images.clone().requires_grad_()
    made = layer(images)
    weights = torch.randn(made.shape, generator=seeded(7), dtype=made.dtype)
    return made, *torch.autograd.grad((made * weights).sum(), [images, *layer.parameters()])


@pytest.mark.parametrize(("size", "stride", "padding", "side"), [
    (7, 2, 3, 32), (7, 2, 3, 33), (16, 16, 0, 48), (3, 2, 1, 20), (4, 4, 0, 33), (5, 2, 1, 21), (2, 2, 0, 9),
    (3, 3, 2, 17), (8, 4, 3, 30),
])  # fmt: skip
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_folded_convolution_is_the_convolution(size, stride, padding, side, channels):
    torch.manual_seed(0)
    conv = nn.Conv2d(channels, 6, size, stride, padding).double()
    images = torch.randn(2, channels, side, side + 5, generator=seeded(1), dtype=torch.float64)
    expected = made_and_gradients(conv, images)
    optimize_for_cuda(conv)
    assert type(conv) is FoldedConv2d
    for found, right in zip(made_and_gradients(conv, images), expected, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-12)


def test_an_encoder_with_arranged_layers_gives_the_same_features():
    torch.manual_seed(0)
    encoder = EncoderSpec("resnet18", size=64).build().double().eval()
    names = list(encoder.state_dict())
    images = torch.randn(2, 3, 64, 64, generator=seeded(4), dtype=torch.float64)
    expected, other = encoder(images), copy.deepcopy(encoder)
    optimize_for_cuda(other)
    assert sum(isinstance(layer, FoldedConv2d) for layer in other.modules()) == 1
    torch.testing.assert_close(other(images), expected, rtol=1e-12, atol=1e-12)
    assert list(other.state_dict()) == names


def test_layers_that_would_gain_nothing_or_change_stay_as_they_are():
    layers = [
        nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(64, 8, 3, stride=2), nn.Conv2d(3, 8, 4, 2, padding_mode="reflect"),
        nn.Conv2d(3, 8, (3, 5), 2), nn.Conv2d(4, 8, 3, 2, groups=2), nn.Conv2d(3, 8, 3, 2, dilation=2),
        nn.Conv2d(3, 8, 3, (2, 1)), nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    for layer in layers:
        before = type(layer)
        optimize_for_cuda(layer)
        assert type(layer) is before
