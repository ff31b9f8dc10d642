"""Views on a GPU: crop, resize and blur of a whole batch as matrix products, which it makes fastest.

Each row has its own matrices, so nothing is gathered and every line of an image is read once. Images lie as
(n, row, C, column): then resizing and blurring either side is one batched product, without a copy between.
In float32 the results are those of `augment` to 1e-6; in float16, whose 11 bits hold every uint8 value, to a
quarter of a grey level (tests/data/test_products.py), which is half of what rounding to uint8 would cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supancl.data.views import augment
from supancl.data.views.augment import Draws, blur_taps, triangle

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor

    from supancl.data.views.specs import Crops
else:
    from supancl.lazy import F, torch


def render(
    crops: Crops, pixels: Tensor, draws: Draws, mean: tuple[float, ...], std: tuple[float, ...],
    dtype: torch.dtype | None = None, products: bool = True,
) -> Tensor:  # fmt: skip
    """(n, C, size, size): what was drawn, made of uint8 images; row i is of image i % len(pixels).

    Shapes are static and the host waits for nothing, so that it can be captured in a graph or compiled.
    `products` crops and blurs by matrix products, which must not be TF32's; then `dtype` may be bfloat16, which is
    what an autocast encoder would round the views to: the products are float16's.
    """
    dtype = dtype or torch.float32
    if not products:
        return _rendered_by_lines(crops, pixels, draws, mean, std).to(dtype)
    count, within = len(pixels), torch.float32 if dtype == torch.float32 else torch.float16
    views = len(draws.box) // count
    # views of an image side by side, so that one product makes them all
    draws = Draws._make(None if drawn is None else _swapped(drawn, views) for drawn in draws)
    images = crop_and_resize(pixels, draws.box, crops.size, draws.flip, within)
    images = _coloured(images.transpose(1, 2).float() / 255, draws)
    if crops.blurs:
        lines = images.transpose(1, 2).to(within)
        images = blur(lines, draws.sigma, augment.kernel_size(crops.size)).transpose(1, 2).float()
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
    if crops.blurs:
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


def are_exact(device: torch.device) -> bool:
    """Whether products of float32 keep its 24 bits there: with TF32 they keep 11."""
    return device.type != "cuda" or torch.backends.cuda.matmul.fp32_precision in ("ieee", "none")
