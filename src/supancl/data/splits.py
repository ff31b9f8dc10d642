"""The table of a source: an image a row, with its split and its labels; its splits, and the data of a run.

A reader of `sources/` fills a `Source`; its pixels are in a store once they are decoded.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from supancl.core.labels import Labels
from supancl.data.content import Content, shard_content
from supancl.data.decode import Item, MadeItem
from supancl.data.labels import LabelSet, labels_from_pairs, pairs_from_sets
from supancl.data.order import Order
from supancl.data.store.memory import ArrayImages, Batch, ImageStore, LazyItems, take_items
from supancl.errors import BadInput

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

SPLITS = ("train", "val", "test")
OFFICIAL_SPLITS = (*SPLITS, "trainval", "all")  # of benchmarks, which divide the last two
SPLIT_NAMES = {  # name of a folder or shard -> split
    **dict.fromkeys(("train", "training", "trainval"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
NAMES_AT_A_TIME = 65_536  # there may be millions
Entry = tuple[str, Item, str | tuple[str, ...]]  # split, image, class name ('': unlabelled) or several


@dataclass(frozen=True)
class Split:
    """A subset of a store's images, with their labels. An item's text is the name of an image."""

    store: ImageStore
    index: Tensor
    all_labels: Labels
    items: Sequence[object]

    def __len__(self) -> int:
        return len(self.index)

    @property
    def labels(self) -> Tensor:
        """(N,): the label of each image, -1 for none; of several the rarest, by which images are held out and drawn."""
        return self.all_labels.rarest

    def batch(self, positions: Tensor) -> Batch:
        return self.store.batch(self.index[positions])

    def order(self, seed: int, batch_size: int, balanced: bool = False, unlabelled: bool = True) -> Order:
        """Which images each step of a run takes."""
        if not self.is_streamed:
            return Order(self.labels, seed, batch_size, balanced, unlabelled)
        counts, used = self._shards()
        return Order(self.labels, seed, batch_size, counts=counts[used], window=self.store.window)

    @property
    def is_streamed(self) -> bool:
        """Whether the images are read from shards while training."""
        return len(self.store.shards) > 0

    def _shards(self) -> tuple[Tensor, slice]:
        """How many images of each shard of a stream are in the split; and which shards it is, if it is whole shards."""
        none = torch.zeros(1, dtype=torch.long)
        ends = self.store.shard_ends
        counts, totals = (torch.diff(each, prepend=none) for each in (torch.searchsorted(self.index, ends), ends))
        first, last = counts.nonzero()[[0, -1], 0].tolist() if len(self) else (0, -1)
        used = slice(first, last + 1)
        return counts, used if torch.equal(counts[used], totals[used]) else slice(None)

    def place_on(self, device: torch.device) -> Split:
        """The split with its pixels on the device if they fit there, else the split itself."""
        store = self.store.place_on(device)
        return self if store is self.store else replace(self, store=store, index=self.index.to(device))

    def names_at(self, positions: Tensor) -> list[str]:
        return [str(self.items[row]) for row in self.index.cpu()[positions.cpu()].tolist()]

    def take(self, positions: Tensor) -> Split:
        return replace(self, index=self.index[positions], all_labels=self.all_labels[positions])

    def labelled(self) -> Split:
        """The images that have a label."""
        return self.take((self.labels >= 0).nonzero()[:, 0])

    @property
    def num_labelled(self) -> int:
        return int((self.labels >= 0).sum())

    def class_ids(self) -> list[int]:
        """Sorted ids of the classes that have an image."""
        classes = self.all_labels.classes
        ids: list[int] = torch.unique(classes[classes >= 0]).tolist()
        return ids

    def sample(self, count: int) -> Split:
        """At most `count` images, the same ones every time."""
        if len(self) <= count:
            return self
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(0))
        return self.take(order[:count].sort().values)

    def median_short_side(self) -> int | None:
        """The median short side in pixels of some images as they are stored; None for vectors."""
        some = self.sample(64)
        batch = some.batch(torch.arange(len(some)))
        return None if batch.pixels.ndim == 2 else int(batch.image_sizes().amin(1).median())

    def iter_content(self) -> Iterator[bytes]:
        """File names and labels as bytes, for `fingerprint`; independent of the folder."""
        if self.is_streamed:
            _, used = self._shards()
            if used == slice(None):
                yield from (self.index.numpy().tobytes(), self.all_labels.tensor.numpy().tobytes())
            yield from self.store.shard_digests[used]
            return
        yield self.all_labels.tensor.numpy().tobytes()
        for start in range(0, len(self), NAMES_AT_A_TIME):
            positions = torch.arange(start, min(start + NAMES_AT_A_TIME, len(self)))
            names = "\n".join(os.path.basename(name) for name in self.names_at(positions))
            # file names may be in any encoding
            yield b"\n" * (start > 0) + names.encode("utf-8", "surrogateescape")

    def content(self) -> Content | None:
        """A checksum of each image, or of each shard of a stream; None if the store has none."""
        if self.is_streamed:
            return shard_content(self.store.shards)
        checksums = self.store.pixel_checksums(self.index.cpu())
        return None if checksums is None else Content("pixels", checksums.astype(np.uint64))


@dataclass(frozen=True)
class Source:
    """The images of a source, a row each; with the pixels in `store` if they are in memory or were decoded.

    An image is a path or another item; a split is its number in OFFICIAL_SPLITS; a label is a number of `classes`.
    """

    items: Sequence[Item]
    split_numbers: np.ndarray  # (N,) uint8
    labels: Labels
    classes: tuple[str, ...]
    location: str
    store: ImageStore | None = None
    remarks: tuple[str, ...] = ()
    by_number: bool = False  # classes that are all numbers are sorted as numbers: 2 before 10
    cache_name: str = ""  # name of its packed cache; '': the source's name
    levels: tuple[int, ...] = ()  # of a hierarchy, whose names are paths: the level of each class, 0 for the coarsest
    incomplete: bool = False  # a benchmark that lacks images
    skipped: Mapping[str, str] = field(default_factory=dict)  # unreadable images that were left out, and why

    def __len__(self) -> int:
        return len(self.split_numbers)

    def rows_of(self, split: str) -> np.ndarray:
        return np.flatnonzero(self.split_numbers == OFFICIAL_SPLITS.index(split))

    @cached_property
    def splits(self) -> dict[str, Split]:
        """The splits by name: train, val, test."""
        assert self.store is not None
        items = self.items.names if isinstance(self.items, StoredItems) else self.items
        rows = {name: torch.from_numpy(self.rows_of(name)) for name in SPLITS}
        return {name: Split(self.store, at, self.labels[at], items) for name, at in rows.items() if len(at)}

    @property
    def has_files(self) -> bool:
        """Whether the names of its images are paths of files, so that a table of them is a source too."""
        return len(self.items) > 0 and not isinstance(self.items[0], MadeItem)

    def take(self, rows: np.ndarray) -> Source:
        """Only these images, before they have a store."""
        items, labels = take_items(self.items, rows), self.labels[torch.from_numpy(rows)]
        return replace(self, items=items, split_numbers=self.split_numbers[rows], labels=labels)

    def map_labels(self, change: Callable[[Labels], Labels]) -> Source:
        """The source with other labels."""
        return replace(self, labels=change(self.labels))


@dataclass(frozen=True, repr=False)
class Data:
    """The images of a run. `transfer` has the left-out classes: images to fit on and images to test on."""

    train: Split
    held_out: Split
    classes: tuple[str, ...]
    test: Split | None = None
    transfer: tuple[Split, Split] | None = None
    transfer_classes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)  # as in Source
    summary: dict[str, object] = field(default_factory=dict)
    levels: tuple[int, ...] = ()  # as in Source
    incomplete: bool = False  # as in Source

    def __repr__(self) -> str:
        images = f"training images: {len(self.train)}, labelled: {self.train.num_labelled}"
        source = self.summary.get("source") or "arrays"
        return f"Data({source}; {images}, held out: {len(self.held_out)}, classes: {len(self.classes)})"

    def map_labels(self, change: Callable[[Labels], Labels]) -> Data:
        """The data with the labels of train, held-out and test images changed."""

        def changed(split: Split) -> Split:
            return replace(split, all_labels=change(split.all_labels))

        test = None if self.test is None else changed(self.test)
        return replace(self, train=changed(self.train), held_out=changed(self.held_out), test=test)

    @cached_property
    def content(self) -> Content | None:
        """Checksums of the training images and the held-out ones; None if a store has none."""
        splits = [split for split in (self.train, self.held_out) if len(split)]
        contents = [content for split in splits if (content := split.content()) is not None]
        if not contents or len(contents) < len(splits):
            return None
        if len(contents) == 1 or contents[0].kind == "shards":  # the shards of a stream hold all of its splits
            return contents[0]
        return Content("pixels", np.concatenate([each.values for each in contents]))


def full_split(store: ImageStore, labels: Labels | Tensor, items: Sequence[object]) -> Split:
    """A split with every image of a store."""
    return Split(store, torch.arange(len(store)), Labels.of(labels), items)


def sorted_names(names: set[str], by_number: bool) -> tuple[str, ...]:
    """Class names in label order. With `by_number`, names that are all numbers are sorted as numbers: 2 before 10."""
    if by_number and all(name.isascii() and name.isdigit() for name in names):
        return tuple(sorted(names, key=lambda digits: (len(digits.lstrip("0")), digits.lstrip("0"), digits)))
    return tuple(sorted(names))


def fingerprint(*splits: Split) -> str:
    """A digest of file names and labels; the same in any folder."""
    content = hashlib.sha256()
    for split in splits:
        for chunk in split.iter_content():
            content.update(chunk)
    return content.hexdigest()[:16]


# --- making a source --------------------------------------------------------------------------------------------------


def make_source(
    items: Sequence[Item],
    split_numbers: np.ndarray,
    codes: np.ndarray,
    values: Sequence[LabelSet],
    location: object,
    classes: tuple[str, ...] | None = None,
    **more: Any,
) -> Source:
    """A source whose row i has the labels `values[codes[i]]`, class names with weights.

    Without `classes`, they are the names that occur, sorted.
    """
    used = set(np.unique(codes).tolist())
    sets = [each if number in used else {} for number, each in enumerate(values)]
    names = {name for each in sets for name in each}
    known = sorted_names(names, more.get("by_number", False)) if classes is None else classes
    labels = labels_from_pairs(pairs_from_sets(sets, known))[torch.from_numpy(codes.astype(np.int64))]
    labels = labels.with_rarest(labels.counts())
    return Source(items, split_numbers, labels, known, str(location), **more)


def list_entries(
    entries: Iterable[Entry], location: object, classes: tuple[str, ...] | None = None, **more: Any
) -> Source:
    """A source of (split, image, class names)."""
    splits, items, names = zip(*entries, strict=True)
    numbers: dict[str | tuple[str, ...], int] = {}
    codes = np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int64)
    values = [dict.fromkeys(filter(None, (name,) if isinstance(name, str) else name), 1.0) for name in numbers]
    split_numbers = np.array([OFFICIAL_SPLITS.index(split) for split in splits], np.uint8)
    return make_source(items, split_numbers, codes, values, location, classes, **more)


def list_stored(
    store: ImageStore, labels: Labels, names: Mapping[str, Sequence[str]], classes: tuple[str, ...], location: object
) -> Source:
    """A source of images in memory; `names` are those of each split, one after the other."""
    splits = np.repeat([OFFICIAL_SPLITS.index(name) for name in names], list(map(len, names.values())))
    items = StoredItems(str(location), store, [name for part in names.values() for name in part])
    splits = splits.astype(np.uint8)
    return Source(items, splits, labels, classes, str(location), store, by_number=True)


def join_sources(sources: Mapping[str, Source], cache_name: str) -> Source:
    """One list of all images. Classes of the same name are one class; splits of the same name are one split."""
    remarks = [remark for each in sources.values() for remark in each.remarks]
    codes, values = list[np.ndarray](), list[LabelSet]()
    for name, each in sources.items():
        rows, code = torch.unique(each.labels.tensor, dim=0, return_inverse=True)
        codes.append(code.numpy() + len(values))
        values += [{each.classes[number]: weight for number, weight in row} for row in Labels.of(rows).entries()]
        if not each.labels.is_labelled.any():
            remarks.append(f"{name}: none of its images has a class")
        if isinstance(each.store, ArrayImages) and each.store.pixels.ndim != 4:
            raise BadInput(f"{name} holds vectors, which cannot be joined with other data; name it alone")
    items = [item for each in sources.values() for item in each.items]
    splits, location = np.concatenate([each.split_numbers for each in sources.values()]), " + ".join(sources)
    more: dict[str, Any] = {"by_number": all(each.by_number for each in sources.values()), "cache_name": cache_name}
    return make_source(items, splits, np.concatenate(codes), values, location, remarks=tuple(remarks), **more)


class StoredItems(LazyItems):
    """Images of a store in memory as items; `names` are those in the store."""

    def __init__(self, source: str, store: ImageStore, names: Sequence[str]) -> None:
        self.source, self.store, self.names = source, store, names
        super().__init__(len(store), self._item)

    def _item(self, row: int) -> MadeItem:
        def read() -> np.ndarray:
            image = self.store.batch(torch.tensor([row])).image(0).numpy()
            return np.ascontiguousarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0))

        def stamp() -> tuple[int, int]:
            pixels = read()
            return pixels.size, zlib.crc32(pixels.data)

        return MadeItem(f"{self.source}: {self.names[row]}", lambda: Image.fromarray(read()), stamp)
