"""Batched views against torchvision, one image at a time, and the distribution of what is drawn."""

from __future__ import annotations

import math
from itertools import permutations

import pytest
import torch
import torchvision.transforms.v2.functional as TF
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torchvision.transforms import RandomResizedCrop

from supancl.data.images import Batch, padded
from supancl.data.views import (
    Crops,
    Masks,
    blur,
    crop_and_resize,
    draw_boxes,
    evaluation_view,
    jitter,
    jitter_grey,
    kernel_size,
    luma,
    normalized,
    shift_hue,
)
from tests.helpers import property_test, seeded

RATIO = (3 / 4, 4 / 3)
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
HUE = 5e-6  # torchvision turns the hue in single precision
ORDERS = list(permutations(range(4)))  # at which place brightness, contrast, saturation and hue come


def pictures(n, height=12, width=12, channels=3, seed=0, dtype=torch.float64):
    return torch.rand(n, channels, height, width, generator=seeded(seed), dtype=dtype)


def bytes_of(n, height=16, width=20, channels=3, seed=0):
    return torch.randint(0, 256, (n, channels, height, width), generator=seeded(seed), dtype=torch.uint8)


def cropped(image, box, size):
    top, left, height, width = (int(v) for v in box)
    return TF.resized_crop(image, top, left, height, width, [size, size], antialias=True)


# --- crops ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 16, 32, 45], ids=lambda s: f"to {s}")
@pytest.mark.parametrize(("height", "width"), [(32, 32), (20, 47), (50, 9)])
def test_a_crop_is_torchvisions_antialiased_one(size, height, width):
    boxes = [
        (0, 0, height, width), (0, 0, 1, 1), (height - 1, width - 1, 1, 1), (3, 2, 5, 7), (height - 9, width - 4, 9, 4),
        (1, 0, 2, width), (0, 1, height, 3),
    ]  # fmt: skip
    images = pictures(len(boxes), height, width)
    ours = crop_and_resize(images, torch.tensor(boxes).float(), size)
    theirs = torch.stack([cropped(image, box, size) for image, box in zip(images, boxes, strict=True)])
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@property_test
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.data())
def test_any_box_of_any_image_is_torchvisions(height, width, size, data):
    h, w = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
    box = data.draw(st.integers(0, height - h)), data.draw(st.integers(0, width - w)), h, w
    image = pictures(1, height, width, seed=height * width)
    ours = crop_and_resize(image, torch.tensor([box]).float(), size)
    torch.testing.assert_close(ours[0], cropped(image[0], box, size), rtol=1e-9, atol=1e-9)


def test_a_flipped_crop_is_the_mirrored_crop_and_only_where_asked():
    images, box = pictures(3, 20, 30), torch.tensor([[2.0, 3, 10, 20]] * 3)
    flip = torch.tensor([True, False, True])
    plain, flipped = crop_and_resize(images, box, 8), crop_and_resize(images, box, 8, flip)
    torch.testing.assert_close(flipped[flip], plain[flip].flip(-1))
    assert torch.equal(flipped[~flip], plain[~flip])


def test_the_whole_image_at_its_own_size_is_the_image():
    images = pictures(2, 13, 13)
    whole = torch.tensor([[0.0, 0, 13, 13]] * 2)
    torch.testing.assert_close(crop_and_resize(images, whole, 13), images, rtol=0, atol=1e-15)


@pytest.mark.parametrize("make", [Crops(size=9), "evaluation"], ids=["crops", "evaluation"])
def test_padding_does_not_leak_into_any_view(make):
    images = [bytes_of(1, h, w, seed=h)[0] for h, w in ((10, 30), (25, 8), (17, 17), (30, 30))]
    batch = padded(images)
    loud = batch.pixels.clone()
    for row, (height, width) in zip(loud, batch.sizes.tolist(), strict=True):
        row[:, height:], row[:, :, width:] = 255, 255

    def views(pixels, sizes):
        if make == "evaluation":
            return evaluation_view(Batch(pixels, sizes), 9, MEAN, STD)
        return make(Batch(pixels, sizes), MEAN, STD, seeded(0))

    assert not torch.equal(loud, batch.pixels)
    assert torch.equal(views(loud, batch.sizes), views(batch.pixels, batch.sizes))


