"""The view without randomness against torchvision: the box of every shape, the pixels of some."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest
import torch
import torchvision.transforms.v2 as T
import torchvision.transforms.v2.functional as TF
from PIL import Image

from supancl.data.decode import decode
from supancl.data.store.memory import Batch
from supancl.data.views.augment import normalized
from supancl.data.views.render import evaluation_short_side, evaluation_view, margin_boxes
from tests.data.test_augment import MEAN, STD
from tests.helpers import noise

SIZES = (32, 48, 64, 96, 128, 160, 192, 224)
SIDES = range(30, 401)


@cache
def offset(length: int, crop: int) -> int:
    """Where torchvision's CenterCrop begins along a side."""
    return int(TF.center_crop(torch.arange(length)[None], [1, crop])[0, 0])


def crop_of(short: int, size: int) -> int:
    """How wide the crop of an image up to 8/7 of `size` is: all of a small one, else `size` at 8/7, else 7/8 of it."""
    if short <= size:
        return short
    return size if short == round(size * 8 / 7) else round(short * 7 / 8)


@pytest.mark.parametrize("size", SIZES)
def test_the_box_of_every_shape_is_that_of_torchvisions_centre_crop(size):
    side = torch.arange(SIDES.start, SIDES.stop)
    sizes = torch.cartesian_prod(side, side)
    sizes = sizes[sizes.amin(1) <= round(size * 8 / 7)]
    crops = [crop_of(short, size) for short in SIDES]
    of_short = torch.tensor(crops)[sizes.amin(1) - SIDES.start]
    table = torch.full((SIDES.stop, SIDES.stop), -1)
    for crop in set(crops):
        for length in SIDES:
            if length >= crop:
                table[length, crop] = offset(length, crop)
    expected = torch.stack([table[sizes[:, 0], of_short], table[sizes[:, 1], of_short], of_short, of_short], dim=1)
    assert int(expected.min()) >= 0
    assert torch.equal(margin_boxes(sizes, size), expected.double())


def by_torchvision(image: Image.Image, size: int) -> torch.Tensor:
    """(3, size, size) in [0, 1]: what is larger than the margin needs is resized by Pillow, the rest in floats."""
    margin = round(size * 8 / 7)
    if min(image.size) > margin:
        image = T.Resize(margin)(image)
    crop = T.CenterCrop(crop_of(min(image.size), size))(image)
    pixels = torch.from_numpy(np.array(crop)).permute(2, 0, 1)
    return TF.resize(pixels.double() / 255, [size, size], antialias=True)


def test_the_pixels_of_200_shapes_are_torchvisions():
    draw = random.Random(0)
    for number in range(200):
        size, height, width = draw.choice(SIZES), draw.choice(SIDES), draw.choice(SIDES)
        image = Image.fromarray(noise(height, width, 3, seed=number))
        pixels = decode(image, 3, short_side=round(size * 8 / 7))
        expected = TF.normalize(by_torchvision(image, size), list(MEAN), list(STD)).float()
        found = evaluation_view(Batch(pixels[None]), size, MEAN, STD)[0]
        torch.testing.assert_close(
            found, expected, rtol=0, atol=2e-5, msg=lambda said, at=(height, width, size): f"{at}: {said}"
        )


def test_larger_images_in_memory_have_the_view_of_their_files():
    """Resized and then cut, as Pillow does it: at most one of 255 levels apart. Padding does not leak in."""
    draw = random.Random(1)
    for number in range(60):
        size = draw.choice(SIZES)
        height, width = (draw.randint(round(size * 8 / 7) + 1, 3 * size) for _ in range(2))
        pixels = torch.from_numpy(noise(height, width, 3, seed=number)).permute(2, 0, 1)
        decoded = decode(Image.fromarray(noise(height, width, 3, seed=number)), 3, round(size * 8 / 7))
        expected = evaluation_view(Batch(decoded[None]), size, (0.0,), (1.0,))
        padded = torch.nn.functional.pad(pixels, (0, 5, 0, 9), value=255)[None]
        for batch in (Batch(pixels[None]), Batch(padded, torch.tensor([[height, width]]))):
            found = evaluation_view(batch, size, (0.0,), (1.0,))
            assert ((found - expected).abs() * 255).max() < 1.01, (height, width, size)


@pytest.mark.parametrize("size", SIZES)
def test_the_whole_view_crops_as_torchvision_too(size):
    for long in range(size, size + 6):
        pixels = torch.from_numpy(noise(1, 3, long, size, seed=long))
        expected = normalized(TF.center_crop(pixels, [size, size]) / 255, MEAN, STD)
        assert torch.equal(evaluation_view(Batch(pixels), size, MEAN, STD, "whole"), expected)


def test_the_whole_view_enlarges_as_pillow_does():
    image = Image.fromarray(noise(20, 31, 3))
    enlarged = TF.center_crop(TF.resize(image, 32, T.InterpolationMode.BICUBIC), [32, 32])  # to (32, 49)
    expected = torch.from_numpy(np.array(enlarged)).permute(2, 0, 1)
    found = evaluation_view(Batch(decode(image)[None]), 32, (0.0,), (1.0,), "whole")[0] * 255
    assert (found - expected).abs().max() < 1.01


def test_vectors_stay_and_files_are_decoded_no_larger_than_a_view_needs():
    vectors = torch.rand(3, 5)
    assert torch.equal(evaluation_view(Batch(vectors), 5, (0.0,), (1.0,)), vectors)
    assert (evaluation_short_side(224), evaluation_short_side(224, "whole")) == (256, 224)
