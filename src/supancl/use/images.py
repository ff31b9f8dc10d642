"""The images that an export is checked on: some of the run's own, else noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from supancl.core.encoders import Encoder
from supancl.data.columns import Columns
from supancl.data.decode import decode, open_image
from supancl.data.opening import list_source
from supancl.data.splits import DataSpec, Source
from supancl.data.store.memory import Batch
from supancl.data.views.evaluation import evaluation_short_side, evaluation_view
from supancl.errors import BadInput, plural
from supancl.evaluation.encoder import EvaluatedEncoder
from supancl.evaluation.naming import data_name
from supancl.reporter import report_to
from supancl.weights.encoder_file import SHORT_SIDE

BATCHES = (1, 3, 17)
LARGEST_SMALL_INPUT = 64  # px; smaller inputs may be for images that are as small, which have no margin to cut off


class CheckImages(NamedTuple):
    """Normalised inputs of the encoder (n, C, H, W), and the pictures that they were made of if these are known."""

    views: Tensor
    pictures: tuple[Any, ...]
    origin: str  # `17 images of photos`, or why they are noise
    is_whole: bool  # the pictures are no larger than the input, so no margin is cut off

    def batches(self) -> list[Tensor]:
        """Batches of 1, 3 and 17 images; if there are fewer, they are repeated."""
        return [self.views[torch.arange(size) % len(self.views)] for size in BATCHES]


def read_check_images(evaluated: EvaluatedEncoder, metadata: Mapping[str, str]) -> CheckImages:
    """A few images of the run's data. Without a run, or if they cannot be read, noise."""
    encoder, recipe = evaluated.encoder, evaluated.recipe
    if recipe is None:
        return _noise(evaluated, "noise images (the encoder has no run)", metadata)
    if recipe.data.stream:
        return _noise(evaluated, "noise images (the run streams its data)", metadata)
    try:
        with report_to(evaluated.reporter):
            pairs = _read_pairs(encoder, recipe.data)
    except (BadInput, OSError, ValueError) as error:
        return _noise(evaluated, f"noise images (the run's data cannot be read: {error})", metadata)
    pixels, pictures = zip(*pairs, strict=True)
    views = [evaluation_view(Batch(image[None]), encoder.size, encoder.mean, encoder.std) for image in pixels]
    short_sides = [min(picture.size) for picture in pictures if picture is not None]
    return CheckImages(
        torch.cat(views),
        tuple(pictures) if len(short_sides) == len(pictures) else (),
        f"{plural(len(views), 'image')} of {' + '.join(map(data_name, recipe.data.all_sources))}",
        np.median(short_sides).item() <= encoder.size if short_sides else False,
    )


def _noise(evaluated: EvaluatedEncoder, origin: str, metadata: Mapping[str, str]) -> CheckImages:
    """Noise of the size of the input; the metadata say how large the training images were."""
    encoder, spec = evaluated.encoder, evaluated.encoder.spec
    side = metadata.get(SHORT_SIDE, "")
    is_whole = side.isdecimal() and int(side) <= encoder.size
    if not side and spec.name != "linear" and encoder.size <= LARGEST_SMALL_INPUT:
        evaluated.reporter.warn(
            f"{evaluated.location} does not say how large its training images were; the export assumes larger than "
            f"{encoder.size} px. If they were not, set crop_pct to 1 in its config.json"
        )
    shape = (spec.channels * spec.size,) if spec.name == "linear" else (spec.channels, spec.size, spec.size)
    views = torch.randn(BATCHES[-1], *shape, generator=torch.Generator().manual_seed(0))
    return CheckImages(views, (), origin, is_whole)


def _read_pairs(encoder: Encoder, data: DataSpec) -> list[tuple[Tensor, Any]]:
    """Decoded pixels and the picture of a few images, held-out ones if the source has a split of them."""
    channels = encoder.spec.channels
    listed = list_source(data, channels)
    if isinstance(listed, Source):
        split = next(listed.splits[name] for name in ("test", "val", "train") if name in listed.splits)
        pixels = split.sample(BATCHES[-1]).batch(torch.arange(min(BATCHES[-1], len(split)))).pixels
        return [(image, _to_picture(image)) for image in pixels]
    entries = Columns.from_entries(listed.entries)
    split_name = next(name for name in ("test", "val", "train") if entries.has_split(name))
    positions = entries.positions_of(split_name)
    selected = positions[np.linspace(0, len(positions) - 1, min(BATCHES[-1], len(positions))).round().astype(int)]
    return [_read_pair(entries.items[position], encoder) for position in selected.tolist()]


def _read_pair(item: Any, encoder: Encoder) -> tuple[Tensor, Any]:
    channels = encoder.spec.channels
    with open_image(item) as file:
        picture = file.convert("L" if channels == 1 else "RGB")  # as a user of timm does
    return decode(item, channels, evaluation_short_side(encoder.size)), picture


def _to_picture(pixels: Tensor) -> Any:
    if pixels.ndim != 3 or len(pixels) not in (1, 3):
        return None
    array = pixels.permute(1, 2, 0).numpy()
    return Image.fromarray(array[..., 0] if len(pixels) == 1 else array)


class ImageChange(NamedTuple):
    """How features change if another library prepares the pictures.

    `moved` is the mean change as a fraction of the mean distance between the features of two pictures.
    """

    lowest_cosine: float
    moved: float

    def __str__(self) -> str:
        if self.moved == 0:
            return "the same features"
        cosine = f"lowest cosine {self.lowest_cosine:.5f}"
        return f"features move by {self.moved:.2%} of the distance between two images, {cosine}"


def measure_change(ours: Tensor, theirs: Tensor) -> ImageChange:
    """Compare features (n, width) of the same pictures."""
    cosine = torch.nn.functional.cosine_similarity(ours.double(), theirs.double()).min().item()
    distance = torch.nn.functional.pdist(ours.double())
    change = (ours - theirs).double().norm(dim=1).mean().item()
    usual = distance.mean().item() if len(distance) else 0.0
    return ImageChange(cosine, change / usual if usual else (0.0 if change == 0 else float("inf")))
