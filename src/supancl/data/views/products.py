"""Crop, resize and blur of a whole batch as matrix products: the way a GPU makes them fastest.

Each row has its own matrices, so nothing is gathered and every line of an image is read once. Images lie as
(n, row, C, column): then resizing and blurring either side is one batched product, without a copy between.
In float32 the results are those of `augment` to 1e-6; in float16, whose 11 bits hold every uint8 value, to a
quarter of a grey level (tests/data/test_products.py), which is half of what rounding to uint8 would cost.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.data.views.augment import blur_taps, triangle


def crop_and_resize(pixels: Tensor, box: Tensor, size: int, flip: Tensor, dtype: torch.dtype) -> Tensor:
    """(n, size, C, size): the box of each row, bilinear with antialiasing; row i is of image i // (n / images)."""
    count, channels, height, width = pixels.shape
    rows = resize_matrix(box[:, 0], box[:, 2], height, size).to(dtype)
    columns = resize_matrix(box[:, 1], box[:, 3], width, size, flip).to(dtype)
    lines = pixels.permute(0, 2, 1, 3).to(dtype).reshape(count, height, channels * width)
    short = torch.bmm(rows.reshape(count, -1, height), lines)  # all views of an image in one product
    made = torch.bmm(short.view(len(box), size * channels, width), columns.mT)
    return made.view(len(box), size, channels, size)


def resize_matrix(start: Tensor, length: Tensor, pixels: int, size: int, flip: Tensor | None = None) -> Tensor:
    """(n, size, pixels): how much each pixel of a side counts in the crop [start, start + length) made `size` long."""
    start, length = start.double()[:, None, None], length.double()[:, None, None]
    scale = length / size
    reach = scale.clamp(min=1)  # antialiasing: when shrinking, the triangle widens with the scale
    place = torch.arange(size, device=start.device).double()[:, None]
    if flip is not None:
        place = torch.where(flip[:, None, None], size - 1 - place, place)
    index = torch.arange(pixels, device=start.device).double()
    weight = triangle(index, start + (place + 0.5) * scale, reach, start, length).float()
    return weight / weight.sum(-1, keepdim=True)


def blur(images: Tensor, sigma: Tensor, kernel: int) -> Tensor:
    """(n, row, C, column) -> the same, blurred with each row's own sigma (0: none), mirrored at the border."""
    n, height, channels, width = images.shape
    across = blur_matrix(sigma, width, kernel).to(images.dtype)
    down = across if height == width else blur_matrix(sigma, height, kernel).to(images.dtype)
    lines = torch.bmm(images.reshape(n, height * channels, width), across.mT)
    return torch.bmm(down, lines.view(n, height, channels * width)).view(images.shape)


def blur_matrix(sigma: Tensor, pixels: int, kernel: int) -> Tensor:
    """(n, pixels, pixels): the blur along one side; a pixel counts by itself and by its image in either border."""
    half = min(kernel // 2, pixels - 1)
    _, weight = blur_taps(sigma, pixels, kernel)
    by_distance = F.pad(weight[:, half:], (0, 1))  # the last entry, 0, is for whatever is farther away
    place = torch.arange(pixels, device=sigma.device)
    near, far, none = place - place[:, None], place + place[:, None], half + 1
    above = torch.where(place > 0, far, none)  # a border pixel is its own image: counted once
    below = torch.where(place < pixels - 1, 2 * (pixels - 1) - far, none)
    direct, upper, lower = (by_distance[:, d.clamp(max=none)] for d in (near.abs(), above, below))
    return direct + upper + lower


def exact(device: torch.device) -> bool:
    """Whether products of float32 keep its 24 bits there: with TF32 they keep 11."""
    return device.type != "cuda" or torch.backends.cuda.matmul.fp32_precision in ("ieee", "none")
