"""The operations of a view for a whole batch, with different parameters for each row.

Every operation equals torchvision.transforms.v2.functional with the same parameters on float images in [0, 1], to 1e-6
(hue to 5e-6, torchvision's own rounding; tests/data/test_augment.py). None waits for the device or has shapes that
depend on values; `jitter_in_place`, for CPUs, needs the order on the host. Whole views are rendered at the end: on a
CPU a few rows at a time, which fit in a core's cache, with one thread per chunk.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor

    from supancl.data.views.specs import Crops
else:
    from supancl.lazy import F, torch

LUMA_WEIGHTS = (0.2989, 0.587, 0.114)  # of R, G, B: ITU-R 601-2, as in Pillow and torchvision
CHUNK_VALUES = 2**18  # per chunk: a megabyte fits in a core's cache
THREAD_MIN_VALUES = 2**13  # per row; with fewer, operations are too short for a second thread
GAUSSIAN_REACH = 5.7  # standard deviations beyond which a Gaussian is below 1e-7 of its peak
SMALL_KERNEL = 6  # pixels on either side, as for images of 128 px


class Draws(NamedTuple):
    """The random parameters of n views."""

    box: Tensor  # (n, 4): top, left, height, width of the crop
    flip: Tensor  # (n,) bool
    factors: Tensor  # (n, 3): brightness, contrast, saturation; 1: no change
    hue: Tensor  # (n,): shift in turns
    order: Tensor  # (n, 4): position of brightness, contrast, saturation and hue in the order
    grey: Tensor  # (n,) bool
    sigma: Tensor  # (n,): of the blur; 0: no blur
    solarize: Tensor | None = None  # (n,) bool; None: no view is solarised


class Taps(NamedTuple):
    """For each of n rows: the input pixels of each output pixel, and their weights."""

    source: Tensor  # (n, size, taps)
    weight: Tensor  # (n, size, taps)


def crop_and_resize(
    images: Tensor, box: Tensor, size: int, flip: Tensor | None = None, bounds: Tensor | None = None
) -> Tensor:
    """Each row's box resized to (size, size), bilinear with antialiasing; row i is a crop of image i % len(images).

    Pixels outside the box have no weight, so padding does not leak in; `bounds`, larger boxes, allow those around it.
    """
    dtype = torch.promote_types(images.dtype, torch.float32)
    rows, columns = crop_taps(box, images.shape[-2], images.shape[-1], size, flip, dtype, bounds)
    image_index = torch.arange(len(box), device=box.device) % len(images)
    return resampled(images.to(dtype), image_index, rows, columns)


def crop_taps(
    box: Tensor, height: int, width: int, size: int, flip: Tensor | None, dtype: torch.dtype,
    bounds: Tensor | None = None,
) -> tuple[Taps, Taps]:  # fmt: skip
    """Taps of the rows and of the columns of each crop; a flip reverses the columns."""
    bounds = box if bounds is None else bounds
    rows = resize_taps(box[:, 0], box[:, 2], height, size, bounds[:, 0], bounds[:, 2])
    columns = resize_taps(box[:, 1], box[:, 3], width, size, bounds[:, 1], bounds[:, 3])
    if flip is not None:
        index, weight = (torch.where(flip[:, None, None], tap.flip(1), tap) for tap in columns)
        columns = Taps(index, weight)
    return Taps(rows.source, rows.weight.to(dtype)), Taps(columns.source, columns.weight.to(dtype))


def resize_taps(start: Tensor, length: Tensor, pixels: int, size: int, first_pixel: Tensor, extent: Tensor) -> Taps:
    """Taps of the triangle filter that resizes the crop [start, start + length) of `pixels` to `size`.

    Only pixels in [first_pixel, first_pixel + extent) have a weight. The number of taps is the most that any crop can
    need, so shapes do not depend on draws.
    """
    start, length, first_pixel, extent = (
        value.double()[:, None, None] for value in (start, length, first_pixel, extent)
    )
    scale = length / size
    reach = scale.clamp(min=1)  # antialiasing: when shrinking, the triangle widens with the scale
    centre = start + (torch.arange(size, device=start.device).double()[:, None] + 0.5) * scale
    first = (centre - reach + 0.5).floor()  # the leftmost pixel whose centre may be inside the triangle
    index = first + torch.arange(math.ceil(2 * max(1.0, pixels / size)), device=start.device)
    weight = triangle(index, centre, reach, first_pixel, extent)
    total = weight.cumsum(-1)[..., -1:]  # cumsum: the rounding of `sum` depends on the number of zeros at the end
    return Taps(index.long().clamp(0, pixels - 1), weight / total)


def triangle(index: Tensor, centre: Tensor, reach: Tensor, first_pixel: Tensor, extent: Tensor) -> Tensor:
    """Weights of pixels around `centre`, not yet normalised; 0 outside [first_pixel, first_pixel + extent)."""
    middle = index + 0.5
    weight = (1 - (middle - centre).abs() / reach).clamp(min=0)
    return weight * ((middle > first_pixel) & (middle < first_pixel + extent))


def resampled(images: Tensor, image_index: Tensor, rows: Taps, columns: Taps) -> Tensor:
    """(n, C, size, size): first the rows, then the columns of images[image_index], as weighted sums of lines.

    The memory layout of the result is (n, column, C, row): with one transposition, both passes read contiguous lines.
    """
    count, channels, height, width = images.shape
    n, size, taps = rows.source.shape
    plane = image_index[:, None] * channels + torch.arange(channels, device=images.device)  # (n, C)
    line = plane[:, :, None, None] * height + rows.source[:, None]
    weight = rows.weight[:, None].expand(n, channels, size, taps)
    shortened = weighted_lines(images.reshape(count * channels * height, width), line, weight)
    transposed = _transpose(shortened.view(n, channels * size, width)).view(n * width, channels * size)
    line = torch.arange(n, device=images.device)[:, None, None] * width + columns.source
    return weighted_lines(transposed, line, columns.weight).view(n, size, channels, size).permute(0, 2, 3, 1)


def weighted_lines(table: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """(..., width): for each entry of (..., taps) the sum over its taps of weight * table[index]."""
    taps = index.shape[-1]
    bags = F.embedding_bag(index.reshape(-1, taps), table, per_sample_weights=weight.reshape(-1, taps), mode="sum")
    return bags.view(*index.shape[:-1], table.shape[-1])


def _transpose(lines: Tensor) -> Tensor:
    if len(lines) == 1:  # torch's fast transposition is for matrices only
        return lines[0].t().contiguous()[None]
    return lines.mT.contiguous()


def luma(images: Tensor) -> Tensor:
    """The grey image, (n, 1, H, W); a grey one itself."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)
    return (red * LUMA_WEIGHTS[0]).add_(green, alpha=LUMA_WEIGHTS[1]).add_(blue, alpha=LUMA_WEIGHTS[2]).unsqueeze(1)


