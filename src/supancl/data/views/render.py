"""Whole views of a batch on a GPU, by matrix products; and the views of evaluations.

On a GPU each row has its own matrices, so nothing is gathered and every line of an image is read once. The memory
layout is (n, row, C, column): so resizing or blurring along either side is one batched product, without a copy. In
float32 the results are those of `augment` to 1e-6; in float16, whose 11 bits hold every uint8 value, to a quarter of a
grey level (tests/data/test_products.py), which is half of what rounding to uint8 would cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from supancl.data.store.memory import Batch
from supancl.data.views.augment import (
    Draws,
    blur_taps,
    crop_and_resize,
    jitter,
    kernel_size,
    luma,
    normalized,
    solarize,
    triangle,
)

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor

    from supancl.data.views.specs import Crops
else:
    from supancl.lazy import F, torch

ZERO_PROBABILITY = (0.0, (0.0, 0.0))


def render(
    crops: Crops, pixels: Tensor, draws: Draws, mean: tuple[float, ...], std: tuple[float, ...],
    dtype: torch.dtype | None = None, products: bool = True
) -> Tensor:  # fmt: skip
    """(n, C, size, size): render the draws from uint8 images; row i is a view of image i % len(pixels).

    Shapes are static and the host never waits, so it can be captured in a graph or compiled. `dtype` may be bfloat16,
    to which an autocast encoder would round the views anyway: the products then use float16, as precise as TF32.
    """
    dtype = dtype or torch.float32
    count, product_dtype = len(pixels), torch.float32 if dtype == torch.float32 else torch.float16
    views = len(draws.box) // count
    # the views of an image next to each other, so that one product renders them all
    draws = Draws._make(None if values is None else _swap_views_and_images(values, views) for values in draws)
    images = crop_by_products(pixels, draws.box, crops.size, draws.flip, product_dtype)
    images = images.transpose(1, 2).float() / 255
    if images.shape[1] in (1, 3):
        images = jitter(images, draws.factors, draws.hue, draws.order)
        images = torch.where(draws.grey[:, None, None, None], luma(images), images)
    if crops.blur not in ZERO_PROBABILITY:
        lines = images.transpose(1, 2).to(product_dtype)
        images = blur_by_products(lines, draws.sigma, kernel_size(crops.size)).transpose(1, 2).float()
    if draws.solarize is not None:
        inverted = solarize(images, crops.solarize_threshold)
        images = torch.where(draws.solarize[:, None, None, None], inverted, images)
    views_out = _swap_views_and_images(normalized(images, mean, std).to(dtype), count)
    # the layout that an autocast encoder reads on a GPU
    return views_out if dtype == torch.float32 else views_out.contiguous(memory_format=torch.channels_last)


def _swap_views_and_images(rows: Tensor, outer: int) -> Tensor:
    """Rows (view, image) -> rows (image, view), or back; `outer` is the current number of the first."""
    return rows.view(outer, -1, *rows.shape[1:]).transpose(0, 1).flatten(0, 1)


def crop_by_products(pixels: Tensor, box: Tensor, size: int, flip: Tensor, dtype: torch.dtype) -> Tensor:
    """(n, size, C, size): each row's box, bilinear with antialiasing; row i is a crop of image i // (n / images)."""
    count, channels, height, width = pixels.shape
    rows = resize_matrix(box[:, 0], box[:, 2], height, size).to(dtype)
    columns = resize_matrix(box[:, 1], box[:, 3], width, size, flip).to(dtype)
    lines = pixels.permute(0, 2, 1, 3).to(dtype).reshape(count, height, channels * width)
    shortened = torch.bmm(rows.reshape(count, -1, height), lines)  # all views of an image in one product
    resized = torch.bmm(shortened.view(len(box), size * channels, width), columns.mT)
    return resized.view(len(box), size, channels, size)


def resize_matrix(start: Tensor, length: Tensor, pixels: int, size: int, flip: Tensor | None = None) -> Tensor:
    """(n, size, pixels): weights of the pixels of a side for the crop [start, start + length) resized to `size`."""
    start, length = start.double()[:, None, None], length.double()[:, None, None]
    scale = length / size
    reach = scale.clamp(min=1)  # antialiasing: when shrinking, the triangle widens with the scale
    position = torch.arange(size, device=start.device).double()[:, None]
    if flip is not None:
        position = torch.where(flip[:, None, None], size - 1 - position, position)
    index = torch.arange(pixels, device=start.device).double()
    weight = triangle(index, start + (position + 0.5) * scale, reach, start, length).float()
    return weight / weight.sum(-1, keepdim=True)


def blur_by_products(images: Tensor, sigma: Tensor, kernel: int) -> Tensor:
    """Blur (n, row, C, column) with a sigma per row (0: none), mirrored at the border."""
    n, height, channels, width = images.shape
    across = blur_matrix(sigma, width, kernel).to(images.dtype)
    down = across if height == width else blur_matrix(sigma, height, kernel).to(images.dtype)
    lines = torch.bmm(images.reshape(n, height * channels, width), across.mT)
    return torch.bmm(down, lines.view(n, height, channels * width)).view(images.shape)


