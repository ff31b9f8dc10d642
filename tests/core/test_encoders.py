"""Each encoder by name: width, stem, positions, frozen parts, errors."""

from __future__ import annotations

import math

import pytest
import torch

from supancl.core.encoders import EncoderSpec, sincos_positions
from tests.helpers import quickly_built

GREY = {"channels": 1, "mean": (0.5,), "std": (0.5,)}
CASES = {
    "resnet18": (EncoderSpec("resnet18", size=64), 512),
    "resnet18 grey": (EncoderSpec("resnet18", size=64, **GREY), 512),
    "resnet50": (EncoderSpec("resnet50", size=64), 2048),
    "cifar-resnet18": (EncoderSpec("cifar-resnet18", size=16), 512),
    "cifar-resnet18 grey": (EncoderSpec("cifar-resnet18", size=16, **GREY), 512),
    "vit-small": (EncoderSpec("vit-small", size=32), 384),
    "cnn": (EncoderSpec("cnn", size=8, width=32), 32),
    "cnn grey": (EncoderSpec("cnn", size=8, **GREY), 128),
    "linear": (EncoderSpec("linear", size=10, width=16, **GREY), 16),
    "timm:resnet10t": (EncoderSpec("timm:resnet10t", size=64), 512),
    "timm:resnet10t grey": (EncoderSpec("timm:resnet10t", size=64, **GREY), 512),
    "timm:vit_tiny_patch16_224 at 32": (EncoderSpec("timm:vit_tiny_patch16_224", size=32), 192),
}


@pytest.mark.parametrize("case", CASES)
def test_images_become_features_of_the_stated_width(case):
    spec, width = CASES[case]
    with quickly_built():
        encoder = spec.build()
    images = torch.randn(2, 10) if spec.name == "linear" else torch.randn(2, spec.channels, spec.size, spec.size)
    assert encoder.training
    assert encoder(images).shape == (2, width)
    assert (encoder.width, encoder.size) == (width, spec.size)
    assert (encoder.mean, encoder.std) == (spec.mean, spec.std)


def test_the_cifar_stem_keeps_the_resolution():
    with quickly_built():
        encoder = EncoderSpec("cifar-resnet18", size=32).build()
    stem = encoder.body.conv1
    assert (stem.kernel_size, stem.stride, stem.padding) == ((3, 3), (1, 1), (1, 1))
    seen = []
    encoder.body.layer1.register_forward_hook(lambda module, args, output: seen.append((args[0].shape, output.shape)))
    with torch.no_grad():
        encoder(torch.randn(2, 3, 32, 32))
    assert seen == [((2, 64, 32, 32), (2, 64, 32, 32))]


@pytest.mark.parametrize(("side", "width"), [(1, 8), (3, 16), (4, 384)])
def test_positions_are_the_sines_and_cosines_of_column_and_row(side, width):
    positions = sincos_positions(side, width)
    quarter = width // 4
    for row in range(side):
        for column in range(side):
            expected = []
            for place, function in ((row, math.sin), (row, math.cos), (column, math.sin), (column, math.cos)):
                expected += [function(place / 10000 ** (i / quarter)) for i in range(quarter)]
            torch.testing.assert_close(positions[row * side + column], torch.tensor(expected), rtol=1e-6, atol=1e-7)
    assert positions.shape == (side * side, width)


@pytest.fixture(scope="module")
def vit():
    torch.manual_seed(0)
    return EncoderSpec("vit-small", size=48).build()


def test_vit_positions_are_fixed_and_the_class_token_has_none(vit):
    position = vit.body.pos_embed
    assert position.shape == (1, 10, 384)
    assert position[0, 0].abs().max() == 0
    assert torch.equal(position[0, 1:], sincos_positions(3, 384))


def test_vit_trains_all_but_positions_and_patch_projection(vit):
    frozen = {name for name, p in vit.named_parameters() if not p.requires_grad}
    assert frozen == {"body.pos_embed", "body.patch_embed.proj.weight", "body.patch_embed.proj.bias"}
    vit(torch.randn(2, 3, 48, 48)).square().sum().backward()
    untouched = {name for name, p in vit.named_parameters() if p.grad is None}
    assert untouched == frozen
    vit.zero_grad()


def test_vit_is_moco_v3s_small_with_xavier_for_each_of_q_k_and_v(vit):
    assert len(vit.body.blocks) == 12
    assert {block.attn.num_heads for block in vit.body.blocks} == {12}
    for block in vit.body.blocks:
        bound = math.sqrt(6 / (384 + 384))
        for matrix in block.attn.qkv.weight.detach().chunk(3):
            assert 0.98 * bound < matrix.abs().max() <= bound
        bound = math.sqrt(6 / (384 + 1536))
        assert 0.98 * bound < block.mlp.fc1.weight.abs().max() <= bound
        assert block.mlp.fc1.bias.abs().max() == 0
    bound = math.sqrt(6 / (3 * 16 * 16 + 384))
    assert 0.98 * bound < vit.body.patch_embed.proj.weight.abs().max() <= bound
