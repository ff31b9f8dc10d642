"""Splits of a source: which images are in one, with their labels, names and checksums; and the settings of them."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np

from supancl.config import INCIDENTAL, Count, Fraction, Natural, Positive, Within, marked
from supancl.core.labels import Labels
from supancl.data.order import Order
from supancl.data.store.memory import Batch, ImageStore
from supancl.files import open_regular

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

NoiseKind = Literal["symmetric", "pair"]
SPLIT_NAMES = {  # name of a folder or shard -> split
    **dict.fromkeys(("train", "training", "trainval"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
NO_LABEL = ("-1", "-1.0")  # a column with gaps turns -1 into -1.0
NAMES_AT_A_TIME = 65_536  # there may be millions
BLOCK_BYTES = 4096
SAMPLED_BLOCKS = 16  # of a shard, evenly spaced; reading shards whole would take hours


# settings that take training images away or change their labels
CHANGES = ("limit", "leave_out", "imbalance", "labelled", "label_noise")


@dataclass(frozen=True)
class DataSpec:
    """Which data to use, and which images of it. `source` is empty if the recipe leaves it to --data."""

    source: str = marked("", INCIDENTAL)
    limit: Count | None = None  # train on this many images, drawn with a fixed seed
    holdout: Annotated[float, Within(0, 0.9)] | None = None  # None: a tenth or a fifth (docs/data.md) where none are
    leave_out: tuple[str, ...] = ()  # classes kept out of pretraining, for transfer
    imbalance: Annotated[float, Within(1, 1e6)] = 1.0  # times fewer images in the last class than in the first
    labelled: Fraction = 1.0  # fraction of the training labels that are kept
    max_labels: Count = 16  # of an image; 1: a ; in a .csv is part of a class name
    hierarchy: Literal["none", "paths", "cifar100"] = "none"  # paths: animal/cat is a cat and an animal
    level_weights: tuple[Positive, ...] = ()  # of the labels on each level, the coarsest first; (): all 1
    label_noise: Annotated[float, Within(0, 0.9)] = 0.0  # fraction of them that is made wrong
    label_noise_kind: NoiseKind = "symmetric"  # pair: every class is mistaken for the next one
    label_noise_seed: Natural = 0  # which labels
    short_side: Count | None = None  # larger images are shrunk to this when decoded
    resample: Literal["bilinear", "bicubic"] = "bilinear"  # filter used for shrinking
    balanced: bool = False  # every class equally often in an epoch, whatever its number of images
    # auto: if decoded images take more than 256 MB
    cache: Literal["auto", "always", "never"] = marked("auto", INCIDENTAL)
    memory_gb: Positive = marked(8.0, INCIDENTAL)  # without a cache, data above this are decoded again each time
    stream: bool = False  # read tar shards while training, without cache or memory
    window: Count = 16  # number of streamed shards whose images are shuffled together
    skip_bad_images: bool = marked(False, INCIDENTAL)
    joined: tuple[str, ...] = marked((), INCIDENTAL)  # further sources, whose images are added to those of `source`
    columns: str = marked("", INCIDENTAL)  # of a .csv with other names: image=file,label=species

    @property
    def all_sources(self) -> tuple[str, ...]:
        return (self.source, *self.joined)

    @property
    def location(self) -> str:
        """The sources, for messages."""
        return " + ".join(self.all_sources) or "the data"

    @property
    def is_whole(self) -> bool:
        """Whether all training images are used, with the labels that the source gives them."""
        return all(getattr(self, name) == getattr(DataSpec, name) for name in CHANGES)

    def whole(self) -> DataSpec:
        """The same data with all training images, as the source gives them."""
        return replace(self, balanced=False, **{name: getattr(DataSpec, name) for name in CHANGES})


@dataclass(frozen=True)
class Split:
    """A subset of a store's images, with their labels, and names for messages."""

    store: ImageStore
    index: Tensor
    all_labels: Labels
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.index)

    @property
    def labels(self) -> Tensor:
        """(N,): the label of each image, -1 for none; of several the rarest, by which images are held out and drawn."""
        return self.all_labels.rarest

    def batch(self, positions: Tensor) -> Batch:
        return self.store.batch(self.index[positions])

    def batch_on_canvas(self, positions: Tensor) -> Batch:
        """The batch to copy to a GPU, padded to the same shape every time if the store can."""
        return self.store.batch_on_canvas(self.index[positions])

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
        return [self.names[i] for i in self.index.cpu()[positions.cpu()].tolist()]

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
class Content:
    """A value that changes with each image (`pixels`) or shard (`shards`), so that a run notices what was replaced."""

    kind: str
    values: np.ndarray  # (n,) uint64

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.kind.encode() + np.ascontiguousarray(self.values).tobytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """The values as an npz file."""
        file = io.BytesIO()
        np.savez(file, values=self.values, kind=self.kind)
        return file.getvalue()


def read_content(path: Path) -> Content | None:
    """Saved values; None if the file is missing or damaged: then names cannot be given."""
    try:
        with open_regular(path) as file, np.load(file, allow_pickle=False) as arrays:
            return Content(str(arrays["kind"]), arrays["values"])
    except Exception:  # numpy, zipfile and zlib each raise something else
        return None


def shard_content(shards: Sequence[Path]) -> Content:
    """Sizes and sampled bytes of files that are too large to read whole."""
    values = np.zeros(len(shards), np.uint64)
    for number, path in enumerate(shards):
        size = path.stat().st_size
        content = hashlib.sha256(str(size).encode())
        with open_regular(path) as file:
            for start in np.unique(np.linspace(0, max(0, size - BLOCK_BYTES), SAMPLED_BLOCKS).astype(int)).tolist():
                file.seek(start)
                content.update(file.read(BLOCK_BYTES))
        values[number] = int.from_bytes(content.digest()[:8], "little")
    return Content("shards", values)


@dataclass(frozen=True)
class Source:
    """An opened source: splits by name (train, val, test), class names in label order, remarks for the user."""

    splits: dict[str, Split]
    classes: tuple[str, ...]
    remarks: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)  # unreadable images that were left out, and why
    items: Sequence[object] = ()  # image files or rows in the order of the store; empty for arrays
    levels: tuple[int, ...] = ()  # of a hierarchy, whose names are paths: the level of each class, 0 for the coarsest
    incomplete: bool = False  # a benchmark that lacks images

    @property
    def has_files(self) -> bool:
        """Whether the names of its images are paths of files, so that a table of them is a source too."""
        return len(self.items) > 0 and isinstance(self.items[0], Path)

    def map_splits(self, change: Callable[[Split], Split]) -> Source:
        """The source with every split changed."""
        return replace(self, splits={name: change(split) for name, split in self.splits.items()})


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
        labelled = self.train.num_labelled
        labels = "all labelled" if labelled == len(self.train) else f"{labelled or 'none'} labelled"
        return (
            f"Data({self.summary.get('source') or 'arrays'}: {len(self.train)} training images, {labels}, "
            f"{len(self.held_out)} held out, {len(self.classes)} classes)"
        )

    def map_splits(self, change: Callable[[Split], Split]) -> Data:
        """The data with train, held-out and test images changed."""
        test = None if self.test is None else change(self.test)
        return replace(self, train=change(self.train), held_out=change(self.held_out), test=test)

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


def full_split(store: ImageStore, labels: Labels | Tensor, names: Sequence[str]) -> Split:
    """A split with every image of a store."""
    return Split(store, torch.arange(len(store)), Labels.of(labels), names)


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