def blur_matrix(sigma: Tensor, pixels: int, kernel: int) -> Tensor:
    """(n, pixels, pixels): the blur along one side; a pixel counts directly and mirrored at either border."""
    half = min(kernel // 2, pixels - 1)
    _, weight = blur_taps(sigma, pixels, kernel)
    by_distance = F.pad(weight[:, half:], (0, 1))  # the last entry, 0, is for pixels out of reach
    position = torch.arange(pixels, device=sigma.device)
    distance, position_sum, out_of_reach = position - position[:, None], position + position[:, None], half + 1
    # a border pixel is its own mirror image: count it once
    mirrored_start = torch.where(position > 0, position_sum, out_of_reach)
    mirrored_end = torch.where(position < pixels - 1, 2 * (pixels - 1) - position_sum, out_of_reach)
    direct, upper, lower = (
        by_distance[:, d.clamp(max=out_of_reach)] for d in (distance.abs(), mirrored_start, mirrored_end)
    )
    return direct + upper + lower


# --- for evaluations, without randomness -----------------------------------------------------------------------------


# `margin`, for linear evaluation, is the central 7/8 of the short side, resized bilinearly; `whole`, for the transfer
# protocol (App. E), the full short side, resized bicubically
View = Literal["margin", "whole"]


def evaluation_short_side(size: int, view: View = "margin") -> int:
    """The short side to decode at; the crop needs no more: 256 for an input of 224 with a margin."""
    return round(size * 8 / 7) if view == "margin" else size


def evaluation_view(
    batch: Batch, size: int, mean: tuple[float, ...], std: tuple[float, ...], view: View = "margin"
) -> Tensor:
    """(B, C, size, size), normalised; vectors are returned unchanged."""
    if batch.pixels.ndim == 2:
        return batch.pixels
    squares = _margin_squares(batch, size) if view == "margin" else _whole_squares(batch, size)
    return normalized(squares / 255, mean, std)


def margin_boxes(sizes: Tensor, size: int) -> Tensor:
    """Boxes of the central squares of images of these (height, width), for an input of `size`.

    They are 7/8 of the short side: for images decoded at round(8/7 size) exactly `size`, so nothing is resampled; the
    full short side where that is at most `size`; and of larger images what a crop of `size` covers after they are
    resized to round(8/7 size), as files are when decoded.
    """
    short_side = sizes.amin(1, keepdim=True)
    side = torch.where(short_side > size, (short_side * (7 / 8)).round(), short_side.double())
    corner = ((sizes - side) / 2).round()  # halves to even, as in CenterCrop
    as_it_is = torch.cat([corner, side, side], dim=1).float()
    target = evaluation_short_side(size)
    resized = target * sizes // short_side  # as `shrunk_size` cuts off
    scale = sizes.double() / resized
    larger = torch.cat([((resized - size) / 2).round() * scale, size * scale], dim=1)
    return torch.where(short_side > target, larger, as_it_is.double())


def _margin_squares(batch: Batch, size: int) -> Tensor:
    sizes = batch.image_sizes()
    boxes, is_larger = margin_boxes(sizes, size), sizes.amin(1, keepdim=True) > evaluation_short_side(size)
    whole = torch.cat([torch.zeros_like(sizes), sizes], dim=1).double()
    squares = crop_and_resize(batch.pixels, boxes, size, bounds=torch.where(is_larger, whole, boxes))
    return torch.where(is_larger[..., None, None], squares.round(), squares)  # bytes, as Pillow has


def _whole_squares(batch: Batch, size: int) -> Tensor:
    """The centre of images whose short side is `size`. Larger ones were shrunk when decoded, so this only enlarges."""
    if batch.sizes is None:
        return _enlarged_centre(batch.pixels, size)
    rows = zip(batch.pixels, batch.sizes.tolist(), strict=True)
    return torch.cat([_enlarged_centre(image[None, :, :height, :width], size) for image, (height, width) in rows])


def _enlarged_centre(pixels: Tensor, size: int) -> Tensor:
    """For images of one size: bicubic, rounded to bytes."""
    height, width = pixels.shape[-2:]
    images = pixels.float()
    if min(height, width) != size:
        # cut off, as torchvision does
        new_height, new_width = (size * side // min(height, width) for side in (height, width))
        # first across, then down, bytes after each: as Pillow does
        for sides in ((height, new_width), (new_height, new_width)):
            images = F.interpolate(images, sides, mode="bicubic", antialias=True).round().clamp(0, 255)
    top, left = (round((side - size) / 2) for side in images.shape[-2:])
    return images[..., top : top + size, left : left + size]
