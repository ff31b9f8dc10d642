"""The table that every reader of a source fills: an image a row, with its split and its labels; nothing is decoded."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from supancl.core.labels import Labels
from supancl.data.decode import Item
from supancl.data.labels import LabelSet, labels_of_splits, pairs_from_sets
from supancl.data.splits import Source, Split, full_split, sorted_names
from supancl.data.store.memory import ArrayImages, ImageStore, TakenItems
from supancl.errors import BadInput

if TYPE_CHECKING:
    import pyarrow as pa
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

SPLITS = ("train", "val", "test")
OFFICIAL_SPLITS = (*SPLITS, "trainval", "all")  # of benchmarks, which divide the last two
Entry = tuple[str, Path | Item, str]  # split, image, class name ('': unlabelled)


@dataclass(frozen=True)
class Listing:
    """The images of a source. `parts` are those that are in memory already, whose rows follow one another.

    An image is a path or another item; a split is its number in SPLITS; a label is a number of `classes`.
    """

    items: Sequence[Path | Item]
    splits: np.ndarray  # (N,) uint8
    labels: Labels
    classes: tuple[str, ...]
    location: str
    remarks: tuple[str, ...] = ()
    keeps_classes: bool = False  # also those without an image
    by_number: bool = False  # classes that are all numbers are sorted as numbers: 2 before 10
    empty_folders: tuple[str, ...] = ()  # class folders without an image
    cache_name: str = ""  # name of its packed cache; '': the source's name
    parts: tuple[Split, ...] = ()

    def __len__(self) -> int:
        return len(self.splits)

    def rows_of(self, split: str) -> np.ndarray:
        return np.flatnonzero(self.splits == OFFICIAL_SPLITS.index(split))

    def take(self, rows: np.ndarray) -> Listing:
        """The listing with only these files."""
        labels, classes = self.labels[torch.from_numpy(rows)], self.classes
        if not self.keeps_classes:
            used = torch.unique(labels.classes[labels.classes >= 0])
            numbers = torch.full((len(classes) + 1,), -1)
            numbers[used] = torch.arange(len(used))
            labels, classes = _renumbered(labels, numbers), tuple(classes[number] for number in used.tolist())
        return replace(
            self, items=TakenItems(self.items, rows), splits=self.splits[rows], labels=labels, classes=classes
        )


def _renumbered(labels: Labels, numbers: Tensor) -> Labels:
    """Labels with other numbers of classes, those of an image in ascending order; the last number is that of none."""
    if labels.has_one_each:
        return Labels(numbers[labels.classes])
    pairs = torch.stack([numbers[labels.classes].float(), labels.weights], dim=-1)
    order = torch.where(pairs[..., 0] < 0, torch.inf, pairs[..., 0]).argsort(dim=1, stable=True)
    pairs = pairs.gather(1, order[..., None].expand(-1, -1, 2))
    most = max(1, int((pairs[..., 0] >= 0).sum(1).max())) if len(pairs) else 1
    return labels_of_splits({"all": pairs[:, :most]})["all"]


def make_listing(
    items: Sequence[Path | Item],
    splits: np.ndarray,
    codes: np.ndarray,
    values: Sequence[str] | Sequence[LabelSet],
    location: object,
    classes: tuple[str, ...] | None = None,
    by_number: bool = False,
    **more: Any,
) -> Listing:
    """A listing whose row i has the label `values[codes[i]]`: a class name ('': none), or several with weights.

    Without `classes`, they are the names that occur, sorted.
    """
    used = np.unique(codes).tolist()
    sets = [{name: 1.0} if isinstance(name, str) and name else name or {} for name in values]
    names = {name for number in used for name in sets[number]}
    known = sorted_names(names, by_number) if classes is None else classes
    if all(isinstance(values[number], str) for number in used):
        number_of = {name: number for number, name in enumerate(known)} | {"": -1}
        table = np.full(len(values), -1, np.int64)
        table[used] = [number_of[values[number]] for number in used]
        labels = Labels.of(torch.from_numpy(table[codes]))
    else:
        is_used = set(used)
        pairs = pairs_from_sets([each if number in is_used else {} for number, each in enumerate(sets)], known)
        labels = labels_of_splits({"all": pairs[torch.from_numpy(codes.astype(np.int64))]})["all"]
    return Listing(
        items, splits, labels, known, str(location), keeps_classes=classes is not None, by_number=by_number, **more
    )


def list_entries(
    entries: Iterable[Entry], location: object, sets: Mapping[str, LabelSet] | None = None, **more: Any
) -> Listing:
    """A listing of (split, image, class name); a name may stand for several classes, the `sets`."""
    splits, items, names = zip(*entries, strict=True)
    numbers: dict[str, int] = {}
    codes = np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int64)
    values = list(numbers) if sets is None else [sets[name] for name in numbers]
    split_numbers = np.array([OFFICIAL_SPLITS.index(split) for split in splits], np.uint8)
    return make_listing(items, split_numbers, codes, values, location, **more)


def list_stored(parts: Mapping[str, Split], classes: tuple[str, ...], location: object, **more: Any) -> Listing:
    """A listing of images that are in memory: a part for each split."""
    labels = Labels.join([part.all_labels for part in parts.values()])
    splits = np.repeat([OFFICIAL_SPLITS.index(name) for name in parts], [len(part) for part in parts.values()])
    items = StoredImages(str(location), tuple(parts.values()))
    labels = labels.with_rarest(labels.counts(len(classes)))
    return Listing(
        items, splits.astype(np.uint8), labels, classes, str(location), keeps_classes=True, by_number=True,
        parts=items.parts, **more,
    )  # fmt: skip


def as_source(listing: Listing, store: ImageStore | None = None) -> Source:
    """The splits of a listing, whose images are those of the store, or in memory."""
    splits = {}
    for name in SPLITS:
        rows = torch.from_numpy(listing.rows_of(name))
        if len(rows) and store is not None:
            splits[name] = Split(store, rows, listing.labels[rows], ItemNames(listing.items))
        elif len(rows):
            splits[name] = take_parts(listing.parts, rows, listing.labels[rows])
    items = () if store is None else listing.items
    return Source(splits, listing.classes, listing.remarks, {}, items, listing.empty_folders)


def take_parts(parts: Sequence[Split], rows: Tensor, labels: Labels) -> Split:
    """Some images in memory, as one split."""
    starts = np.cumsum([0, *map(len, parts)])
    taken = [
        part.take(rows[(rows >= start) & (rows < start + len(part))] - int(start))
        for part, start in zip(parts, starts.tolist(), strict=False)
    ]
    taken = [part for part in taken if len(part)]
    if len(taken) == 1:
        return replace(taken[0], all_labels=labels)
    everything = [(part.batch(torch.arange(len(part))), part.names_at(torch.arange(len(part)))) for part in taken]
    pixels = torch.cat([batch.pixels for batch, _ in everything])
    return full_split(ArrayImages(pixels), labels, [name for _, names in everything for name in names])


def join_listings(listings: Mapping[str, Listing], cache_name: str) -> Listing:
    """One list of all images. Classes of the same name are one class; splits of the same name are one split."""
    used: set[str] = set()
    remarks = [remark for each in listings.values() for remark in each.remarks]
    for name, each in listings.items():
        numbers = torch.unique(each.labels.classes[each.labels.classes >= 0]).tolist()
        used |= {each.classes[number] for number in numbers}
        if not numbers:
            remarks.append(f"{name}: none of its images has a class")
        if each.parts and each.parts[0].batch(torch.zeros(1, dtype=torch.long)).pixels.ndim != 4:
            raise BadInput(f"{name} holds vectors, which cannot be joined with other data; name it alone")
    classes = sorted_names(used, all(each.by_number for each in listings.values()))
    number_of = {name: number for number, name in enumerate(classes)}
    pairs = []
    for each in listings.values():
        numbers = torch.tensor([*(number_of.get(name, -1) for name in each.classes), -1])
        pairs.append(torch.stack([numbers[each.labels.classes].float(), each.labels.weights], dim=-1))
    most = max(part.shape[1] for part in pairs)
    padding = torch.tensor([-1.0, 0.0])
    padded = [torch.cat([part, padding.expand(len(part), most - part.shape[1], 2)], dim=1) for part in pairs]
    ascending = torch.arange(len(classes) + 1)
    ascending[-1] = -1
    labels = _renumbered(Labels.of(torch.cat(padded)), ascending)
    return Listing(
        [item for each in listings.values() for item in each.items],
        np.concatenate([each.splits for each in listings.values()]),
        labels,
        classes,
        " + ".join(listings),
        tuple(remarks),
        empty_folders=tuple(folder for each in listings.values() for folder in each.empty_folders),
        cache_name=cache_name,
    )


# --- items ------------------------------------------------------------------------------------------------------------


class TablePaths(Sequence[Path]):
    """Paths in a folder, as a column of a table has them: `values`, or those of these `rows`."""

    def __init__(self, folder: Path, values: pa.Array, rows: np.ndarray | None = None) -> None:
        self.folder, self.values, self.rows = folder, values, rows
        self.prefix = str(folder / "_")[:-1]

    def __len__(self) -> int:
        return len(self.values) if self.rows is None else len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        return self.folder / self.text(index)

    def text(self, index: int) -> str:
        """The path as it was written."""
        return str(self.values[int(index if self.rows is None else self.rows[index])])

    def name(self, index: int) -> str:
        """str() of the path, without making the path where its text needs no normalizing."""
        text = self.text(index)
        is_plain = "/." not in text and "//" not in text and text[0] not in "./" and text[-1] != "/"
        return self.prefix + text if is_plain and os.sep == "/" else str(self[index])

    def find_empty(self) -> int | None:
        """The first row without a path."""
        from pyarrow import compute

        is_empty = compute.equal(self.values, "").to_numpy(zero_copy_only=False)
        is_empty = is_empty if self.rows is None else is_empty[self.rows]
        return int(is_empty.argmax()) if is_empty.any() else None


class ItemNames(Sequence[str]):
    """The names of items for messages, made when they are asked for."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return list(map(str, self.items[index]))
        return self.items.name(index) if isinstance(self.items, TablePaths) else str(self.items[index])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


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


