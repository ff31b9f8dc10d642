"""Two random views of every image of a batch: settings and random draws.

`Crops` is the paper's augmentation for images, `Masks` the one for its toy data (App. B). The operations are in
`augment`, and whole views on a CPU; those on a GPU are in `render`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from supancl.config import Count, Fraction, Positive, Within
from supancl.data.store.memory import Batch
from supancl.data.views.augment import Draws, render_in_chunks
from supancl.data.views.render import ZERO_PROBABILITY, render
from supancl.distributed import RowRange
from supancl.errors import BadInput

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

CROP_ATTEMPTS = 10  # attempts to draw a box that fits, as in torchvision
# one probability, or one for each of the two views
PerView = Fraction | tuple[Fraction, Fraction]


@dataclass(frozen=True)
class LocalCrops:
    """Small crops in addition to the two views (multi-crop): they give anchors, never targets."""

    count: Count = 6
    size: Count = 96
    scale: tuple[Positive, Positive] = (0.05, 0.2)  # fraction of the image's area

    def __post_init__(self) -> None:
        _check_ascending(self, "scale")


@dataclass(frozen=True)
class Crops:
    """Random crop, flip, colour jitter, grey, blur, solarise (Sec. 5.1, following SimCLR); probabilities are per image.

    `blur` and `solarize` may differ between the two views (BYOL, MoCo-v3); further views alternate. Solarising inverts
    values at or above the threshold, for images in [0, 1].
    """

    kind: Literal["crops"] = "crops"
    size: Count = 224
    scale: tuple[Positive, Positive] = (0.2, 1.0)  # fraction of the image's area
    ratio: tuple[Positive, Positive] = (3 / 4, 4 / 3)
    flip: Fraction = 0.5
    jitter: Fraction = 0.8
    brightness: Fraction = 0.4
    contrast: Fraction = 0.4
    saturation: Fraction = 0.4
    hue: Annotated[float, Within(0, 0.5)] = 0.1  # turns; half a turn is the maximum
    grey: Fraction = 0.2
    blur: PerView = 0.5
    blur_sigma: tuple[Positive, Positive] = (0.1, 2.0)
    solarize: PerView = 0.0
    solarize_threshold: Fraction = 0.5
    local: LocalCrops | None = None

    def __post_init__(self) -> None:
        _check_ascending(self, "scale", "ratio", "blur_sigma")

    def __call__(
        self, batch: Batch | Tensor, mean: tuple[float, ...], std: tuple[float, ...],
        generator: torch.Generator | None = None, views: int = 2, renderer: Callable[..., Any] | None = None,
        dtype: torch.dtype | None = None, row_range: RowRange | None = None,
    ) -> Tensor:  # fmt: skip
        """(views, B, C, size, size): normalised views of a batch of uint8 images, such as a tensor (B, C, H, W).

        On a GPU, `renderer` replaces `draw_and_render` by a compiled version, and `dtype` may be bfloat16. The images
        may be a range of the rows of a batch: numbers are drawn for all of its rows, so that an image gets the same
        views with any number of processes.
        """
        batch = batch if isinstance(batch, Batch) else Batch(batch)
        if batch.pixels.dtype != torch.uint8:
            raise BadInput(f"images of {batch.pixels.dtype}; views are made of images of uint8, 0 to 255")
        dtype = dtype or torch.float32
        pixels, sizes = batch.pixels, batch.image_sizes().repeat(views, 1)
        uniforms = self.draw_uniforms(len(sizes), pixels.device, generator, row_range)
        if pixels.device.type == "cpu":
            rendered = render_in_chunks(self, pixels, self.draws_from(uniforms, sizes, views), mean, std)
        else:
            rendered = (renderer or draw_and_render)(self, pixels, uniforms, sizes, views, mean, std, dtype)
        return rendered.view(views, len(pixels), *rendered.shape[1:])

    def local_views(
        self, batch: Batch, mean: tuple[float, ...], std: tuple[float, ...],
        generator: torch.Generator | None = None, **options: Any,
    ) -> Tensor | None:  # fmt: skip
        """(count, B, C, small, small) by the same operations, with the options of a call; None without local crops."""
        if self.local is None:
            return None
        small = replace(self, size=self.local.size, scale=self.local.scale, local=None)
        return small(batch, mean, std, generator, self.local.count, **options)

    def draw_uniforms(
        self, n: int, device: torch.device, generator: torch.Generator | None = None, row_range: RowRange | None = None
    ) -> dict[str, Tensor]:
        """The random numbers for n rows, all from [0, 1); drawn for every row of a batch that they are a range of."""
        views = 1 if row_range is None else n // row_range.count
        n = n if row_range is None else row_range.total * views

        def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.rand(*shape, generator=generator, device=device, dtype=dtype)

        uniforms = {
            "jitter": draw(n), "factors": draw(n, 3), "box": draw(4, n, CROP_ATTEMPTS, dtype=torch.float64),
            "flip": draw(n), "hue": draw(n), "order": draw(n, 4), "grey": draw(n), "blur": draw(n),
            "sigma": draw(n),
        }  # fmt: skip
        if self.solarize not in ZERO_PROBABILITY:  # last and only if used, so that the other draws do not change
            uniforms["solarize"] = draw(n)
        if row_range is None or row_range.is_whole_batch:
            return uniforms
        return {name: row_range.select_per_view(u, views, int(name == "box")) for name, u in uniforms.items()}

    def draws_from(self, uniforms: dict[str, Tensor], sizes: Tensor, views: int = 1) -> Draws:
        """The numbers of `draw_uniforms` as parameters: the first n / views rows are first views, and so on."""

        def happens(probability: PerView, uniform: Tensor) -> Tensor:
            if isinstance(probability, tuple):
                by_view = uniform.view(views, -1)
                return torch.cat([row < probability[view % 2] for view, row in enumerate(by_view)])
            return uniform < probability

        jittered = happens(self.jitter, uniforms["jitter"])
        strengths = zip((self.brightness, self.contrast, self.saturation), uniforms["factors"].unbind(1), strict=True)
        factors = [
            torch.where(jittered, 1 + s * (2 * uniform - 1), torch.ones_like(uniform)) for s, uniform in strengths
        ]
        low, high = self.blur_sigma
        return Draws(
            box=boxes_from_draws(uniforms["box"], sizes, self.scale, self.ratio),
            flip=happens(self.flip, uniforms["flip"]),
            factors=torch.stack(factors, dim=1),
            hue=self.hue * (2 * uniforms["hue"] - 1) * jittered,
            order=uniforms["order"].argsort(1),
            grey=happens(self.grey, uniforms["grey"]),
            sigma=happens(self.blur, uniforms["blur"]) * (low + (high - low) * uniforms["sigma"]),
            solarize=happens(self.solarize, uniforms["solarize"]) if "solarize" in uniforms else None,
        )


@dataclass(frozen=True)
class Masks:
    """App. B: in a view of a toy vector, a fraction of the dimensions is replaced by the data's mean, zero."""

    kind: Literal["masks"] = "masks"
    share: Fraction = 0.6

    def __call__(
        self, batch: Batch, mean: tuple[float, ...], std: tuple[float, ...], generator: torch.Generator | None = None,
        views: int = 2, row_range: RowRange | None = None, **_: Any,
    ) -> Tensor:  # fmt: skip
        vectors, width = batch.pixels, batch.pixels.shape[1]
        row_range = row_range or RowRange(0, len(vectors), len(vectors))
        uniforms = torch.rand(views, row_range.total, width, generator=generator, device=vectors.device)
        rank = row_range.select(uniforms, 1).argsort(-1)
        return vectors * (rank >= round(self.share * width))  # exactly that fraction, not on average

    def local_views(self, *_: Any, **_named: Any) -> None:
        """A vector has no small crops."""


