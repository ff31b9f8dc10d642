"""What a source holds, without decoding it: how many images, labels and classes, and how large the images are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from supancl.core.labels import Labels
from supancl.data.decode import map_in_order, try_decode, upright_size
from supancl.data.hierarchy import build_hierarchy, has_hierarchy
from supancl.data.listing import Listing, as_source
from supancl.data.opening import list_source
from supancl.data.preparing import draw_held_out, draw_limited, draw_long_tail, keep_labels, usual_holdout
from supancl.data.splits import Data, DataSpec, Split
from supancl.data.store.building import evenly_spaced_positions
from supancl.data.store.cache import other_positions

if TYPE_CHECKING:
    import torch
else:
    from supancl.lazy import torch


FEW_ITEMS = 256  # decoded in seconds; of more images a few unreadable ones change no choice


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


def survey_source(spec: DataSpec, channels: int = 3) -> Survey:
    """List `spec.source` and read the sizes of some images from their headers."""
    listing = list_source(spec, channels)
    if spec.skip_bad_images and not listing.parts and len(listing) <= FEW_ITEMS:
        listing = _take_readable(listing, spec, channels)
    rows = listing.rows_of("train")
    classes, labels = listing.classes, listing.labels
    if has_hierarchy(spec) and labels.has_one_each:  # others are refused when the images are read
        hierarchy = build_hierarchy(classes, spec)
        classes, labels = hierarchy.classes, hierarchy.relabel({"all": labels.single})["all"]
    side = _usual_side(as_source(listing).splits["train"]) if listing.parts else usual_side(listing.items, rows)
    return _as_trained(spec, labels[torch.from_numpy(rows)], classes, side, len(rows) < len(listing))


def survey_data(data: Data) -> Survey:
    """The same for data that are open."""
    return Survey(len(data.train), data.train.num_labelled, len(data.train.class_ids()), _usual_side(data.train))


def _take_readable(listing: Listing, spec: DataSpec, channels: int) -> Listing:
    """The images that will not be skipped; all of them if no training image is readable, which is refused later."""
    decode_one = partial(try_decode, channels=channels, short_side=spec.short_side, resample=spec.resample)
    decoded = enumerate(map_in_order(decode_one, listing.items))
    unreadable = [(position, image) for position, image in decoded if isinstance(image, str)]
    readable = listing.take(other_positions(len(listing), unreadable)) if unreadable else listing
    return readable if len(readable.rows_of("train")) else listing


def _as_trained(
    spec: DataSpec, all_labels: Labels, classes: Sequence[str], side: int, has_held_out: bool
) -> Survey:  # fmt: skip
    """The images that a run is trained on, by the rules of `prepare_data`: what is held out, hidden and limited."""
    labels = all_labels.rarest.cpu()
    holdout = spec.holdout if spec.holdout is not None else 0.0 if has_held_out else usual_holdout(labels)
    labels = labels[~draw_held_out(labels, holdout)]
    left_out = torch.tensor([number for number, name in enumerate(classes) if name in spec.leave_out])
    labels = labels[~torch.isin(labels, left_out)]
    labels = labels if spec.imbalance == 1.0 else labels[draw_long_tail(labels, spec.imbalance)]
    labels = labels if spec.labelled == 1.0 else keep_labels(labels, spec.labelled)
    if spec.limit is not None and spec.limit < len(labels):
        labels = labels[draw_limited(len(labels), spec.limit)]
    labelled = labels[labels >= 0]
    # of several labels the rarest is drawn by; how many classes there are, all of them say; one path of levels is one
    has_several = not all_labels.has_one_each and all_labels.count_distinct() > 1
    num_classes = int((all_labels.counts() > 0).sum()) if has_several else len(torch.unique(labelled))
    return Survey(len(labels), len(labelled), num_classes, side)


def usual_side(items: Sequence[Any], rows: np.ndarray) -> int:
    """The median short side of some images; unreadable ones are reported when they are decoded."""
    sides = []
    for position in evenly_spaced_positions(len(rows)):
        try:
            sides.append(min(upright_size(items[int(rows[position])])))
        except (OSError, ValueError):
            continue
    return round(median(sides)) if sides else 0


def _usual_side(split: Split) -> int:
    """The same for images in memory; 0 for vectors."""
    batches = [split.batch(torch.tensor([position])) for position in evenly_spaced_positions(len(split))]
    sides = [int(batch.image_sizes().min()) for batch in batches if batch.pixels.ndim == 4]
    return round(median(sides)) if sides else 0
