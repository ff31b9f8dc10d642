"""Several sources as one: their images, splits and class names together."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from supancl.data.columns import Columns
from supancl.data.labels import LabelSet
from supancl.data.splits import Entry, Listing, Source, Split
from supancl.errors import BadInput

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch


@dataclass(frozen=True, slots=True, eq=False)
class StoredImage:
    """An image that is in memory already, as an item of a list."""

    source: str
    split: Split
    position: int

    def __str__(self) -> str:
        return f"{self.source}: {self.split.names_at(torch.tensor([self.position]))[0]}"

    def stamp(self) -> tuple[int, int]:
        pixels = self._pixels()
        return pixels.numel(), zlib.crc32(pixels.contiguous().numpy().data)

    def open(self) -> Any:
        pixels = self._pixels()
        return Image.fromarray((pixels[0] if len(pixels) == 1 else pixels.permute(1, 2, 0)).contiguous().numpy())

    def _pixels(self) -> Tensor:
        return self.split.batch(torch.tensor([self.position])).pixels[0]


def join_sources(sources: Mapping[str, Source | Listing], uses_splits: bool, cache_name: str) -> Listing:
    """One list of all images. Classes of the same name are one class; splits of the same name are one split.

    `uses_splits`: val or test is held out, where there is one, and not a part of train.
    """
    label_sets: dict[str, LabelSet] | None = {"": {}} if any(map(_has_several_labels, sources.values())) else None
    entries: list[Entry] = []
    remarks: list[str] = []
    has_held_out = {}
    for name, source in sources.items():
        new = list(_entries(name, source) if label_sets is None else _entries_with_sets(name, source, label_sets))
        has_held_out[name] = any(split != "train" for split, _, _ in new)
        entries += new
        remarks += source.remarks
    without = [name for name, has_split in has_held_out.items() if not has_split]
    if uses_splits and without and len(without) < len(sources):
        remarks.append(
            f"{without[0]} has no val or test split, so all of it is trained on: held-out images come from the other "
            "data; to hold out a part of everything: data.holdout=0.1"
        )
    listings = [source for source in sources.values() if isinstance(source, Listing)]
    return Listing(
        entries,
        listings[0].location if listings else Path(next(iter(sources))),
        tuple(remarks),
        by_number=all(source.by_number for source in listings),
        empty_folders=tuple(folder for source in sources.values() for folder in source.empty_folders),
        cache_name=cache_name,
        label_sets=label_sets,
        listed_in=" + ".join(sources),
    )


def _has_several_labels(source: Source | Listing) -> bool:
    if isinstance(source, Listing):
        return source.label_sets is not None or source.label_table is not None
    return any(not split.all_labels.has_one_each for split in source.splits.values())


def _entries_with_sets(name: str, source: Source | Listing, label_sets: dict[str, LabelSet]) -> Iterator[Entry]:
    """The entries of a source, each with a text for its labels, whose classes and weights go into `label_sets`."""
    texts: dict[str, str] = {"": ""}  # of each label of a listing
    for (split, item, label), labels in zip(_entries(name, source), _iter_sets(source), strict=True):
        text = texts.get(label) if isinstance(source, Listing) else None
        if text is None:
            text = texts[label] = repr(sorted(labels.items())) if labels else ""
            label_sets[text] = labels
        yield split, item, text


def _iter_sets(source: Source | Listing) -> Iterator[LabelSet]:
    """The classes and weights of each image, in the order of `_entries`."""
    if isinstance(source, Listing):
        if source.label_table is not None:
            sets = source.label_table.sets()
            yield from (sets[number] for number in Columns.from_entries(source.entries).labels)
            return
        for _, _, label in source.entries:
            yield source.label_sets[label] if source.label_sets is not None else {label: 1.0} if label else {}
        return
    for split in source.splits.values():
        for row in split.all_labels.entries():
            yield {source.classes[number]: weight for number, weight in row}


def _entries(name: str, source: Source | Listing) -> Iterator[Entry]:
    if isinstance(source, Listing):
        yield from source.entries
        return
    for split_name, split in source.splits.items():
        if split.batch(torch.zeros(1, dtype=torch.long)).pixels.ndim != 4:
            raise BadInput(f"{name} holds vectors, which cannot be joined with other data; name it alone")
        class_names = [*source.classes, ""]  # -1 is the last one
        for position, label in enumerate(split.labels.tolist()):
            yield split_name, StoredImage(name, split, position), class_names[label]
