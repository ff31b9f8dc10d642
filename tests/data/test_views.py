"""Whole views against torchvision, one image at a time, both routes against each other, and what is drawn."""

from __future__ import annotations

import pytest
import torch
import torchvision.transforms.v2 as T
import torchvision.transforms.v2.functional as TF
from scipy import stats

from supancl.data.store.memory import Batch, pad_images
from supancl.data.views.augment import Draws, kernel_size, render_in_chunks
from supancl.data.views.render import evaluation_view, render
from supancl.data.views.specs import Crops, LocalCrops, Masks
from supancl.distributed import RowRange
from tests.data.test_augment import MEAN, STD, bytes_of, cropped, jittered_by_torchvision
from tests.helpers import draw, seeded


@pytest.mark.parametrize("make", [Crops(size=9), "evaluation"], ids=["crops", "evaluation"])
def test_padding_does_not_leak_into_any_view(make):
    images = [bytes_of(1, h, w, seed=h)[0] for h, w in ((10, 30), (25, 8), (17, 17), (30, 30))]
    batch = pad_images(images)
    loud = batch.pixels.clone()
    for row, (height, width) in zip(loud, batch.sizes.tolist(), strict=True):
        row[:, height:], row[:, :, width:] = 255, 255

    def views(pixels, sizes):
        if make == "evaluation":
            return evaluation_view(Batch(pixels, sizes), 9, MEAN, STD)
        return make(Batch(pixels, sizes), MEAN, STD, seeded(0))

    assert not torch.equal(loud, batch.pixels)
    assert torch.equal(views(loud, batch.sizes), views(batch.pixels, batch.sizes))


# --- the whole view ------------------------------------------------------------------------------------------------


BYOL = Crops(size=14, blur=(1.0, 0.1), solarize=(0.0, 0.7), grey=0.3)
ONLY_HUE = Crops(size=14, brightness=0.0, contrast=0.0, saturation=0.0)
KINDS = {"simclr": Crops(size=14, blur=0.6, grey=0.3), "byol": BYOL, "hue": ONLY_HUE, "no hue": Crops(size=14, hue=0.0)}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("crops", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("route", [render, render_in_chunks])
def test_a_view_is_torchvisions_functions_with_the_drawn_parameters(crops, channels, route):
    n, views = 12, 3
    mean, std = MEAN[:channels], STD[:channels]
    pixels = bytes_of(n, 24, 31, channels)
    draws = draw(crops, n * views, torch.tensor([[24, 31]] * n * views), seeded(5), views)
    result = route(crops, pixels, draws, mean, std)
    assert result.shape == (n * views, channels, 14, 14)
    for row in range(n * views):
        image = cropped(pixels[row % n].double() / 255, draws.box[row], 14)
        image = image.flip(-1) if draws.flip[row] else image
        hue = float(draws.hue[row]) if channels == 3 else 0.0
        image = jittered_by_torchvision(image, draws.factors[row].tolist(), hue, draws.order[row].tolist())
        if draws.grey[row] and channels == 3:
            image = TF.rgb_to_grayscale(image, num_output_channels=3)
        if draws.sigma[row] > 0:
            image = TF.gaussian_blur(image, [kernel_size(14)] * 2, [float(draws.sigma[row])] * 2)
        if draws.solarize is not None and draws.solarize[row]:
            # a value within rounding of the threshold may fall on either side of it
            image = torch.where((image - 0.5).abs() < 1e-5, torch.nan, TF.solarize(image, 0.5))
        expected = TF.normalize(image, list(mean), list(std)).float()
        ours = torch.where(expected.isnan(), expected, result[row])
        torch.testing.assert_close(ours, expected, rtol=0, atol=3e-5, equal_nan=True)


def test_a_wide_blur_needs_no_more_pixels_than_its_sigma():
    crops, pixels = Crops(size=160, blur=1.0, blur_sigma=(0.5, 1.0)), bytes_of(2, 170, 165)
    draws = draw(crops, 4, torch.tensor([[170, 165]] * 4), seeded(5), 2)
    views = render_in_chunks(crops, pixels, draws, MEAN, STD)
    torch.testing.assert_close(views, render(crops, pixels, draws, MEAN, STD), rtol=0, atol=3e-5)
    assert [kernel_size(size) for size in (8, 14, 160, 224)] == [3, 3, 17, 23]


def some_rows(draws: Draws, rows: torch.Tensor) -> Draws:
    return Draws._make(None if drawn is None else drawn[rows] for drawn in draws)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [8, 9, 24, 32, 65, 96, 160, 224])