ViewSpec = Crops | Masks


def draw_and_render(
    crops: Crops, pixels: Tensor, uniforms: dict[str, Tensor], sizes: Tensor, views: int, *render_options: Any
) -> Tensor:
    """`render` from uniform numbers; on a GPU this is compiled into a few kernels."""
    return render(crops, pixels, crops.draws_from(uniforms, sizes, views), *render_options)


def boxes_from_draws(draws: Tensor, sizes: Tensor, scale: tuple[float, float], ratio: tuple[float, float]) -> Tensor:
    """(n, 4) top, left, height, width, as in torchvision's RandomResizedCrop, for all rows at once.

    `draws` are (4, n, CROP_ATTEMPTS) numbers from [0, 1): area, aspect, top and left of each attempt.
    """
    height, width = sizes[:, :1].double(), sizes[:, 1:].double()
    area = height * width * (scale[0] + (scale[1] - scale[0]) * draws[0])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = (low + (high - low) * draws[1]).exp()
    w, h = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    first_fit = fits.to(torch.uint8).argmax(1, keepdim=True)  # the first attempt that fits
    w, h = w.gather(1, first_fit), h.gather(1, first_fit)
    top = (draws[2].gather(1, first_fit) * (height - h + 1)).floor()
    left = (draws[3].gather(1, first_fit) * (width - w + 1)).floor()
    # if none fits: the centre of the image, cut to the nearest allowed aspect
    w0 = torch.minimum(width, (height * ratio[1]).round())
    h0 = torch.minimum(height, (width / ratio[0]).round())
    boxes = torch.cat([top, left, h, w], dim=1)
    fallback = torch.cat([((height - h0) / 2).floor(), ((width - w0) / 2).floor(), h0, w0], dim=1)
    return torch.where(fits.any(1, keepdim=True), boxes, fallback).float()


def _check_ascending(spec: LocalCrops | Crops, *names: str) -> None:
    for name in names:
        if operator.gt(*getattr(spec, name)):
            raise BadInput(f"views.{name} = {getattr(spec, name)}: the first must not be above the second")
