"""The view for evaluations, without randomness: the central square of an image.

`margin`, for linear evaluation, is 7/8 of the short side, resized bilinearly; `whole`, for the transfer protocol
(App. E), is the full short side, resized bicubically.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from supancl.data.store.memory import Batch
from supancl.data.views.augment import crop_and_resize, normalized

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor
else:
    from supancl.lazy import F, torch

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

    They are 7/8 of the short side: for images decoded at round(8/7 size) exactly `size`, so nothing is resampled.
    Images whose short side is at most `size` have no margin to cut off: the box is the full short side. Of larger
    images it is what a crop of `size` covers after they are resized to round(8/7 size), as files are when decoded.
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
