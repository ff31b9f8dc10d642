"""The images that an export is checked on: some of the run's own, else noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from supancl.core.encoders import Encoder
from supancl.data.columns import Columns
from supancl.data.decode import decode, upright_size
from supancl.data.opening import list_source
from supancl.data.splits import DataSpec, Source
from supancl.data.store.memory import Batch
from supancl.data.views.evaluation import evaluation_short_side, evaluation_view
from supancl.errors import BadInput, plural
from supancl.evaluation.encoder import EvaluatedEncoder
from supancl.evaluation.naming import data_name
from supancl.reporter import report_to
from supancl.runs.encoder_file import SHORT_SIDE

MOST_IMAGES = 17
LARGEST_SMALL_INPUT = 64  # px; smaller inputs may be for images that are as small, which have no margin to cut off


class CheckImages(NamedTuple):
    """Normalised inputs of the encoder (n, C, H, W)."""

    views: Tensor
    origin: str  # `17 images of photos`, or why they are noise
    is_whole: bool  # the images are no larger than the input, so no margin is cut off


def read_check_images(evaluated: EvaluatedEncoder, metadata: Mapping[str, str]) -> CheckImages:
    """A few images of the run's data. Without a run, or if they cannot be read, noise."""
    encoder, recipe = evaluated.encoder, evaluated.recipe
    if recipe is None:
        return _noise(evaluated, "noise images (the encoder has no run)", metadata)
    if recipe.data.stream:
        return _noise(evaluated, "noise images (the run streams its data)", metadata)
    try:
        with report_to(evaluated.reporter):
            pixels, short_sides = zip(*_read_pixels(encoder, recipe.data), strict=True)
    except (BadInput, OSError, ValueError) as error:
        return _noise(evaluated, f"noise images (the run's data cannot be read: {error})", metadata)
    views = [evaluation_view(Batch(image[None]), encoder.size, encoder.mean, encoder.std) for image in pixels]
    origin = f"{plural(len(views), 'image')} of {' + '.join(map(data_name, recipe.data.all_sources))}"
    return CheckImages(torch.cat(views), origin, np.median(short_sides).item() <= encoder.size)


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
    views = torch.randn(MOST_IMAGES, *shape, generator=torch.Generator().manual_seed(0))
    return CheckImages(views, origin, is_whole)


def _read_pixels(encoder: Encoder, data: DataSpec) -> list[tuple[Tensor, int]]:
    """Decoded pixels and the short side of a few images, held-out ones if the source has a split of them."""
    channels = encoder.spec.channels
    listed = list_source(data, channels)
    if isinstance(listed, Source):
        split = next(listed.splits[name] for name in ("test", "val", "train") if name in listed.splits)
        pixels = split.sample(MOST_IMAGES).batch(torch.arange(min(MOST_IMAGES, len(split)))).pixels
        return [(image, min(image.shape[-2:])) for image in pixels]
    entries = Columns.from_entries(listed.entries)
    split_name = next(name for name in ("test", "val", "train") if entries.has_split(name))
    positions = entries.positions_of(split_name)
    selected = positions[np.linspace(0, len(positions) - 1, min(MOST_IMAGES, len(positions))).round().astype(int)]
    items = [entries.items[position] for position in selected.tolist()]
    side = evaluation_short_side(encoder.size)
    return [(decode(item, channels, side), min(upright_size(item))) for item in items]
