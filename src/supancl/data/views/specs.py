"""Two views of every image of a batch: what is drawn, and how a batch becomes its views.

`Crops` is the augmentation of the paper for images, `Masks` that of its toy data (App. B). The operations
themselves are in `augment`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from typing import Annotated, Any, Literal

import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor

from supancl.config import Count, Fraction, Positive, Within
from supancl.data.store.memory import Batch
from supancl.data.views import augment
from supancl.data.views import products as by_products
from supancl.data.views.augment import Draws, Taps
from supancl.errors import BadInput

CHUNK = 2**18  # values of a chunk: a megabyte stays in a core's own cache
WORTH_A_THREAD = 2**13  # values of a row; below, operations are too short for a second thread to find work
REACH = 5.7  # standard deviations beyond which a Gaussian is below 1e-7 of its peak
SMALL_KERNEL = 6  # pixels on either side: that of 128 px

# one probability, or one for each of the two views: BYOL and MoCo-v3 blur with [1.0, 0.1], solarise with [0.0, 0.2]
PerView = Fraction | tuple[Fraction, Fraction]
NEVER = (0.0, (0.0, 0.0))


@dataclass(frozen=True)
class LocalCrops:
    """Small crops beside the two views (multi-crop): they give anchors, never targets."""

    count: Count = 6
    size: Count = 96
    scale: tuple[Positive, Positive] = (0.05, 0.2)  # share of the image's area

    def __post_init__(self) -> None:
        _ascending("views.local.scale", self.scale)


Renderer = Callable[..., Tensor]  # see `draw_and_render`


@dataclass(frozen=True)
class Crops:
    """Random crop, flip, colour jitter, grey, blur, solarise (Sec. 5.1, following SimCLR); probabilities are per image.

    `blur` and `solarize` may differ between the views; further views take them in turn. Solarising inverts the
    values at or above the threshold, of images in [0, 1]: 128 of 255 is 0.502.
    """

    kind: Literal["crops"] = "crops"
    size: Count = 224
    scale: tuple[Positive, Positive] = (0.2, 1.0)  # share of the image's area
    ratio: tuple[Positive, Positive] = (3 / 4, 4 / 3)
    flip: Fraction = 0.5
    jitter: Fraction = 0.8
    brightness: Fraction = 0.4
    contrast: Fraction = 0.4
    saturation: Fraction = 0.4
    hue: Annotated[float, Within(0, 0.5)] = 0.1  # turns; half a turn is the farthest
    grey: Fraction = 0.2
    blur: PerView = 0.5
    blur_sigma: tuple[Positive, Positive] = (0.1, 2.0)
    solarize: PerView = 0.0
    solarize_threshold: Fraction = 0.5
    local: LocalCrops | None = None

    def __post_init__(self) -> None:
        for name in ("scale", "ratio", "blur_sigma"):
            _ascending(f"views.{name}", getattr(self, name))

    def __call__(
        self,
        batch: Batch,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        generator: torch.Generator | None = None,
        views: int = 2,
        renderer: Renderer | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """(views, B, C, size, size): normalised views of a batch of uint8 images.

        `renderer` takes the place of `draw_and_render` on a GPU: the same function, compiled; there `dtype` may be
        bfloat16.
        """
        pixels, sizes = batch.pixels, _sizes(batch).repeat(views, 1)
        taken = self.uniforms(len(sizes), pixels.device, generator)
        if pixels.device.type == "cpu":
            made = render_in_chunks(self, pixels, self.drawn(taken, sizes, views), mean, std)
        else:
            products = dtype != torch.float32 or by_products.exact(pixels.device)
            made = (renderer or draw_and_render)(self, pixels, taken, sizes, views, mean, std, dtype, products)
        return made.view(views, len(pixels), *made.shape[1:])

    def local_views(
        self,
        batch: Batch,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        generator: torch.Generator | None = None,
        renderer: Renderer | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor | None:
        """(count, B, C, small, small) from the same operations; None where no local crops are asked for."""
        if self.local is None:
            return None
        small = replace(self, size=self.local.size, scale=self.local.scale, local=None)
        return small(batch, mean, std, generator, self.local.count, renderer, dtype)

    def draw(self, n: int, sizes: Tensor, generator: torch.Generator | None = None, views: int = 1) -> Draws:
        """For n rows: the first n / views of them are first views, and so on."""
        return self.drawn(self.uniforms(n, sizes.device, generator), sizes, views)

    def uniforms(self, n: int, device: torch.device, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """The random numbers that n rows take, all from [0, 1)."""

        def uniform(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.rand(*shape, generator=generator, device=device, dtype=dtype)

        taken = {
            "jitter": uniform(n), "factors": uniform(n, 3), "box": uniform(4, n, augment.TRIES, dtype=torch.float64),
            "flip": uniform(n), "hue": uniform(n), "order": uniform(n, 4), "grey": uniform(n), "blur": uniform(n),
            "sigma": uniform(n),
        }  # fmt: skip
        if self.solarize not in NEVER:  # drawn last, and only when asked for: the other draws stay as they are
            taken["solarize"] = uniform(n)
        return taken

    def drawn(self, taken: dict[str, Tensor], sizes: Tensor, views: int = 1) -> Draws:
        """What those random numbers stand for."""

        def happens(probability: PerView, by: Tensor) -> Tensor:
            if isinstance(probability, tuple):
                rows = by.view(views, -1)
                return torch.cat([row < probability[view % 2] for view, row in enumerate(rows)])
            return by < probability

        jittered = happens(self.jitter, taken["jitter"])
        strengths = zip((self.brightness, self.contrast, self.saturation), taken["factors"].unbind(1), strict=True)
        factors = [torch.where(jittered, 1 + s * (2 * by - 1), torch.ones_like(by)) for s, by in strengths]
        low, high = self.blur_sigma
        return Draws(
            box=augment.boxes(taken["box"], sizes, self.scale, self.ratio),
            flip=happens(self.flip, taken["flip"]),
            factors=torch.stack(factors, dim=1),
            hue=self.hue * (2 * taken["hue"] - 1) * jittered,
            order=taken["order"].argsort(1),
            grey=happens(self.grey, taken["grey"]),
            sigma=happens(self.blur, taken["blur"]) * (low + (high - low) * taken["sigma"]),
            solarize=happens(self.solarize, taken["solarize"]) if "solarize" in taken else None,
        )


@dataclass(frozen=True)
class Masks:
    """App. B: a view of a toy vector has a share of its dimensions replaced by the data's mean, which is zero."""

    kind: Literal["masks"] = "masks"
    share: Fraction = 0.6

    def __call__(
        self,
        batch: Batch,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        generator: torch.Generator | None = None,
        views: int = 2,
        renderer: Renderer | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        vectors = batch.pixels
        n, width = vectors.shape
        rank = torch.rand(views, n, width, generator=generator, device=vectors.device).argsort(-1)
        return vectors * (rank >= round(self.share * width))  # exactly that share, not that share on average

    def local_views(
        self,
        batch: Batch,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        generator: torch.Generator | None = None,
        renderer: Renderer | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """A vector has no small crops."""


ViewSpec = Crops | Masks


def draw_and_render(
    crops: Crops, pixels: Tensor, taken: dict[str, Tensor], sizes: Tensor, views: int, *how: Any
) -> Tensor:
    """`render` from the random numbers themselves: what is compiled into a few kernels on a GPU."""
    return render(crops, pixels, crops.drawn(taken, sizes, views), *how)


def render(
    crops: Crops, pixels: Tensor, draws: Draws, mean: tuple[float, ...], std: tuple[float, ...],
    dtype: torch.dtype = torch.float32, products: bool = True,
) -> Tensor:  # fmt: skip
    """(n, C, size, size): what was drawn, made of uint8 images; row i is of image i % len(pixels).

    Shapes are static and the host waits for nothing, so that it can be captured in a graph or compiled.
    `products` crops and blurs by matrix products, which must not be TF32's; then `dtype` may be bfloat16, which is
    what an autocast encoder would round the views to: the products are float16's.
    """
    if not products:
        return _rendered_by_lines(crops, pixels, draws, mean, std).to(dtype)
    count, within = len(pixels), torch.float32 if dtype == torch.float32 else torch.float16
    views = len(draws.box) // count
    # views of an image side by side, so that one product makes them all
    draws = Draws._make(None if drawn is None else _swapped(drawn, views) for drawn in draws)
    images = by_products.crop_and_resize(pixels, draws.box, crops.size, draws.flip, within)
    images = _coloured(images.transpose(1, 2).float() / 255, draws)
    if crops.blur not in NEVER:
        lines = images.transpose(1, 2).to(within)
        images = by_products.blur(lines, draws.sigma, augment.kernel_size(crops.size)).transpose(1, 2).float()
    made = _swapped(augment.normalized(_solarized(images, draws, crops), mean, std).to(dtype), count)
    # as an autocast encoder reads them on a GPU
    return made if dtype == torch.float32 else made.contiguous(memory_format=torch.channels_last)


def _swapped(rows: Tensor, first: int) -> Tensor:
    """Rows (view, image) -> rows (image, view), and the other way round; `first` is how many the first are."""
    return rows.view(first, -1, *rows.shape[1:]).transpose(0, 1).flatten(0, 1)


def _rendered_by_lines(
    crops: Crops, pixels: Tensor, draws: Draws, mean: tuple[float, ...], std: tuple[float, ...]
) -> Tensor:
    height, width = pixels.shape[-2:]
    rows, columns = augment.crop_taps(draws.box, height, width, crops.size, draws.flip, torch.float32)
    image = torch.arange(len(draws.box), device=pixels.device) % len(pixels)
    rows = rows._replace(weight=rows.weight / 255)
    images = _coloured(augment.upright(augment.resampled(pixels.float(), image, rows, columns)), draws)
    if crops.blur not in NEVER:
        images = augment.blur(images, draws.sigma, augment.kernel_size(crops.size))
    return augment.normalized(_solarized(images, draws, crops), mean, std)


def _coloured(images: Tensor, draws: Draws) -> Tensor:
    if images.shape[1] == 3:
        images = augment.jitter(images, draws.factors, draws.hue, draws.order)
        return torch.where(draws.grey[:, None, None, None], augment.luma(images), images)
    return augment.jitter_grey(images, draws.factors, draws.order) if images.shape[1] == 1 else images


def _solarized(images: Tensor, draws: Draws, crops: Crops) -> Tensor:
    if draws.solarize is None:
        return images
    return torch.where(draws.solarize[:, None, None, None], augment.solarize(images, crops.solarize_threshold), images)


def render_in_chunks(
    crops: Crops, pixels: Tensor, draws: Draws, mean: tuple[float, ...], std: tuple[float, ...]
) -> Tensor:
    """`render` for CPUs, equal to 1e-5: a few rows at a time, which stay in cache, each with only what it drew.

    Rows are taken by the order of their jitter, so that neighbours share it and are changed in place.
    """
    channels, height, width = pixels.shape[1:]
    steps, alike = _jitter_steps(crops, draws)
    draws = Draws._make(drawn if drawn is None else drawn[alike] for drawn in draws)
    rows, columns = augment.crop_taps(draws.box, height, width, crops.size, draws.flip, torch.float32)
    rows.weight.div_(255)
    made = torch.empty(len(alike), channels, crops.size, crops.size)
    most = max(1, CHUNK // made[0].numel())
    inference = torch.is_inference_mode_enabled()

    @torch.inference_mode(inference)  # what the caller's thread is in, others are not
    def make(start: int) -> None:
        some = slice(start, start + most)
        images = pixels.index_select(0, alike[some] % len(pixels)).float()
        images = augment.resampled(
            images, torch.arange(len(images)), Taps(rows.source[some], rows.weight[some]),
            Taps(columns.source[some], columns.weight[some]),
        )  # fmt: skip
        for first, last, order in _runs(steps[some]) if channels in (1, 3) else ():
            run = slice(start + first, start + last)
            augment.jitter_alike(images[first:last], draws.factors[run], draws.hue[run], order)
        if channels == 3:
            _only(images, draws.grey[some], lambda grey: augment.luma(grey).expand(-1, 3, -1, -1))
        images = _blurred(images, draws.sigma[some], augment.kernel_size(crops.size))
        if draws.solarize is not None:
            _only(images, draws.solarize[some], lambda light: augment.solarize(light, crops.solarize_threshold))
        _put(augment.normalized(images, mean, std), made, alike[some])

    count = torch.get_num_threads() if made[0].numel() >= WORTH_A_THREAD else 1
    list(_workers(os.getpid(), count).map(make, range(0, len(alike), most)))
    return made


@cache
def _workers(process: int, count: int) -> ThreadPoolExecutor:
    """Threads that each work through whole operations by themselves; a forked process gets its own.

    Dividing every operation among the cores instead makes each of thousands wait for the slowest core: with another
    process on one of two cores, two threads made 162 images of 224 px a second that way, one thread made 293.
    """

    def alone() -> None:
        torch.get_num_threads()  # torch sets a thread up when it is first asked, and would undo the next line later
        threadpool_limits(1, user_api="openmp")  # of this thread only

    return ThreadPoolExecutor(count, initializer=alone)


def _jitter_steps(crops: Crops, draws: Draws) -> tuple[list[tuple[int, ...]], Tensor]:
    """The rows sorted by what is done to them in which order, and that: steps of `jitter_alike`."""
    strength = (crops.brightness, crops.contrast, crops.saturation, crops.hue)
    jittered = ((draws.factors != 1).any(1) | (draws.hue != 0)).tolist()
    steps = [
        tuple(step for step in order if strength[step]) if does else ()
        for order, does in zip(draws.order.argsort(1).tolist(), jittered, strict=True)
    ]
    alike = sorted(range(len(steps)), key=steps.__getitem__)
    return [steps[row] for row in alike], torch.tensor(alike)


def _runs(steps: list[tuple[int, ...]]) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    start = 0
    for order, members in groupby(steps):
        stop = start + len(list(members))
        if order:
            yield start, stop, order
        start = stop


def _only(images: Tensor, which: Tensor, change: Callable[[Tensor], Tensor]) -> None:
    """Change those rows, in place."""
    chosen = which.nonzero()[:, 0]
    if len(chosen):
        _put(change(images.index_select(0, chosen)), images, chosen)


def _blurred(images: Tensor, sigma: Tensor, kernel: int) -> Tensor:
    """Blur each row with the kernel that its own sigma needs, so that a row does not depend on its neighbours."""
    full = kernel // 2
    # a narrow Gaussian needs few pixels; of a small kernel, a call for each width costs more than it saves
    half = (REACH * sigma).ceil().clamp(max=full) if full > SMALL_KERNEL else full * (sigma > 0)
    halves = half.int().unique().tolist()
    if len(halves) == 1:
        return augment.blur(images, sigma, 2 * halves[0] + 1) if halves[0] else images
    images = augment.upright(images)
    for each in halves[halves[0] == 0 :]:
        rows = (half == each).nonzero()[:, 0]
        _put(augment.blur(images.index_select(0, rows), sigma[rows], 2 * each + 1), images, rows)
    return images


def _put(values: Tensor, into: Tensor, rows: Tensor) -> None:
    """into[rows] = values, row by row: one of 224 px took a CPU 18 us so, and 86 us as an indexed copy."""
    torch._foreach_copy_([into[row] for row in rows.tolist()], list(values.unbind()))


def evaluation_view(batch: Batch, size: int, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """The one view without randomness: the box of `evaluation_boxes` as (size, size), normalised.

    Vectors pass as they are.
    """
    if batch.pixels.ndim == 2:
        return batch.pixels
    box = evaluation_boxes(_sizes(batch), size)
    return augment.normalized(augment.crop_and_resize(batch.pixels, box, size) / 255, mean, std)


def evaluation_boxes(sizes: Tensor, size: int) -> Tensor:
    """(n, 4) top, left, height, width of the central square of images of these (height, width), in whole pixels.

    It is 7/8 of the short side wide: of images decoded at round(8/7 size) exactly `size`, so nothing is resampled.
    Images whose short side is not above `size` have no margin to cut away: their whole short side is taken.
    Offsets are rounded as torchvision's CenterCrop does.
    """
    short = sizes.amin(1, keepdim=True).double()
    side = torch.where(short > size, (short * (7 / 8)).round(), short)
    corner = ((sizes - side) / 2).round()  # halves to even, as Python's round
    return torch.cat([corner, side, side], dim=1).float()


def _sizes(batch: Batch) -> Tensor:
    if batch.sizes is not None:
        return batch.sizes
    full = torch.full((len(batch.pixels), 2), batch.pixels.shape[-1], device=batch.pixels.device)
    full[:, 0] = batch.pixels.shape[-2]
    return full


def _ascending(name: str, pair: tuple[float, float]) -> None:
    low, high = pair
    if low > high:
        raise BadInput(f"{name} = [{low:g}, {high:g}]: the first must not be above the second")
