"""What a source holds, without decoding it: how many images, labels and classes, and how large the images are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from supancl.data.columns import Columns
from supancl.data.decode import upright_size
from supancl.data.opening import evenly_spaced_positions, list_source
from supancl.data.splits import Data, DataSpec, Listing, Source, Split
from supancl.data.store.memory import Progress

if TYPE_CHECKING:
    import torch
else:
    from supancl.lazy import torch

HELD_OUT = 0.1  # of the labelled images, where a source has no held-out split


@dataclass(frozen=True)
class Survey:
    """The training images of a source: their number, how many have a label, classes, and the usual short side."""

    images: int
    labelled: int
    classes: int
    side: int  # pixels, median

    @property
    def is_labelled(self) -> bool:
        return self.classes > 1


def survey_source(spec: DataSpec, channels: int = 3, progress: Progress | None = None) -> Survey:
    """List `spec.source` and read the sizes of some images from their headers."""
    source = list_source(spec, channels, progress)
    if isinstance(source, Listing):
        return _survey_listing(source, spec)
    return _survey_splits(source, spec)


def survey_data(data: Data) -> Survey:
    """The same for data that are open."""
    return Survey(len(data.train), data.train.num_labelled, len(data.train.class_ids()), _usual_side(data.train))


def _survey_listing(listing: Listing, spec: DataSpec) -> Survey:
    columns = Columns.from_entries(listing.entries)
    train = columns.take(columns.positions_of("train"))
    classes = sorted(train.used_names())
    labelled = int((train.class_numbers(classes) >= 0).sum())
    has_held_out = columns.has_split("val") or columns.has_split("test")
    return _as_trained(spec, len(train), labelled, len(classes), usual_side(train.items), has_held_out)


def _survey_splits(source: Source, spec: DataSpec) -> Survey:
    train = source.splits["train"]
    has_held_out = len(source.splits) > 1
    side = _usual_side(train)
    return _as_trained(spec, len(train), train.num_labelled, len(train.class_ids()), side, has_held_out)


def _as_trained(spec: DataSpec, images: int, labelled: int, classes: int, side: int, has_held_out: bool) -> Survey:
    """Without what is held out, limited or hidden; rounded, because only the recipe's choices depend on it."""
    holdout = spec.holdout if spec.holdout is not None else 0.0 if has_held_out else HELD_OUT
    images, labelled = images - round(holdout * labelled), round((1 - holdout) * labelled)
    if spec.limit is not None and spec.limit < images:
        images, labelled = spec.limit, round(labelled * spec.limit / images)
    return Survey(images, max(round(spec.labelled * labelled), classes), classes, side)


def usual_side(items: Sequence[Any]) -> int:
    """The median short side of some images; unreadable ones are reported when they are decoded."""
    sides = []
    for position in evenly_spaced_positions(len(items)):
        try:
            sides.append(min(upright_size(items[position])))
        except (OSError, ValueError):
            continue
    return round(median(sides)) if sides else 0


def _usual_side(split: Split) -> int:
    """The same for images in memory; 0 for vectors."""
    batches = [split.batch(torch.tensor([position])) for position in evenly_spaced_positions(len(split))]
    sides = [int(batch.image_sizes().min()) for batch in batches if batch.pixels.ndim == 4]
    return round(median(sides)) if sides else 0
