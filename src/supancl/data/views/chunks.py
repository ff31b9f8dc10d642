"""Whole views on a CPU: a few rows at a time, which fit in a core's cache, one thread per chunk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from supancl.data.views.augment import (
    Draws,
    Taps,
    blur,
    crop_taps,
    jitter_in_place,
    kernel_size,
    luma,
    make_contiguous,
    normalized,
    resampled,
    solarize,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from supancl.data.views.specs import Crops
else:
    from supancl.lazy import torch

CHUNK_VALUES = 2**18  # per chunk: a megabyte fits in a core's cache
THREAD_MIN_VALUES = 2**13  # per row; with fewer, operations are too short for a second thread
GAUSSIAN_REACH = 5.7  # standard deviations beyond which a Gaussian is below 1e-7 of its peak
SMALL_KERNEL = 6  # pixels on either side, as for images of 128 px


def render_in_chunks(
    crops: Crops, pixels: Tensor, draws: Draws, mean: tuple[float, ...], std: tuple[float, ...]
) -> Tensor:
    """`products.render` for CPUs, equal to 1e-5: a few rows at a time, which fit in cache, skipping what is not drawn.

    Rows are sorted by the order of their jitter, so that neighbours share it and are changed in place.
    """
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
        for first, last, order in _iter_runs(steps[chunk]) if channels in (1, 3) else ():
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

    Dividing every operation among the cores would make each of thousands wait for the slowest core: with another
    process on one of two cores, that way two threads rendered 162 images of 224 px a second, one thread 293.
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


def _iter_runs(steps: list[tuple[int, ...]]) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    start = 0
    for order, members in groupby(steps):
        stop = start + len(list(members))
        if order:
            yield start, stop, order
        start = stop


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
