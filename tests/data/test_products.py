"""Crop, resize and blur by matrix products: those of `augment` in single precision, and near them in half."""

from __future__ import annotations

import pytest
import torch

from supancl.data.views import augment
from supancl.data.views.augment import render_in_chunks
from supancl.data.views.render import crop_by_products, render
from supancl.data.views.specs import CROP_ATTEMPTS, Crops, boxes_from_draws
from tests.data.test_augment import bytes_of
from tests.helpers import draw, seeded

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
GREY_LEVEL = 1 / 255
PIXELS = bytes_of(4, 40, 56, seed=1)


@pytest.mark.parametrize("size", [16, 40, 64])
@pytest.mark.parametrize("views", [1, 2, 3])
def test_crops_by_products_are_crops_by_lines(size, views):
    sizes = torch.tensor([[40, 56]] * 4 * views)
    draws = torch.rand(4, len(sizes), CROP_ATTEMPTS, generator=seeded(2), dtype=torch.float64)
    box = boxes_from_draws(draws, sizes, (0.05, 1.0), (0.5, 2.0))
    flip = torch.rand(len(box), generator=seeded(3)) < 0.5
    image = torch.arange(4).repeat_interleave(views)  # the views of an image side by side
    rows, columns = augment.crop_taps(box, 40, 56, size, flip, torch.float32)
    expected = augment.resampled(PIXELS.float(), image, rows, columns)
    made = crop_by_products(PIXELS, box, size, flip, torch.float32).transpose(1, 2)
    torch.testing.assert_close(made, expected, rtol=0, atol=255e-6)
    half = crop_by_products(PIXELS, box, size, flip, torch.float16).transpose(1, 2)
    assert half.dtype == torch.float16
    assert 0 < (half.float() - expected).abs().max() < 0.25  # grey levels


@pytest.mark.parametrize("blur", [0.0, (1.0, 0.1)])
def test_views_in_half_precision_are_within_half_a_grey_level_before_they_are_rounded(blur):
    crops = Crops(size=48, blur=blur)
    draws = draw(crops, 8, torch.tensor([[40, 56]] * 8), seeded(4), 2)
    exact = render_in_chunks(crops, PIXELS, draws, (0.0,), (1.0,))
    half = render(crops, PIXELS, draws, (0.0,), (1.0,), torch.float16)  # bfloat16's rounding left out
    difference = (half.float() - exact).abs()
    assert 0 < difference.max() < 0.5 * GREY_LEVEL
    assert difference.mean() < 0.05 * GREY_LEVEL
    made = render(crops, PIXELS, draws, MEAN, STD, torch.bfloat16)
    assert made.dtype == torch.bfloat16
    assert made.is_contiguous(memory_format=torch.channels_last)