def jitter(images: Tensor, factors: Tensor, hue: Tensor, order: Tensor) -> Tensor:
    """Brightness, contrast, saturation and hue (of colours), each row in its own order.

    Only contrast needs the whole image, for its mean grey; the operations before and after it are pixel by pixel.
    """
    before = order < order[:, 1:2]
    images = _jitter_pixels(images, factors, hue, order, before)
    images = _blend(images, luma(images).mean((-1, -2), keepdim=True), factors[:, 1])
    return _jitter_pixels(images, factors, hue, order, ~before)


def _jitter_pixels(images: Tensor, factors: Tensor, hue: Tensor, order: Tensor, active: Tensor) -> Tensor:
    """Apply the `active` ones (n, 4) of brightness, saturation and hue: two blends, hue, two blends, 1 for off."""
    brightness_first = order[:, 0] < order[:, 2]
    for after_hue in (False, True):
        if after_hue and images.shape[1] == 3:
            turns = torch.where(active[:, 3], hue, torch.zeros_like(hue))
            images = torch.where(
                (turns == 0)[:, None, None, None], images, torch.stack(shift_hue(images, turns), dim=1)
            )
        for first_blend in (True, False):
            is_brightness = brightness_first if first_blend else ~brightness_first
            position = torch.where(is_brightness, order[:, 0], order[:, 2])
            is_active = torch.where(is_brightness, active[:, 0], active[:, 2]) & ((position > order[:, 3]) == after_hue)
            factor = torch.where(
                is_active, torch.where(is_brightness, factors[:, 0], factors[:, 2]), torch.ones_like(hue)
            )
            images = _blend(images, luma(images) * ~is_brightness[:, None, None, None], factor)
    return images


def _blend(images: Tensor, base: Tensor, factor: Tensor) -> Tensor:
    """factor * image + (1 - factor) * base: black for brightness, the mean grey for contrast, grey for saturation."""
    factor = factor[:, None, None, None].to(images.dtype)
    return torch.addcmul(base * (1 - factor), images, factor).clamp(0, 1)


