"""Two views of every image of a batch: what is drawn at random, and from which settings.

`Crops` is the augmentation of the paper for images, `Masks` that of its toy data (App. B). The operations themselves
are in `augment`; `products` makes them of matrix products, for GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from supancl.config import Count, Fraction, Positive, Within
from supancl.data.store.memory import Batch
from supancl.data.views import augment, products
from supancl.data.views.augment import Draws
from supancl.distributed import Part
from supancl.errors import BadInput

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

TRIES = 10  # attempts at a box that fits, as torchvision makes

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


Renderer = Callable[..., Any]  # gives a tensor; see `draw_and_render`


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

    @property
    def blurs(self) -> bool:
        """Whether any view may be blurred."""
        return self.blur not in NEVER

    def __call__(
        self,
        batch: Batch,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        generator: torch.Generator | None = None,
        views: int = 2,
        renderer: Renderer | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """(views, B, C, size, size): normalised views of a batch of uint8 images.

        `renderer` takes the place of `draw_and_render` on a GPU: the same function, compiled; there `dtype` may be
        bfloat16.
        """
        dtype = dtype or torch.float32
        pixels, sizes = batch.pixels, batch.image_sizes().repeat(views, 1)
        taken = self.uniforms(len(sizes), pixels.device, generator)
        if pixels.device.type == "cpu":
            made = augment.render_in_chunks(self, pixels, self.drawn(taken, sizes, views), mean, std)
        else:
            by_products = dtype != torch.float32 or products.are_exact(pixels.device)
            made = (renderer or draw_and_render)(self, pixels, taken, sizes, views, mean, std, dtype, by_products)
        return made.view(views, len(pixels), *made.shape[1:])

    def local_views(
        self,
        batch: Batch,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        generator: torch.Generator | None = None,
        renderer: Renderer | None = None,
        dtype: torch.dtype | None = None,
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
            "jitter": uniform(n), "factors": uniform(n, 3), "box": uniform(4, n, TRIES, dtype=torch.float64),
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
            box=boxes_from_draws(taken["box"], sizes, self.scale, self.ratio),
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
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        vectors = batch.pixels
        n, width = vectors.shape
        rank = torch.rand(views, n, width, generator=generator, device=vectors.device).argsort(-1)
        return vectors * (rank >= round(self.share * width))  # exactly that share, not that share on average

    def local_views(self, *_: Any, **_named: Any) -> None:
        """A vector has no small crops."""


ViewSpec = Crops | Masks


def draw_and_render(
    crops: Crops, pixels: Tensor, taken: dict[str, Tensor], sizes: Tensor, views: int, *how: Any
) -> Tensor:
    """`render` from the random numbers themselves: what is compiled into a few kernels on a GPU."""
    return products.render(crops, pixels, crops.drawn(taken, sizes, views), *how)


def boxes_from_draws(draws: Tensor, sizes: Tensor, scale: tuple[float, float], ratio: tuple[float, float]) -> Tensor:
    """(n, 4) top, left, height, width, drawn as torchvision's RandomResizedCrop does, for all rows at once.

    `draws` are (4, n, tries) numbers from [0, 1): area, aspect, top and left of each attempt.
    """
    height, width = sizes[:, :1].double(), sizes[:, 1:].double()
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


def _ascending(name: str, pair: tuple[float, float]) -> None:
    low, high = pair
    if low > high:
        raise BadInput(f"{name} = [{low:g}, {high:g}]: the first must not be above the second")


# --- rows of a batch --------------------------------------------------------------------------------------------------


def in_part(views: ViewSpec, part: Part) -> ViewSpec:
    """The same views for rows that are a part of a batch.

    What is random is drawn for every row of the batch, whoever has it: so an image gets the same views however many
    processes share the batch. Drawing costs little; only the own rows are rendered.
    """
    if part.whole:
        return views
    settings = {field.name: getattr(views, field.name) for field in fields(views)}
    return PartOfCrops(**settings, part=part) if isinstance(views, Crops) else PartOfMasks(**settings, part=part)


@dataclass(frozen=True)
class PartOfCrops(Crops):
    """Crops of these rows."""

    part: Part = Part(0, 1, 1)

    def uniforms(self, n: int, device: torch.device, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        views = n // self.part.count
        taken = super().uniforms(self.part.total * views, device, generator)
        return {name: self.part.of_views(drawn, views, dim=1 if name == "box" else 0) for name, drawn in taken.items()}


@dataclass(frozen=True)
class PartOfMasks(Masks):
    """Masks of these rows."""

    part: Part = Part(0, 1, 1)

    def __call__(self, batch: Batch, *rest: Any, **named: Any) -> Tensor:
        whole = Batch(self.part.amid(batch.pixels))
        return self.part.of(super().__call__(whole, *rest, **named), 1)
