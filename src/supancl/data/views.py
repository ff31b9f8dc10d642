"""Two views of every image of a batch, as tensor code: each row has its own draw, nothing loops over images.

`Crops` is the augmentation of the paper for images, `Masks` that of its toy data (App. B).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from supancl.config import Count, Fraction, Positive, Within
from supancl.data.images import Batch
from supancl.errors import BadInput

GREY = (0.2989, 0.587, 0.114)  # ITU-R 601-2 luma, as Pillow and torchvision weigh R, G, B


class Draws(NamedTuple):
    """What was drawn for each of n views."""

    box: Tensor  # (n, 4): top, left, height, width of the crop
    flip: Tensor  # (n,) bool
    factors: Tensor  # (n, 3): brightness, contrast, saturation; 1 leaves the image as it is
    hue: Tensor  # (n,): shift in turns
    order: Tensor  # (n, 4): at which place each of brightness, contrast, saturation, hue comes
    grey: Tensor  # (n,) bool
    sigma: Tensor  # (n,): of the blur; 0 for none


@dataclass(frozen=True)
class Crops:
    """Random crop, flip, colour jitter, grey, blur (Sec. 5.1, following SimCLR); probabilities are per image."""

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
    blur: Fraction = 0.5
    blur_sigma: tuple[Positive, Positive] = (0.1, 2.0)

    def __post_init__(self) -> None:
        for name in ("scale", "ratio", "blur_sigma"):
            low, high = getattr(self, name)
            if low > high:
                raise BadInput(f"views.{name} = [{low:g}, {high:g}]: the first must not be above the second")

    def __call__(
        self, batch: Batch, mean: tuple[float, ...], std: tuple[float, ...], generator: torch.Generator, views: int = 2
    ) -> Tensor:
        """(views, B, C, size, size): normalised views of a batch of uint8 images."""
        pixels = batch.pixels
        draws = self.draw(len(pixels) * views, _sizes(batch).repeat(views, 1), generator)
        images = crop_and_resize(pixels.repeat(views, 1, 1, 1), draws.box, self.size, draws.flip) / 255
        if images.shape[1] == 3:
            images = jitter(images, draws.factors, draws.hue, draws.order)
            images = torch.where(draws.grey[:, None, None, None], luma(images).expand_as(images), images)
        elif images.shape[1] == 1:
            images = jitter_grey(images, draws.factors, draws.order)
        if self.blur > 0:
            images = blur(images, draws.sigma, kernel_size(self.size))
        return normalized(images, mean, std).view(views, len(pixels), *images.shape[1:])

    def draw(self, n: int, sizes: Tensor, generator: torch.Generator) -> Draws:
        device = sizes.device

        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator, device=device)

        def happens(probability: float) -> Tensor:
            return uniform(n) < probability

        jittered = happens(self.jitter)
        strength = torch.tensor([self.brightness, self.contrast, self.saturation], device=device)
        factors = 1 + strength * (2 * uniform(n, 3) - 1)
        low, high = self.blur_sigma
        return Draws(
            box=draw_boxes(sizes, self.scale, self.ratio, generator),
            flip=happens(self.flip),
            factors=torch.where(jittered[:, None], factors, torch.ones_like(factors)),
            hue=torch.where(jittered, self.hue * (2 * uniform(n) - 1), torch.zeros(n, device=device)),
            order=uniform(n, 4).argsort(1),
            grey=happens(self.grey),
            sigma=torch.where(happens(self.blur), low + (high - low) * uniform(n), torch.zeros(n, device=device)),
        )


@dataclass(frozen=True)
class Masks:
    """App. B: a view of a toy vector has a share of its dimensions replaced by the data's mean, which is zero."""

    kind: Literal["masks"] = "masks"
    share: Fraction = 0.6

    def __call__(
        self, batch: Batch, mean: tuple[float, ...], std: tuple[float, ...], generator: torch.Generator, views: int = 2
    ) -> Tensor:
        vectors = batch.pixels
        n, width = vectors.shape
        rank = torch.rand(views, n, width, generator=generator, device=vectors.device).argsort(-1)
        return vectors * (rank >= round(self.share * width))  # exactly that share, not that share on average


ViewSpec = Crops | Masks