class StoredImages(Sequence[StoredImage]):
    """The images of parts in memory, one after another."""

    def __init__(self, source: str, parts: tuple[Split, ...]) -> None:
        self.source, self.parts = source, parts

    @cached_property
    def ends(self) -> np.ndarray:
        return np.cumsum([len(part) for part in self.parts])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = int(np.searchsorted(self.ends, index, side="right"))
        part = self.parts[number]
        return StoredImage(self.source, part, int(index) - int(self.ends[number]) + len(part))


# --- files that are in two splits -------------------------------------------------------------------------------------


class FileHash:
    """Turns a path into a number: the same for every path to a file through folders or links to them."""

    def __init__(self) -> None:
        self.folders: dict[str, str] = {}  # a folder as written -> without links; resolving every file takes too long

    def __call__(self, path: str) -> int:
        folder, slash, name = path.rpartition("/")
        resolved = self.folders.get(folder)
        if resolved is None:
            resolved = self.folders[folder] = os.path.realpath(folder or slash or ".")
        return hash(f"{resolved}/{name}")


def hash_files(paths: Iterable[str]) -> np.ndarray:
    """The number of each file (int64); two files have the same one by chance in 1 of 10^19 pairs."""
    return np.fromiter(map(FileHash(), paths), np.int64)


def divided_file_remarks(listing: Listing) -> Iterator[str]:
    """A remark on files that are in two splits."""
    if not len(listing) or not isinstance(listing.items[0], Path) or len(np.unique(listing.splits)) < 2:
        return
    hashes = hash_files(ItemNames(listing.items))
    order = np.argsort(hashes, kind="stable")
    ascending, splits = hashes[order], listing.splits[order]
    starts = np.flatnonzero(np.concatenate([[True], ascending[1:] != ascending[:-1]]))  # of each file's rows
    divided = order[starts[np.minimum.reduceat(splits, starts) != np.maximum.reduceat(splits, starts)]]
    if len(divided):
        yield f"{listing.location}: files in two splits: {len(divided)}, such as {listing.items[int(divided.min())]}"