def shift_hue(images: Tensor, turns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Red, green and blue with the hue rotated by a fraction of a turn, via HSV, without branching on pixels.

    On a CPU `torch.where` takes 146 us for a plane of 224 px; a sign, which here is 0 or 1 as well, takes 7 us.
    """
    red, green, blue = images.unbind(1)
    value = torch.maximum(torch.maximum(red, green), blue)
    lowest = torch.minimum(torch.minimum(red, green), blue)
    chroma = value - lowest
    inverse_chroma = chroma.clamp(min=torch.finfo(images.dtype).tiny).reciprocal_()  # a grey has no hue: 0 / tiny = 0
    from_red = (green - blue).mul_(inverse_chroma)
    from_green = (blue - red).mul_(inverse_chroma).add_(2)
    from_blue = (red - green).mul_(inverse_chroma).add_(4)
    sector = torch.lerp(from_green, from_blue, (value - green).sign_())
    sector = torch.lerp(from_red, sector, (value - red).sign_())
    sector = sector.div_(6).add_((turns + 1).to(images.dtype)[:, None, None]).frac_().mul_(6)  # in [0, 6)
    # around the colour wheel a channel is flat for two sextants, rises in one, is flat for two, falls in one
    red, green, blue = ((sector - peak).abs_().sub_(1).clamp_(0, 1).mul_(chroma) for peak in (3, 2, 4))
    return red.add_(lowest), value - green, value - blue


def jitter_in_place(images: Tensor, factors: Tensor, hue: Tensor, steps: tuple[int, ...]) -> None:
    """`jitter` in place, for rows with equal steps: 0 brightness, 1 contrast, 2 saturation, 3 hue."""
    colour = images.shape[1] == 3
    for step in steps:
        if step == 3:
            if colour:
                for channel, plane in enumerate(shift_hue(images, hue)):
                    images[:, channel] = plane
            continue
        factor = factors[:, step, None, None, None]
        if step == 2 and colour:
            grey = luma(images).mul_(1 - factor)
            images.mul_(factor).add_(grey).clamp_(0, 1)
        elif step == 1:
            mean = luma(images).mean((1, 2, 3), keepdim=True)
            images.mul_(factor).add_(mean.mul_(1 - factor)).clamp_(0, 1)
        elif step == 0:
            images.mul_(factor).clamp_(0, 1)


def kernel_size(size: int) -> int:
    """An odd number near a tenth of the side: 23 at 224 px, as in SimCLR."""
    return max(3, 2 * round(size / 20) + 1)


def blur_taps(sigma: Tensor, pixels: int, kernel: int) -> tuple[Tensor, Tensor]:
    """(pixels, taps) input pixels, mirrored at the border, and (n, taps) weights; sigma 0 means no blur."""
    half = min(kernel // 2, pixels - 1)
    offset = torch.arange(-half, half + 1, device=sigma.device)
    weight = (-0.5 * (offset / sigma.clamp(min=1e-3)[:, None]) ** 2).exp()
    source = (torch.arange(pixels, device=sigma.device)[:, None] + offset).abs()
    return (pixels - 1) - ((pixels - 1) - source).abs(), weight / weight.sum(1, keepdim=True)


def blur(images: Tensor, sigma: Tensor, kernel: int) -> Tensor:
    """Gaussian blur with a sigma per row (0: none), mirrored at the border, as weighted sums of lines."""
    n, channels, height, width = images.shape
    row = torch.arange(n * channels, device=images.device)[:, None, None]
    source, weight = blur_taps(sigma, width, kernel)
    # with other strides the sums round differently
    lines = images.permute(0, 3, 1, 2).contiguous().view(n * width, channels * height)
    across = weighted_lines(lines, row[:n] * width + source, weight.to(images.dtype)[:, None].expand(-1, width, -1))
    lines = _transpose(across.view(n, width, channels * height)).view(n * channels * height, width)
    source, weight = blur_taps(sigma.repeat_interleave(channels), height, kernel)
    down = weighted_lines(lines, row * height + source, weight.to(images.dtype)[:, None].expand(-1, height, -1))
    return down.view(images.shape)


def solarize(images: Tensor, threshold: float) -> Tensor:
    """Values at or above the threshold inverted."""
    inverted = (images >= threshold).to(images.dtype)
    return (images - inverted).abs()  # 1 - x where inverted, x elsewhere: both exact


def normalized(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """(images - mean) / std by channel, contiguous. `mean` and `std` are numbers, as copying tensors would wait."""
    result = images.clone() if images.is_contiguous() else make_contiguous(images)
    for channel in range(images.shape[1]):
        centre, scale = (values[channel if len(values) > 1 else 0] for values in (mean, std))
        result[:, channel].sub_(centre).div_(scale)
    return result


def make_contiguous(images: Tensor) -> Tensor:
    """The images in contiguous memory; fast for the layout that `resampled` returns."""
    if images.is_contiguous():
        return images
    n, channels, height, width = images.shape
    lines = images.permute(0, 3, 1, 2).reshape(n, width, channels * height)
    return _transpose(lines).view(n, channels, height, width)


# --- whole views on a CPU ---------------------------------------------------------------------------------------------


def render_in_chunks(
    crops: Crops, pixels: Tensor, draws: Draws, mean: tuple[float, ...], std: tuple[float, ...]
) -> Tensor:
    """`render` for CPUs, equal to 1e-5: a few rows at a time, sorted by their jitter, skipping what is not drawn."""
    channels, height, width = pixels.shape[1:]
    steps, row_order = _jitter_steps(crops, draws)
    draws = Draws._make(values if values is None else values[row_order] for values in draws)
    rows, columns = crop_taps(draws.box, height, width, crops.size, draws.flip, torch.float32)
    rows.weight.div_(255)
    views = torch.empty(len(row_order), channels, crops.size, crops.size)
    chunk_rows = max(1, CHUNK_VALUES // views[0].numel())
    inference_mode = torch.is_inference_mode_enabled()

    @torch.inference_mode(inference_mode)  # other threads do not inherit it
    def render_chunk(start: int) -> None:
        chunk = slice(start, start + chunk_rows)
        images = pixels.index_select(0, row_order[chunk] % len(pixels)).float()
        images = resampled(
            images, torch.arange(len(images)), Taps(rows.source[chunk], rows.weight[chunk]),
            Taps(columns.source[chunk], columns.weight[chunk]),
        )  # fmt: skip
        last = 0
        for order, members in groupby(steps[chunk]) if channels in (1, 3) else ():
            first, last = last, last + len(list(members))
            same_order = slice(start + first, start + last)
            jitter_in_place(images[first:last], draws.factors[same_order], draws.hue[same_order], order)
        if channels == 3:
            _change_rows(images, draws.grey[chunk], lambda grey: luma(grey).expand(-1, 3, -1, -1))
        images = _blur_rows(images, draws.sigma[chunk], kernel_size(crops.size))
        if draws.solarize is not None:
            _change_rows(images, draws.solarize[chunk], lambda light: solarize(light, crops.solarize_threshold))
        _copy_rows(normalized(images, mean, std), views, row_order[chunk])

    count = torch.get_num_threads() if views[0].numel() >= THREAD_MIN_VALUES else 1
    list(_thread_pool(os.getpid(), count).map(render_chunk, range(0, len(row_order), chunk_rows)))
    return views


@cache
def _thread_pool(process: int, count: int) -> ThreadPoolExecutor:
    """Threads that each run whole operations; a forked process gets new ones.

    Dividing every operation among the cores would make each of thousands wait for the slowest core.
    """

    def limit_to_one_thread() -> None:
        torch.get_num_threads()  # initialises the thread; later it would undo the next line
        threadpool_limits(1, user_api="openmp")  # for this thread only

    return ThreadPoolExecutor(count, initializer=limit_to_one_thread)


def _jitter_steps(crops: Crops, draws: Draws) -> tuple[list[tuple[int, ...]], Tensor]:
    """The steps of `jitter_in_place` for each row, sorted, and the rows in that order."""
    strength = (crops.brightness, crops.contrast, crops.saturation, crops.hue)
    jittered = ((draws.factors != 1).any(1) | (draws.hue != 0)).tolist()
    steps = [
        tuple(step for step in order if strength[step]) if is_jittered else ()
        for order, is_jittered in zip(draws.order.argsort(1).tolist(), jittered, strict=True)
    ]
    row_order = sorted(range(len(steps)), key=steps.__getitem__)
    return [steps[row] for row in row_order], torch.tensor(row_order)


def _change_rows(images: Tensor, is_changed: Tensor, change: Callable[[Tensor], Tensor]) -> None:
    """Change the rows that `is_changed` marks, in place."""
    rows = is_changed.nonzero()[:, 0]
    if len(rows):
        _copy_rows(change(images.index_select(0, rows)), images, rows)


def _blur_rows(images: Tensor, sigma: Tensor, kernel: int) -> Tensor:
    """Blur each row with the kernel that its sigma needs, so that a row does not depend on its neighbours."""
    full_half = kernel // 2
    # a narrow Gaussian needs few pixels; for a small kernel, a call per width costs more than it saves
    half = (GAUSSIAN_REACH * sigma).ceil().clamp(max=full_half) if full_half > SMALL_KERNEL else full_half * (sigma > 0)
    halves = half.int().unique().tolist()
    if len(halves) == 1:
        return blur(images, sigma, 2 * halves[0] + 1) if halves[0] else images
    images = make_contiguous(images)
    for width in halves[halves[0] == 0 :]:
        rows = (half == width).nonzero()[:, 0]
        _copy_rows(blur(images.index_select(0, rows), sigma[rows], 2 * width + 1), images, rows)
    return images


def _copy_rows(values: Tensor, target: Tensor, rows: Tensor) -> None:
    """target[rows] = values, row by row: a row of 224 px takes 18 us on a CPU, an indexed copy 86 us."""
    torch._foreach_copy_([target[row] for row in rows.tolist()], list(values.unbind()))