def evaluation_view(batch: Batch, size: int, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """The one view without randomness: the centre 7/8 of the short side as a square (256 -> 224), normalised.

    Images whose short side is not above `size` have no margin to cut away: their whole short side is taken.
    Vectors pass as they are.
    """
    if batch.pixels.ndim == 2:
        return batch.pixels
    sizes = _sizes(batch).double()
    short = sizes.amin(1)
    side = torch.where(short > size, torch.maximum(short * (7 / 8), short.new_tensor(size)), short)
    box = torch.stack([(sizes[:, 0] - side) / 2, (sizes[:, 1] - side) / 2, side, side], dim=1)
    return normalized(crop_and_resize(batch.pixels, box.float(), size) / 255, mean, std)


def draw_boxes(
    sizes: Tensor, scale: tuple[float, float], ratio: tuple[float, float], generator: torch.Generator, tries: int = 10
) -> Tensor:
    """(n, 4) top, left, height, width, drawn as torchvision's RandomResizedCrop does, for all rows at once."""
    n, device = len(sizes), sizes.device
    height, width = sizes[:, :1].double(), sizes[:, 1:].double()
    draws = torch.rand(4, n, tries, generator=generator, device=device, dtype=torch.float64)
    area = height * width * (scale[0] + (scale[1] - scale[0]) * draws[0])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = (low + (high - low) * draws[1]).exp()
    w, h = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    first = fits.to(torch.uint8).argmax(1, keepdim=True)  # of several attempts the first that fits
    w, h = w.gather(1, first), h.gather(1, first)
    top = (draws[2].gather(1, first) * (height - h + 1)).floor()
    left = (draws[3].gather(1, first) * (width - w + 1)).floor()
    # none fits: the whole image, cut to the nearest allowed aspect, from its centre
    w0 = torch.minimum(width, (height * ratio[1]).round())
    h0 = torch.minimum(height, (width / ratio[0]).round())
    drawn = torch.cat([top, left, h, w], dim=1)
    whole = torch.cat([((height - h0) / 2).floor(), ((width - w0) / 2).floor(), h0, w0], dim=1)
    return torch.where(fits.any(1, keepdim=True), drawn, whole).float()


def crop_and_resize(images: Tensor, box: Tensor, size: int, flip: Tensor | None = None) -> Tensor:
    """Each image's box as (size, size), bilinear with antialiasing: two batched matrix products.

    Pixels outside the box have no weight, so padding and neighbours do not leak in.
    """
    dtype = torch.promote_types(images.dtype, torch.float32)
    rows = resize_weights(box[:, 0], box[:, 2], images.shape[-2], size).to(dtype)
    columns = resize_weights(box[:, 1], box[:, 3], images.shape[-1], size).to(dtype)
    if flip is not None:
        columns = torch.where(flip[:, None, None], columns.flip(1), columns)
    return rows[:, None] @ images.to(dtype) @ columns[:, None].mT


def resize_weights(start: Tensor, length: Tensor, pixels: int, size: int) -> Tensor:
    """(n, size, pixels): how much each input pixel counts for each output pixel of the crop [start, start + length)."""
    start, length = start.double(), length.double()
    scale = (length / size)[:, None, None]
    reach = scale.clamp(min=1)  # antialiasing: when shrinking, the triangle widens with the scale
    centre = start[:, None, None] + (torch.arange(size, device=start.device).double() + 0.5)[None, :, None] * scale
    pixel = torch.arange(pixels, device=start.device).double() + 0.5
    weight = (1 - (pixel - centre).abs() / reach).clamp(min=0)
    inside = (pixel > start[:, None]) & (pixel < (start + length)[:, None])
    weight = weight * inside[:, None, :]
    return weight / weight.sum(-1, keepdim=True)


def luma(images: Tensor) -> Tensor:
    """(n, 1, H, W): the grey image."""
    red, green, blue = images.unbind(1)
    return (GREY[0] * red + GREY[1] * green + GREY[2] * blue).unsqueeze(1)


def jitter(images: Tensor, factors: Tensor, hue: Tensor, order: Tensor) -> Tensor:
    """Brightness, contrast, saturation and hue, in each row's own order.

    The first three all blend the image with something (black, its mean grey, its grey), so whatever comes
    before the hue is three blends, and whatever comes after is three more, with factor 1 where there is none.
    """
    hue_place = order[:, 3]
    blends = order[:, :3].argsort(1)  # which blend comes first, second, third
    ones = torch.ones_like(factors[:, 0])
    for step in range(3):
        which = blends[:, step]
        factor = factors.gather(1, which[:, None])[:, 0]
        place = order.gather(1, which[:, None])[:, 0]
        images = _blend(images, which, torch.where(place < hue_place, factor, ones))
    images = torch.where((hue == 0)[:, None, None, None], images, shift_hue(images, hue))
    for step in range(3):
        which = blends[:, step]
        factor = factors.gather(1, which[:, None])[:, 0]
        place = order.gather(1, which[:, None])[:, 0]
        images = _blend(images, which, torch.where(place > hue_place, factor, ones))
    return images


def jitter_grey(images: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Brightness and contrast; a grey image has no saturation and no hue."""
    contrast_first = (order[:, 1] < order[:, 0])[:, None, None, None]
    brightness, contrast = factors[:, 0, None, None, None], factors[:, 1, None, None, None]

    def contrasted(image: Tensor) -> Tensor:
        return torch.lerp(image.mean((-1, -2, -3), keepdim=True), image, contrast).clamp(0, 1)

    early = torch.where(contrast_first, contrasted(images), images)
    bright = (early * brightness).clamp(0, 1)
    return torch.where(contrast_first, bright, contrasted(bright))


def _blend(images: Tensor, which: Tensor, factor: Tensor) -> Tensor:
    which, factor = which[:, None, None, None], factor[:, None, None, None]
    grey = luma(images)
    base = torch.where(which == 2, grey, grey.mean((-1, -2), keepdim=True))
    base = torch.where(which == 0, torch.zeros_like(base), base)
    return torch.where(factor == 1, images, (base + factor * (images - base)).clamp(0, 1))


def shift_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Rotate the hue of RGB images by a fraction of a turn, through HSV."""
    value, brightest = images.max(1)
    lowest = images.amin(1)
    chroma = value - lowest
    safe = torch.where(chroma == 0, torch.ones_like(chroma), chroma)
    red, green, blue = images.unbind(1)
    from_green = torch.where(brightest == 1, 2 + (blue - red) / safe, 4 + (red - green) / safe)
    sector = torch.where(brightest == 0, (green - blue) / safe, from_green)
    sector = (sector + 6 * turns[:, None, None]) % 6
    # the piecewise-linear HSV wheel in closed form: a channel falls from `value` by up to `chroma`
    shift = torch.tensor([5.0, 3.0, 1.0], device=images.device, dtype=images.dtype)[None, :, None, None]
    k = (shift + sector[:, None]) % 6
    fall = torch.minimum(k, 4 - k).clamp(0, 1)
    return value[:, None] - chroma[:, None] * fall


def kernel_size(size: int) -> int:
    """The odd number nearest above a tenth of the side: 23 at 224 px, as SimCLR's."""
    return max(3, 2 * round(size / 20) + 1)


def blur(images: Tensor, sigma: Tensor, kernel: int) -> Tensor:
    """Gaussian blur with each row's own sigma (0: none), mirrored at the border: two batched matrix products."""
    rows = blur_weights(sigma, images.shape[-2], kernel).to(images.dtype)
    columns = blur_weights(sigma, images.shape[-1], kernel).to(images.dtype)
    blurred = rows[:, None] @ images @ columns[:, None].mT
    return torch.where((sigma > 0)[:, None, None, None], blurred, images)


def blur_weights(sigma: Tensor, pixels: int, kernel: int) -> Tensor:
    """(n, pixels, pixels): the blur along one side as a matrix, mirrored borders folded in."""
    half = min(kernel // 2, pixels - 1)
    offset = torch.arange(-half, half + 1, device=sigma.device)
    safe = torch.where(sigma > 0, sigma, torch.ones_like(sigma))
    weight = (-0.5 * (offset / safe[:, None]) ** 2).exp()
    weight = weight / weight.sum(1, keepdim=True)
    source = (torch.arange(pixels, device=sigma.device)[:, None] + offset).abs()
    source = (pixels - 1) - ((pixels - 1) - source).abs()
    matrix = torch.zeros(len(sigma), pixels, pixels, device=sigma.device)
    return matrix.scatter_add_(2, source.expand(len(sigma), -1, -1), weight[:, None, :].expand(-1, pixels, -1))


def normalized(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    shape = (-1, 1, 1)
    centre = torch.tensor(mean, device=images.device, dtype=images.dtype).view(shape)
    return (images - centre) / torch.tensor(std, device=images.device, dtype=images.dtype).view(shape)


def _sizes(batch: Batch) -> Tensor:
    if batch.sizes is not None:
        return batch.sizes
    height, width = batch.pixels.shape[-2:]
    return torch.tensor([[height, width]], device=batch.pixels.device).expand(len(batch.pixels), 2)