def test_an_image_has_the_same_evaluation_view_alone_and_in_a_ragged_batch():
    images = [bytes_of(1, h, w, seed=h)[0] for h, w in ((80, 130), (95, 70), (17, 23))]
    together = evaluation_view(padded(images), 24, MEAN, STD)
    for view, image in zip(together, images, strict=True):
        torch.testing.assert_close(view, evaluation_view(padded([image]), 24, MEAN, STD)[0], rtol=1e-4, atol=1e-5)


# --- colour --------------------------------------------------------------------------------------------------------


def jittered_by_torchvision(image, factors, hue, order):
    steps = [
        lambda x: TF.adjust_brightness(x, factors[0]), lambda x: TF.adjust_contrast(x, factors[1]),
        lambda x: TF.adjust_saturation(x, factors[2]), lambda x: TF.adjust_hue(x, hue),
    ]  # fmt: skip
    for _, step in sorted(zip(order, steps, strict=True), key=lambda pair: pair[0]):
        image = step(image)
    return image


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: "".join("bcsh"[order.index(p)] for p in range(4)))
def test_jitter_is_torchvisions_functions_in_the_given_order(order):
    n = 6
    images = pictures(n, seed=1)
    factors = 0.3 + 1.4 * torch.rand(n, 3, generator=seeded(2), dtype=torch.float64)
    hue = torch.rand(n, generator=seeded(3), dtype=torch.float64) - 0.5
    ours = jitter(images, factors, hue, torch.tensor([order] * n))
    for row in range(n):
        theirs = jittered_by_torchvision(images[row], factors[row].tolist(), float(hue[row]), order)
        torch.testing.assert_close(ours[row], theirs, rtol=0, atol=HUE)


def test_every_row_of_a_batch_is_jittered_in_its_own_order():
    images = pictures(1, seed=1).expand(24, -1, -1, -1)
    factors, hue = torch.tensor([[1.4, 0.6, 1.3]] * 24).double(), torch.full((24,), 0.1, dtype=torch.float64)
    ours = jitter(images, factors, hue, torch.tensor(ORDERS))
    for row, order in enumerate(ORDERS):
        theirs = jittered_by_torchvision(images[0], [1.4, 0.6, 1.3], 0.1, order)
        torch.testing.assert_close(ours[row], theirs, rtol=0, atol=HUE)
    assert len({tuple(image.flatten().tolist()) for image in ours}) > 12


def test_factors_of_one_and_no_hue_leave_an_image_exactly_as_it_is():
    images = pictures(24, dtype=torch.float32)
    assert torch.equal(jitter(images, torch.ones(24, 3), torch.zeros(24), torch.tensor(ORDERS)), images)
    grey = pictures(24, channels=1, dtype=torch.float32)
    torch.testing.assert_close(jitter_grey(grey, torch.ones(24, 3), torch.tensor(ORDERS)), grey, rtol=0, atol=1e-6)


def test_a_grey_image_is_jittered_in_brightness_and_contrast_in_the_given_order():
    images = pictures(24, channels=1, seed=1)
    factors = 0.3 + 1.4 * torch.rand(24, 3, generator=seeded(2), dtype=torch.float64)
    ours = jitter_grey(images, factors, torch.tensor(ORDERS))
    for row, order in enumerate(ORDERS):
        # torchvision leaves the saturation of a grey image alone; hue it would refuse
        theirs = jittered_by_torchvision(images[row], factors[row].tolist(), 0.0, order)
        torch.testing.assert_close(ours[row], theirs, rtol=0, atol=1e-7)


@pytest.mark.parametrize("turns", [-0.5, -0.1, 0.05, 0.25, 0.5])
def test_hue_is_torchvisions_for_every_kind_of_colour(turns):
    level = torch.tensor([0.0, 0.25, 0.5, 1.0], dtype=torch.float64)
    colours = torch.cartesian_prod(level, level, level).T.reshape(1, 3, 8, 8)  # ties, greys, black and white among them
    ours = shift_hue(colours, torch.tensor([turns], dtype=torch.float64))
    torch.testing.assert_close(ours[0], TF.adjust_hue(colours[0], turns), rtol=0, atol=HUE)


