"""Views on a GPU: crop, resize and blur a whole batch with matrix products, the fastest way there.

Each row has its own matrices, so nothing is gathered and every line of an image is read once. The memory layout is
(n, row, C, column): so resizing or blurring along either side is one batched product, without a copy.
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
    dtype: torch.dtype | None = None, products: bool = True
) -> Tensor:  # fmt: skip
    """(n, C, size, size): render the draws from uint8 images; row i is a view of image i % len(pixels).

    Shapes are static and the host never waits, so it can be captured in a graph or compiled. With `products`, crops
    and blurs are matrix products, which must not use TF32; then `dtype` may be bfloat16, to which an autocast encoder
    would round the views anyway: the products use float16.
    """
    dtype = dtype or torch.float32
    if not products:
        return _render_by_lines(crops, pixels, draws, mean, std).to(dtype)
    count, product_dtype = len(pixels), torch.float32 if dtype == torch.float32 else torch.float16
    views = len(draws.box) // count
    # the views of an image next to each other, so that one product renders them all
    draws = Draws._make(None if values is None else _swap_views_and_images(values, views) for values in draws)
    images = crop_and_resize(pixels, draws.box, crops.size, draws.flip, product_dtype)
    images = _jitter_colours(images.transpose(1, 2).float() / 255, draws)
    if crops.blurs:
        lines = images.transpose(1, 2).to(product_dtype)
        images = blur(lines, draws.sigma, augment.kernel_size(crops.size)).transpose(1, 2).float()
    views_out = _swap_views_and_images(
        augment.normalized(_solarize_rows(images, draws, crops), mean, std).to(dtype), count
    )
    # the layout that an autocast encoder reads on a GPU
    return views_out if dtype == torch.float32 else views_out.contiguous(memory_format=torch.channels_last)


def _swap_views_and_images(rows: Tensor, outer: int) -> Tensor:
    """Rows (view, image) -> rows (image, view), or back; `outer` is the current number of the first."""
    return rows.view(outer, -1, *rows.shape[1:]).transpose(0, 1).flatten(0, 1)


def _render_by_lines(
    crops: Crops, pixels: Tensor, draws: Draws, mean: tuple[float, ...], std: tuple[float, ...]
) -> Tensor:
    height, width = pixels.shape[-2:]
    rows, columns = augment.crop_taps(draws.box, height, width, crops.size, draws.flip, torch.float32)
    image_index = torch.arange(len(draws.box), device=pixels.device) % len(pixels)
    rows = rows._replace(weight=rows.weight / 255)
    images = _jitter_colours(
        augment.make_contiguous(augment.resampled(pixels.float(), image_index, rows, columns)), draws
    )
    if crops.blurs:
        images = augment.blur(images, draws.sigma, augment.kernel_size(crops.size))
    return augment.normalized(_solarize_rows(images, draws, crops), mean, std)


def _jitter_colours(images: Tensor, draws: Draws) -> Tensor:
    if images.shape[1] == 3:
        images = augment.jitter(images, draws.factors, draws.hue, draws.order)
        return torch.where(draws.grey[:, None, None, None], augment.luma(images), images)
    return augment.jitter_grey(images, draws.factors, draws.order) if images.shape[1] == 1 else images


def _solarize_rows(images: Tensor, draws: Draws, crops: Crops) -> Tensor:
    if draws.solarize is None:
        return images
    return torch.where(draws.solarize[:, None, None, None], augment.solarize(images, crops.solarize_threshold), images)


def crop_and_resize(pixels: Tensor, box: Tensor, size: int, flip: Tensor, dtype: torch.dtype) -> Tensor:
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


def blur(images: Tensor, sigma: Tensor, kernel: int) -> Tensor:
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


def has_exact_products(device: torch.device) -> bool:
    """Whether float32 products on the device keep 24 bits; with TF32 they keep 11."""
    return device.type != "cuda" or torch.backends.cuda.matmul.fp32_precision in ("ieee", "none")
