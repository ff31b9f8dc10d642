"""Each operation against torchvision's, one image at a time, for the same parameters; and how boxes are drawn."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
import torchvision.transforms.v2.functional as TF
from scipy import stats
from torchvision.transforms.v2 import RandomResizedCrop

from supancl.data.views.augment import blur, crop_and_resize, jitter, jitter_in_place, shift_hue, solarize
from supancl.data.views.render import blur_by_products
from supancl.data.views.specs import CROP_ATTEMPTS, boxes_from_draws
from tests.helpers import seeded

RATIO = (3 / 4, 4 / 3)
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
HUE = 5e-6  # torchvision turns the hue in single precision
ORDERS = list(permutations(range(4)))  # at which place brightness, contrast, saturation and hue come


def pictures(n, height=12, width=12, channels=3, seed=0, dtype=torch.float64):
    return torch.rand(n, channels, height, width, generator=seeded(seed), dtype=dtype)


def draw_boxes(sizes, scale, ratio, generator=None):
    draws = torch.rand(4, len(sizes), CROP_ATTEMPTS, generator=generator, dtype=torch.float64)
    return boxes_from_draws(draws, sizes, scale, ratio)


def bytes_of(n, height=16, width=20, channels=3, seed=0):
    return torch.randint(0, 256, (n, channels, height, width), generator=seeded(seed), dtype=torch.uint8)


def cropped(image, box, size):
    top, left, height, width = (int(v) for v in box)
    return TF.resized_crop(image, top, left, height, width, [size, size], antialias=True)


# --- crops ---------------------------------------------------------------------------------------------------------


def jittered_by_torchvision(image, factors, hue, order):
    steps = [
        lambda x: TF.adjust_brightness(x, factors[0]), lambda x: TF.adjust_contrast(x, factors[1]),
        lambda x: TF.adjust_saturation(x, factors[2]), lambda x: TF.adjust_hue(x, hue),
    ]  # fmt: skip
    for _, step in sorted(zip(order, steps, strict=True), key=lambda pair: pair[0]):
        image = step(image)
    return image


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("height", "width", "size"), [(256, 320, 224), (96, 96, 64), (32, 32, 32), (90, 500, 48)])
def test_crops_as_drawn_are_torchvisions_to_a_trillionth_and_from_bytes_to_single_precision(
    height, width, size, channels
):
    pixels = bytes_of(4, height, width, channels)
    boxes = draw_boxes(torch.tensor([[height, width]]).expand(8, 2), (0.08, 1.0), RATIO, seeded(1))
    theirs = torch.stack([cropped(pixels[row % 4].double(), box, size) for row, box in enumerate(boxes)])
    exact = crop_and_resize(pixels.double(), boxes, size)  # eight rows of four images: row i is of image i % 4
    assert (exact - theirs).abs().max() < 255 * 1e-12
    assert (crop_and_resize(pixels, boxes, size) - theirs).abs().max() < 255 * 1e-6


# --- colour --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("turned", [False, True], ids=["as it lies", "turned in memory"])
@pytest.mark.parametrize("order", ORDERS[::5])
def test_jitter_in_place_is_the_jitter_of_rows_that_share_an_order(order, channels, turned):
    images = pictures(5, 9, 14, channels, seed=1)
    factors = 0.3 + 1.4 * torch.rand(5, 3, generator=seeded(2), dtype=torch.float64)
    hue = torch.rand(5, generator=seeded(3), dtype=torch.float64) - 0.5
    places = torch.tensor([order] * 5)
    expected = jitter(images, factors, hue, places)
    changed = images.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1) if turned else images.clone()
    jitter_in_place(changed, factors, hue, tuple(sorted(range(4), key=lambda step: order[step])))
    torch.testing.assert_close(changed, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("turns", [-0.5, -0.1, 0.05, 0.25, 0.5])
def test_hue_is_torchvisions_for_every_kind_of_colour(turns):
    level = torch.tensor([0.0, 0.25, 0.5, 1.0], dtype=torch.float64)
    colours = torch.cartesian_prod(level, level, level).T.reshape(1, 3, 8, 8)  # ties, greys, black and white among them
    ours = torch.stack(shift_hue(colours, torch.tensor([turns], dtype=torch.float64)), dim=1)
    torch.testing.assert_close(ours[0], TF.adjust_hue(colours[0], turns), rtol=0, atol=HUE)


def by_products(images, sigma, kernel):
    return blur_by_products(images.transpose(1, 2), sigma, kernel).transpose(1, 2)


@pytest.mark.parametrize("blurred", [blur, by_products])
@pytest.mark.parametrize(("height", "width"), [(12, 12), (5, 9), (70, 150)])
@pytest.mark.parametrize("kernel", [3, 5, 9, 17])
def test_blur_is_torchvisions_with_a_sigma_for_every_row(height, width, kernel, blurred):
    widest = [min(kernel, 2 * side - 1) for side in (width, height)]  # that torchvision can mirror
    images = pictures(5, height, width, dtype=torch.float32)
    sigma = torch.tensor([0.1, 0.5, 1.0, 2.0, 0.0])
    ours = blurred(images, sigma, kernel)
    for row in range(4):
        theirs = TF.gaussian_blur(images[row], widest, [float(sigma[row])] * 2)
        torch.testing.assert_close(ours[row], theirs, rtol=0, atol=1e-6)
    assert torch.equal(ours[4], images[4])


@pytest.mark.parametrize("threshold", [0.0, 0.25, 0.5, 128 / 255, 1.0])
@pytest.mark.parametrize("channels", [1, 3])
def test_solarising_is_torchvisions_the_threshold_itself_included(threshold, channels):
    images = torch.cat([pictures(2, 5, 8, channels), torch.full((1, channels, 5, 8), threshold, dtype=torch.float64)])
    assert torch.equal(solarize(images, threshold), TF.solarize(images, threshold))


# --- boxes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("height", "width", "scale", "ratio"),
    [
        (64, 64, (0.2, 1.0), RATIO), (32, 32, (0.08, 1.0), RATIO), (40, 120, (0.2, 1.0), RATIO),
        (120, 30, (0.2, 1.0), RATIO), (20, 200, (0.5, 1.0), RATIO), (200, 20, (0.3, 1.0), RATIO),
        (50, 60, (0.5, 0.9), (0.5, 2.0)), (60, 60, (0.2, 0.5), (0.5, 1.0)),
    ],
)  # fmt: skip
def test_boxes_are_distributed_as_torchvisions(height, width, scale, ratio):
    ours = draw_boxes(torch.tensor([[height, width]]).expand(3000, 2), scale, ratio, seeded(1))
    for name, pvalue in box_agreement(ours, torchvision_boxes(3000, height, width, scale, ratio)).items():
        assert pvalue > 1e-3, name


def torchvision_boxes(n, height, width, scale, ratio):
    torch.manual_seed(2)
    sampler, blank = RandomResizedCrop(8, scale, ratio), [torch.empty(1, height, width)]
    drawn = [sampler.make_params(blank) for _ in range(n)]
    return torch.tensor([[box[side] for side in ("top", "left", "height", "width")] for box in drawn])


def box_agreement(ours, theirs):
    """Of each summary of the boxes, how probable such a difference would be between samples of one distribution."""

    def summaries(box):
        top, left, h, w = box.double().unbind(1)
        sides = {"top": top, "left": left, "height": h, "width": w}
        return sides | {"area": h * w, "aspect": w / h, "right": left + w, "corner": top + left}

    pairs = {name: (values, summaries(theirs)[name]) for name, values in summaries(ours).items()}
    return {name: stats.ks_2samp(one.numpy(), other.numpy()).pvalue for name, (one, other) in pairs.items()}


@pytest.mark.parametrize(("height", "width"), [(10, 400), (400, 10), (7, 90), (30, 30)])
def test_a_box_that_never_fits_falls_back_to_torchvisions_centre(height, width):
    # an area of the whole image fits no allowed aspect but that of the image itself
    scale, ratio = (1.0, 1.0), RATIO if height != width else (1.5, 2.0)
    ours = draw_boxes(torch.tensor([[height, width]]), scale, ratio, seeded(0))
    assert ours.tolist() == torchvision_boxes(1, height, width, scale, ratio).tolist()