def test_luma_is_torchvisions_grey():
    images = pictures(3)
    torch.testing.assert_close(luma(images), TF.rgb_to_grayscale(images), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("height", "width"), [(12, 12), (9, 31)])
@pytest.mark.parametrize("kernel", [3, 5, 9])
def test_blur_is_torchvisions_with_a_sigma_for_every_row(height, width, kernel):
    images = pictures(5, height, width, dtype=torch.float32)
    sigma = torch.tensor([0.1, 0.5, 1.0, 2.0, 0.0])
    ours = blur(images, sigma, kernel)
    for row in range(4):
        theirs = TF.gaussian_blur(images[row], [kernel, kernel], [float(sigma[row])] * 2)
        torch.testing.assert_close(ours[row], theirs, rtol=0, atol=1e-6)
    assert torch.equal(ours[4], images[4])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_blur_of_an_image_smaller_than_its_kernel_keeps_a_flat_image_flat(size):
    flat = torch.full((1, 3, size, size), 0.7)
    torch.testing.assert_close(blur(flat, torch.tensor([1.5]), 9), flat)


@pytest.mark.parametrize(("size", "expected"), [(224, 23), (32, 5), (8, 3), (1, 3), (96, 11)])
def test_the_kernel_is_odd_and_about_a_tenth_of_the_side(size, expected):
    assert kernel_size(size) == expected


def test_normalising_takes_away_the_mean_and_divides_by_the_std():
    images = pictures(2)
    torch.testing.assert_close(normalized(images, MEAN, STD), TF.normalize(images, list(MEAN), list(STD)))