def test_a_row_has_the_same_bits_whichever_rows_are_rendered_with_it(size, channels):
    """Images of differing sizes, so that the canvas depends on the neighbours too."""
    count, mean, std = 8, MEAN[:channels], STD[:channels]
    sides = torch.randint(size // 2, 2 * size, (count, 2), generator=seeded(size)).tolist()
    images = [bytes_of(1, height, width, channels, seed=height)[0] for height, width in sides]
    batch, crops = pad_images(images), Crops(size=size, blur=0.8, solarize=0.3)
    draws = draw(crops, 2 * count, batch.sizes.repeat(2, 1), seeded(3), 2)
    together = render_in_chunks(crops, batch.pixels, draws, mean, std)
    for chosen in ([0], [3], [11], [15], [1, 6], [5, 2, 14], [7, 6, 5, 4, 3, 12, 1]):
        own = pad_images([images[row % count] for row in chosen])
        alone = render_in_chunks(crops, own.pixels, some_rows(draws, torch.tensor(chosen)), mean, std)
        assert torch.equal(alone, together[chosen]), chosen


@pytest.mark.parametrize("spec", [Crops(size=8, solarize=0.3), Masks()], ids=["crops", "masks"])
def test_a_range_of_the_rows_of_a_batch_has_the_views_of_the_whole_one(spec):
    images = bytes_of(6, 12, 10) if isinstance(spec, Crops) else torch.rand(6, 20, generator=seeded(1))
    whole = spec(Batch(images), MEAN, STD, seeded(2))
    part = spec(Batch(images[2:5]), MEAN, STD, seeded(2), row_range=RowRange(2, 3, 6))
    assert torch.equal(part, whole[:, 2:5])


def test_nothing_on_the_way_to_a_view_needs_a_value_on_the_host():
    # a meta tensor has no values: whatever asked for one, or had a shape that depends on one, would raise
    pixels = torch.empty(4, 3, 40, 48, dtype=torch.uint8, device="meta")
    crops = Crops(size=32, blur=(1.0, 0.1), solarize=(0.0, 0.2), local=LocalCrops(3, 16))
    batch = Batch(pixels, torch.empty(4, 2, dtype=torch.long, device="meta"))
    assert crops(batch, MEAN, STD).shape == (2, 4, 3, 32, 32)
    assert crops(Batch(pixels), MEAN, STD).shape == (2, 4, 3, 32, 32)
    assert crops.local_views(batch, MEAN, STD).shape == (3, 4, 3, 16, 16)


def test_render_is_one_graph_without_breaks():
    pixels, crops = bytes_of(3, 24, 31), BYOL
    draws = draw(crops, 6, torch.tensor([[24, 31]] * 6), seeded(5), 2)
    compiled = torch.compile(render, fullgraph=True, backend="eager")
    expected = render(crops, pixels, draws, MEAN, STD)
    torch.testing.assert_close(compiled(crops, pixels, draws, MEAN, STD), expected, rtol=0, atol=1e-6)


# --- pairs that differ, and local crops ----------------------------------------------------------------------------


def test_local_views_are_views_of_another_size_and_scale_drawn_after_the_two():
    crops = Crops(size=16, blur=(1.0, 0.0), local=LocalCrops(count=5, size=8, scale=(0.05, 0.2)))
    batch, generator = Batch(bytes_of(6, 24, 31)), seeded(4)
    two, local = crops(batch, MEAN, STD, generator), crops.local_views(batch, MEAN, STD, generator)
    generator = seeded(4)
    assert torch.equal(two, Crops(size=16, blur=(1.0, 0.0))(batch, MEAN, STD, generator))
    small = Crops(size=8, scale=(0.05, 0.2), blur=(1.0, 0.0))
    assert torch.equal(local, small(batch, MEAN, STD, generator, 5))
    assert local.shape == (5, 6, 3, 8, 8)


# --- what is drawn -------------------------------------------------------------------------------------------------


N = 20000


def draws_of(crops, height=48, width=64):
    return draw(crops, N, torch.tensor([[height, width]]).expand(N, 2), seeded(11))


def agreement(ours, theirs):
    """How probable so large a difference would be between two samples of one distribution."""
    ours, theirs = torch.as_tensor(ours).double(), torch.as_tensor(theirs).double()
    levels = torch.cat([ours, theirs]).unique()
    if len(levels) > 100:
        return stats.ks_2samp(ours.numpy(), theirs.numpy()).pvalue
    counts = torch.stack([(sample[:, None] == levels).sum(0) for sample in (ours, theirs)])
    return stats.chi2_contingency(counts.numpy()).pvalue


def torchvision_draws(n=4000):
    """What torchvision's own transforms draw, with the settings of Crops()."""
    torch.manual_seed(6)
    colour, blurred, blank = T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.GaussianBlur(3, (0.1, 2.0)), [torch.zeros(3, 1, 1)]
    drawn = {name: [] for name in ("brightness", "contrast", "saturation", "hue", "order", "sigma")}
    for _ in range(n):
        params = colour.make_params(blank)
        for name in ("brightness", "contrast", "saturation", "hue"):
            drawn[name].append(float(params[f"{name}_factor"]))
        drawn["order"].append(int(torch.stack(tuple(params["fn_idx"])) @ torch.tensor([64, 16, 4, 1])))
        drawn["sigma"].append(float(blurred.make_params(blank)["sigma"][0]))
    image = torch.tensor([0.9, 0.1, 0.2])[:, None, None].expand(3, 1, 2).clone()
    image[..., 0] = 0.3
    happens = {
        "flip": T.RandomHorizontalFlip(0.5), "grey": T.RandomGrayscale(0.2), "solarize": T.RandomSolarize(0.5, 0.3),
        "blurred": T.RandomApply([T.RandomInvert(1.0)], 0.5), "jittered": T.RandomApply([T.RandomInvert(1.0)], 0.8),
    }  # fmt: skip
    for name, transform in happens.items():
        # as many as ours: with 4,000 the greys of this very seed came out at 22.4% instead of 20%, by chance
        drawn[name] = [not torch.equal(transform(image), image) for _ in range(N)]
    return drawn


def our_draws(crops):
    draws = draws_of(crops)
    always = draws_of(Crops(**{**vars(crops), "jitter": 1.0, "blur": 1.0}))
    factors = dict(zip(("brightness", "contrast", "saturation"), always.factors.unbind(1), strict=True))
    return factors | {
        "hue": always.hue, "order": draws.order.argsort(1) @ torch.tensor([64, 16, 4, 1]), "sigma": always.sigma,
        "flip": draws.flip, "grey": draws.grey, "solarize": draws.solarize, "blurred": draws.sigma > 0,
        "jittered": draws.hue != 0,
    }  # fmt: skip


def test_everything_is_drawn_as_torchvision_draws_it():
    theirs = torchvision_draws()
    right = our_draws(Crops(solarize=0.3))
    assert right.keys() == theirs.keys()
    for name, values in right.items():
        assert agreement(values, theirs[name]) > 1e-3, name


# --- masks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.6, 1.0])
def test_exactly_that_share_is_masked_in_every_view_of_every_vector(share):
    vectors = torch.rand(50, 20, generator=seeded(0)) + 1
    views = Masks(share=share)(Batch(vectors), (0.0,), (1.0,), seeded(1), views=2)
    assert views.shape == (2, 50, 20)
    kept = views != 0
    assert torch.equal((~kept).sum(-1), torch.full((2, 50), round(share * 20)))
    assert torch.equal(views[kept], vectors.expand(2, -1, -1)[kept])


def test_each_factor_has_its_own_strength_and_each_view_its_own_probability():
    crops = Crops(scale=(0.5, 0.5), brightness=0.1, contrast=0.2, saturation=0.3, blur=(1.0, 0.0))
    draws = draw(crops, 2000, torch.tensor([[8, 8]]).expand(2000, 2), seeded(1), 2)
    assert (draws.factors - 1).abs().amax(0).tolist() == pytest.approx([0.1, 0.2, 0.3], rel=0.02)
    assert (draws.sigma > 0).tolist() == [True] * 1000 + [False] * 1000
    draws = draws_of(Crops())  # what happens to a view says nothing of what else does, nor how strongly
    assert float((draws.grey & draws.flip).float().mean()) == pytest.approx(0.1, abs=0.01)
    assert float(draws.sigma[draws.sigma > 0].mean()) == pytest.approx(1.05, abs=0.02)


def test_asking_for_more_leaves_what_was_drawn_before_as_it_was():
    sizes = torch.tensor([[48, 64]]).expand(50, 2)
    plain = draw(Crops(), 50, sizes, seeded(1), 2)
    more = draw(Crops(solarize=0.5, local=LocalCrops()), 50, sizes, seeded(1), 2)
    assert all(torch.equal(one, other) for one, other in zip(plain[:-1], more[:-1], strict=True))
    assert plain.solarize is None
    assert more.solarize.any()
