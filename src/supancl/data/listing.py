"""The table that every reader of a source fills: an image a row, with its split and its labels; nothing is decoded."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from supancl.core.labels import Labels
from supancl.data.decode import Item
from supancl.data.labels import LabelSet, labels_from_pairs, pairs_from_sets
from supancl.data.splits import Source, Split, sorted_names
from supancl.data.store.memory import ImageStore, LazyItems, take_items
from supancl.errors import BadInput

if TYPE_CHECKING:
    import pyarrow as pa
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

SPLITS = ("train", "val", "test")
OFFICIAL_SPLITS = (*SPLITS, "trainval", "all")  # of benchmarks, which divide the last two
Entry = tuple[str, Path | Item, str | tuple[str, ...]]  # split, image, class name ('': unlabelled) or several


@dataclass(frozen=True)
class Listing:
    """The images of a source; `StoredImages` if they are in memory already.

    An image is a path or another item; a split is its number in OFFICIAL_SPLITS; a label is a number of `classes`.
    """

    items: Sequence[Path | Item]
    splits: np.ndarray  # (N,) uint8
    labels: Labels
    classes: tuple[str, ...]
    location: str
    remarks: tuple[str, ...] = ()
    keeps_classes: bool = False  # also those without an image
    by_number: bool = False  # classes that are all numbers are sorted as numbers: 2 before 10
    cache_name: str = ""  # name of its packed cache; '': the source's name
    levels: tuple[int, ...] = ()  # of a hierarchy: the level of each class, 0 for the coarsest
    incomplete: bool = False  # a benchmark that lacks images

    def __len__(self) -> int:
        return len(self.splits)

    def rows_of(self, split: str) -> np.ndarray:
        return np.flatnonzero(self.splits == OFFICIAL_SPLITS.index(split))

    def take(self, rows: np.ndarray) -> Listing:
        """The listing with only these images."""
        labels, classes = self.labels[torch.from_numpy(rows)], self.classes
        if not self.keeps_classes:
            used = torch.unique(labels.classes[labels.classes >= 0])
            numbers = torch.full((len(classes) + 1,), -1).index_copy(0, used, torch.arange(len(used)))
            labels, classes = renumbered(labels, numbers), tuple(classes[number] for number in used.tolist())
        items = self.items.take(rows) if isinstance(self.items, StoredImages) else take_items(self.items, rows)
        return replace(self, items=items, splits=self.splits[rows], labels=labels, classes=classes)

    @property
    def is_stored(self) -> bool:
        """Whether the images are in memory."""
        return isinstance(self.items, StoredImages)

    def open(self, store: ImageStore | None = None) -> Source:
        """Its splits, with the pixels in the store, or in memory."""
        index, items = torch.arange(len(self)), self.items
        names: Sequence[str] = names_of(items)
        if isinstance(items, StoredImages):
            store, index, names, items = items.store, items.rows, items.names, ()
        assert store is not None
        rows = {name: torch.from_numpy(self.rows_of(name)) for name in SPLITS}
        splits = {name: Split(store, index[at], self.labels[at], names) for name, at in rows.items() if len(at)}
        return Source(splits, self.classes, self.remarks, {}, items, self.levels, self.incomplete)


def renumbered(labels: Labels, numbers: Tensor) -> Labels:
    """Labels with other numbers of classes, those of an image in ascending order; the last number is that of none."""
    if labels.has_one_each:
        return Labels(numbers[labels.classes])
    pairs = torch.stack([numbers[labels.classes].float(), labels.weights], dim=-1)
    order = torch.where(pairs[..., 0] < 0, torch.inf, pairs[..., 0]).argsort(dim=1, stable=True)
    return labels_from_pairs(pairs.gather(1, order[..., None].expand(-1, -1, 2)))


def make_listing(
    items: Sequence[Path | Item],
    splits: np.ndarray,
    codes: np.ndarray,
    values: Sequence[LabelSet],
    location: object,
    classes: tuple[str, ...] | None = None,
    by_number: bool = False,
    **more: Any,
) -> Listing:
    """A listing whose row i has the labels `values[codes[i]]`, class names with weights.

    Without `classes`, they are the names that occur, sorted.
    """
    used = set(np.unique(codes).tolist())
    sets = [each if number in used else {} for number, each in enumerate(values)]
    known = sorted_names({name for each in sets for name in each}, by_number) if classes is None else classes
    labels = labels_from_pairs(pairs_from_sets(sets, known))[torch.from_numpy(codes.astype(np.int64))]
    labels = labels.with_rarest(labels.counts())
    return Listing(
        items, splits, labels, known, str(location), keeps_classes=classes is not None, by_number=by_number, **more
    )


def list_entries(
    entries: Iterable[Entry], location: object, classes: tuple[str, ...] | None = None, by_number: bool = False
) -> Listing:
    """A listing of (split, image, class names)."""
    splits, items, names = zip(*entries, strict=True)
    numbers: dict[str | tuple[str, ...], int] = {}
    codes = np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int64)
    values = [dict.fromkeys(filter(None, (name,) if isinstance(name, str) else name), 1.0) for name in numbers]
    split_numbers = np.array([OFFICIAL_SPLITS.index(split) for split in splits], np.uint8)
    return make_listing(items, split_numbers, codes, values, location, classes, by_number)


def list_stored(
    store: ImageStore, labels: Labels, names: Mapping[str, Sequence[str]], classes: tuple[str, ...], location: object
) -> Listing:
    """A listing of images in memory; `names` are those of each split, one after the other."""
    splits = np.repeat([OFFICIAL_SPLITS.index(name) for name in names], list(map(len, names.values())))
    items = StoredImages(str(location), store, [name for part in names.values() for name in part])
    return Listing(items, splits.astype(np.uint8), labels, classes, str(location), keeps_classes=True, by_number=True)


def join_listings(listings: Mapping[str, Listing], cache_name: str) -> Listing:
    """One list of all images. Classes of the same name are one class; splits of the same name are one split."""
    used, remarks = set[str](), [remark for each in listings.values() for remark in each.remarks]
    for name, each in listings.items():
        present = {each.classes[number] for number in torch.unique(each.labels.classes).tolist() if number >= 0}
        used |= present
        if not present:
            remarks.append(f"{name}: none of its images has a class")
        if isinstance(each.items, StoredImages) and each.items.store.batch(each.items.rows[:1]).pixels.ndim != 4:
            raise BadInput(f"{name} holds vectors, which cannot be joined with other data; name it alone")
    classes = sorted_names(used, all(each.by_number for each in listings.values()))
    number_of = {name: number for number, name in enumerate(classes)}
    numbers = [torch.tensor([*(number_of.get(name, -1) for name in each.classes), -1]) for each in listings.values()]
    labels = [renumbered(each.labels, new) for each, new in zip(listings.values(), numbers, strict=True)]
    most = max(part.classes.shape[1] for part in labels)
    pairs = [torch.tensor([-1.0, 0.0]).repeat(len(part), most, 1) for part in labels]
    for part, padded in zip(labels, pairs, strict=True):
        padded[:, : part.classes.shape[1]] = torch.stack([part.classes.float(), part.weights], dim=-1)
    return Listing(
        [item for each in listings.values() for item in each.items],
        np.concatenate([each.splits for each in listings.values()]),
        labels_from_pairs(torch.cat(pairs)),
        classes,
        " + ".join(listings),
        tuple(remarks),
        cache_name=cache_name,
    )


# --- items ------------------------------------------------------------------------------------------------------------


class TablePaths(LazyItems):
    """Paths in a folder, as a column of a table has them."""

    def __init__(self, folder: Path, values: pa.Array) -> None:
        super().__init__(len(values), lambda index: folder / str(values[int(index)]))
        self.values, self.prefix = values, str(folder / "_")[:-1]

    def name(self, index: int) -> str:
        """str() of the path, without making the path where its text needs no normalizing."""
        text = str(self.values[int(index)])
        is_plain = "/." not in text and "//" not in text and text[0] not in "./" and text[-1] != "/"
        return self.prefix + text if is_plain and os.sep == "/" else str(self[index])


def names_of(items: Sequence[Any]) -> LazyItems:
    """The names of items, for messages."""
    return LazyItems(len(items), items.name if isinstance(items, TablePaths) else lambda index: str(items[index]))


@dataclass(frozen=True, slots=True, eq=False)
class MadeItem:
    """An image that is no file: a row of another library's data set, or pixels in memory."""

    name: str
    open: Callable[[], Any]
    stamp: Callable[[], tuple[int, int]]

    def __str__(self) -> str:
        return self.name


class StoredImages(LazyItems):
    """Images of a store in memory as items: those in these rows, or all. `names` are those of the whole store."""

    def __init__(self, source: str, store: ImageStore, names: Sequence[str], rows: Tensor | None = None) -> None:
        self.source, self.store, self.names = source, store, names
        self.rows = torch.arange(len(store)) if rows is None else rows
        super().__init__(len(self.rows), self._item)

    def take(self, positions: np.ndarray) -> StoredImages:
        return StoredImages(self.source, self.store, self.names, self.rows[torch.from_numpy(positions)])

    def _item(self, index: int) -> MadeItem:
        row = self.rows[index]
        image = self.store.batch(row[None]).image(0).contiguous().numpy()
        name = f"{self.source}: {self.names[int(row)]}"
        read = partial(Image.fromarray, image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0)))
        return MadeItem(name, read, lambda: (image.size, zlib.crc32(image.data)))