# --- the whole view ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
def test_a_view_is_torchvisions_functions_with_the_drawn_parameters(channels):
    crops, n, views = Crops(size=14, blur=0.6, grey=0.3), 12, 3
    mean, std = MEAN[:channels], STD[:channels]
    batch = Batch(bytes_of(n, 24, 31, channels))
    result = crops(batch, mean, std, seeded(5), views)
    draws = crops.draw(n * views, torch.tensor([[24, 31]] * n * views), seeded(5))
    assert result.shape == (views, n, channels, 14, 14)
    for row in range(n * views):
        image = batch.pixels[row % n].double() / 255
        image = cropped(image, draws.box[row], 14)
        image = image.flip(-1) if draws.flip[row] else image
        hue = float(draws.hue[row]) if channels == 3 else 0.0
        image = jittered_by_torchvision(image, draws.factors[row].tolist(), hue, draws.order[row].tolist())
        if draws.grey[row] and channels == 3:
            image = TF.rgb_to_grayscale(image, num_output_channels=3)
        if draws.sigma[row] > 0:
            image = TF.gaussian_blur(image, [kernel_size(14)] * 2, [float(draws.sigma[row])] * 2)
        expected = TF.normalize(image, list(mean), list(std)).float()
        torch.testing.assert_close(result[row // n, row % n], expected, rtol=0, atol=2e-4)


def test_with_nothing_drawn_a_view_is_the_image():
    crops = Crops(size=16, scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0, jitter=0, grey=0, blur=0)
    pixels = bytes_of(3, 16, 16)
    expected = normalized(pixels / 255, MEAN, STD).expand(2, -1, -1, -1, -1)
    torch.testing.assert_close(crops(Batch(pixels), MEAN, STD, seeded(0)), expected, rtol=0, atol=1e-5)


def test_jitter_of_an_image_stays_between_black_and_white():
    crops = Crops(size=8, jitter=1.0, brightness=1.0, contrast=1.0, saturation=1.0, hue=0.5)
    views = crops(Batch(bytes_of(64)), (0.0,) * 3, (1.0,) * 3, seeded(0))
    assert views.isfinite().all()
    assert views.min() >= -1e-6
    assert views.max() <= 1 + 1e-6


@pytest.mark.parametrize("views", [Crops(size=8), Masks()], ids=["crops", "masks"])
def test_the_same_generator_state_gives_the_same_views_and_another_gives_others(views):
    batch = Batch(bytes_of(4)) if isinstance(views, Crops) else Batch(torch.randn(4, 10, generator=seeded(1)))
    one, same, other = (views(batch, MEAN, STD, seeded(seed)) for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("views", [Crops(size=8), Masks()], ids=["crops", "masks"])
def test_the_global_generator_is_neither_used_nor_moved(views):
    batch = Batch(bytes_of(4)) if isinstance(views, Crops) else Batch(torch.randn(4, 10, generator=seeded(1)))
    torch.manual_seed(0)
    before = torch.get_rng_state()
    one = views(batch, MEAN, STD, seeded(0))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(views(batch, MEAN, STD, seeded(0)), one)


def test_every_row_and_every_view_has_its_own_draw():
    batch = Batch(bytes_of(1).expand(8, -1, -1, -1))
    views = Crops(size=8)(batch, MEAN, STD, seeded(0)).flatten(0, 1)
    distances = torch.cdist(views.flatten(1), views.flatten(1)) + torch.eye(16) * 1e9
    assert distances.min() > 1e-3


N = 20000


def draws_of(crops, height=48, width=64):
    return crops.draw(N, torch.tensor([[height, width]]).expand(N, 2), seeded(11))


@pytest.mark.parametrize("probability", [0.0, 0.2, 0.5, 0.8, 1.0])
def test_each_step_happens_with_its_probability(probability):
    draws = draws_of(Crops(flip=probability, jitter=probability, grey=probability, blur=probability))
    happened = {
        "flip": draws.flip, "grey": draws.grey, "blur": draws.sigma > 0, "hue": draws.hue != 0,
        "factors": (draws.factors != 1).all(1),
    }  # fmt: skip
    bound = 4.5 * math.sqrt(probability * (1 - probability) / N) + 1e-12
    for name, yes in happened.items():
        assert abs(yes.double().mean().item() - probability) <= bound, name


def test_steps_are_drawn_independently_of_one_another():
    draws = draws_of(Crops(jitter=0.5, grey=0.5))
    happened = torch.stack([draws.flip, draws.grey, draws.sigma > 0, draws.hue != 0]).double()
    correlation = torch.corrcoef(happened) - torch.eye(4)
    assert correlation.abs().max() < 4.5 / math.sqrt(N)


def test_strengths_are_uniform_in_their_ranges():
    draws = draws_of(Crops(jitter=1.0, blur=1.0, brightness=0.4, contrast=0.3, saturation=0.2, hue=0.1))
    ranges = [(draws.factors[:, i], 1 - s, 2 * s) for i, s in enumerate((0.4, 0.3, 0.2))]
    ranges += [(draws.hue, -0.1, 0.2), (draws.sigma, 0.1, 1.9)]
    for values, low, length in ranges:
        assert stats.kstest(values.double().numpy(), stats.uniform(low, length).cdf).pvalue > 1e-4


def test_the_four_steps_of_the_jitter_come_in_each_order_equally_often():
    order = draws_of(Crops()).order
    assert torch.equal(order.sort(1).values, torch.arange(4).expand(N, 4))
    _, counts = order.unique(dim=0, return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts.numpy()).pvalue > 1e-4


@pytest.mark.parametrize(
    ("height", "width", "scale", "ratio"),
    [
        (64, 64, (0.2, 1.0), RATIO), (32, 32, (0.08, 1.0), RATIO), (40, 120, (0.2, 1.0), RATIO),
        (120, 30, (0.2, 1.0), RATIO), (20, 200, (0.5, 1.0), RATIO), (200, 20, (0.3, 1.0), RATIO),
        (50, 60, (0.5, 0.9), (0.5, 2.0)),
    ],
)  # fmt: skip
def test_boxes_are_distributed_as_torchvisions(height, width, scale, ratio):
    n = 3000
    ours = draw_boxes(torch.tensor([[height, width]]).expand(n, 2), scale, ratio, seeded(1)).double()
    torch.manual_seed(2)
    blank = torch.empty(1, height, width)
    theirs = torch.tensor([RandomResizedCrop.get_params(blank, scale, ratio) for _ in range(n)], dtype=torch.float64)

    def summaries(box):
        top, left, h, w = box.unbind(1)
        return {"top": top, "left": left, "height": h, "width": w, "area": h * w, "aspect": w / h, "right": left + w}

    for name, values in summaries(ours).items():
        assert stats.ks_2samp(values.numpy(), summaries(theirs)[name].numpy()).pvalue > 1e-3, name


@pytest.mark.parametrize(("height", "width"), [(10, 400), (400, 10), (7, 90), (30, 30)])
def test_a_box_that_never_fits_falls_back_to_torchvisions_centre(height, width):
    # an area of the whole image fits no allowed aspect but that of the image itself
    scale, ratio = (1.0, 1.0), RATIO if height != width else (1.5, 2.0)
    ours = draw_boxes(torch.tensor([[height, width]]), scale, ratio, seeded(0))
    theirs = RandomResizedCrop.get_params(torch.empty(1, height, width), scale, ratio)
    assert ours[0].tolist() == list(theirs)


@property_test
@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=20), st.integers(0, 10**6))
def test_boxes_lie_inside_their_own_images(sizes, seed):
    sizes = torch.tensor(sizes)
    top, left, height, width = draw_boxes(sizes, (0.2, 1.0), RATIO, seeded(seed)).unbind(1)
    assert (torch.minimum(top, left) >= 0).all()
    assert (torch.minimum(height, width) >= 1).all()
    assert (top + height <= sizes[:, 0]).all()
    assert (left + width <= sizes[:, 1]).all()


# --- masks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.6, 1.0])
def test_exactly_that_share_is_masked_in_every_view_of_every_vector(share):
    vectors = torch.rand(50, 20, generator=seeded(0)) + 1
    views = Masks(share=share)(Batch(vectors), (0.0,), (1.0,), seeded(1), views=2)
    assert views.shape == (2, 50, 20)
    kept = views != 0
    assert torch.equal((~kept).sum(-1), torch.full((2, 50), round(share * 20)))
    assert torch.equal(views[kept], vectors.expand(2, -1, -1)[kept])


def test_every_dimension_is_masked_equally_often_and_views_apart():
    vectors = torch.ones(4000, 10)
    masked = Masks(share=0.3)(Batch(vectors), (0.0,), (1.0,), seeded(1)) == 0
    assert stats.chisquare(masked.sum((0, 1)).numpy()).pvalue > 1e-4
    both = (masked[0] & masked[1]).double().mean().item()
    assert abs(both - 0.09) < 0.01


# --- evaluation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("height", "width"), [(256, 256), (256, 320), (300, 256)])
def test_at_256_the_evaluation_view_is_the_central_224_pixels(height, width):
    pixels = bytes_of(1, height, width)
    top, left = (height - 224) // 2, (width - 224) // 2
    expected = normalized(pixels[..., top : top + 224, left : left + 224] / 255, MEAN, STD)
    torch.testing.assert_close(evaluation_view(Batch(pixels), 224, MEAN, STD), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("size", [24, 56, 112])
def test_the_evaluation_view_is_a_centre_crop_of_seven_eighths_of_the_short_side(size):
    pixels = bytes_of(2, 128, 160)
    expected = torch.stack([cropped(image.double() / 255, (8, 24, 112, 112), size) for image in pixels])
    expected = TF.normalize(expected, list(MEAN), list(STD)).float()
    torch.testing.assert_close(evaluation_view(Batch(pixels), size, MEAN, STD), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("side", [8, 28, 32])
def test_a_small_image_at_its_own_size_is_evaluated_whole(side):
    pixels = bytes_of(2, side, side)
    expected = normalized(pixels / 255, MEAN, STD)
    torch.testing.assert_close(evaluation_view(Batch(pixels), side, MEAN, STD), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("side", "size"), [(32, 64), (64, 64), (96, 96), (100, 224), (200, 224)])
def test_an_image_no_larger_than_the_view_is_resized_whole(side, size):
    pixels = bytes_of(1, side, side)
    expected = normalized(crop_and_resize(pixels, torch.tensor([[0.0, 0, side, side]]), size) / 255, MEAN, STD)
    torch.testing.assert_close(evaluation_view(Batch(pixels), size, MEAN, STD), expected, rtol=0, atol=1e-4)


def test_vectors_are_evaluated_as_they_are():
    vectors = torch.randn(3, 5)
    assert torch.equal(evaluation_view(Batch(vectors), 5, (0.0,), (1.0,)), vectors)
