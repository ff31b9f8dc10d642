"""Splits of a source, what is held out of training, and the feed of batches."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from supancl.config import INCIDENTAL, Count, Fraction, Positive, Within, marked
from supancl.data.content import Content, join_content
from supancl.data.decode import Item
from supancl.data.order import Order, WindowedOrder, derive_seed
from supancl.data.store.memory import Batch, ImageStore, Progress
from supancl.data.threads import ReadingThreads, waiting_for_images
from supancl.errors import BadInput, did_you_mean, plural

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

Entry = tuple[str, Path | Item, str]  # split, image, class name ('': unlabelled)
SPLIT_NAMES = {  # name of a folder or shard -> split
    **dict.fromkeys(("train", "training", "trainval"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
NO_LABEL = ("-1", "-1.0")  # a column with gaps turns -1 into -1.0
MAX_DIGITS = 1000  # of a label
NAMES_AT_A_TIME = 65_536  # there may be millions
SPLIT_SEED = 20240  # fixed: every run holds out the same images, whatever its seed
USUAL_HOLDOUT = 0.1  # of the labelled training images, where a source has no held-out split


@dataclass(frozen=True)
class DataSpec:
    """Which data to use, and which images of it. `source` is empty if the recipe leaves it to --data."""

    source: str = marked("", INCIDENTAL)
    limit: Count | None = None  # train on this many images, drawn with a fixed seed
    holdout: Annotated[float, Within(0, 0.9)] | None = None  # None: 10% where the data have no held-out split
    leave_out: tuple[str, ...] = ()  # classes kept out of pretraining, for transfer
    labelled: Fraction = 1.0  # fraction of the training labels that are kept
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


@dataclass(frozen=True)
class Split:
    """A subset of a store's images, with labels (-1: unlabelled) and names for messages."""

    store: ImageStore
    index: Tensor
    labels: Tensor
    names: Sequence[str]

    is_streamed: ClassVar[bool] = False  # if so, batches carry their labels
    is_materialized: ClassVar[bool] = True  # rows and labels are in memory

    def __len__(self) -> int:
        return len(self.index)

    def batch(self, positions: Tensor) -> Batch:
        return self.store.batch(self.index[positions])

    def batch_on_canvas(self, positions: Tensor) -> Batch:
        """The batch to copy to a GPU, padded to the same shape every time if the store can."""
        return self.store.batch_on_canvas(self.index[positions])

    def order(self, seed: int, batch_size: int, balanced: bool = False) -> Order | WindowedOrder:
        """Which images each step of a run takes."""
        return Order(self.labels, seed, batch_size, balanced)

    def place_on(self, device: torch.device, progress: Progress | None = None) -> Split:
        """The split with its pixels on the device if they fit there, else the split itself."""
        store = self.store.place_on(device, progress)
        return self if store is self.store else replace(self, store=store, index=self.index.to(device))

    def names_at(self, positions: Tensor) -> list[str]:
        return [self.names[i] for i in self.index.cpu()[positions.cpu()].tolist()]

    def take(self, positions: Tensor) -> Split:
        return replace(self, index=self.index[positions], labels=self.labels[positions])

    def materialize(self) -> Split:
        """This split with its rows and labels in memory."""
        return self

    @property
    def num_labelled(self) -> int:
        return int((self.labels >= 0).sum())

    def class_ids(self) -> list[int]:
        """Sorted ids of the classes that have an image."""
        ids: list[int] = torch.unique(self.labels[self.labels >= 0]).tolist()
        return ids

    def sample(self, count: int) -> Split:
        """At most `count` images, the same ones every time."""
        if len(self) <= count:
            return self
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(0))
        return self.take(order[:count].sort().values)

    def iter_content(self) -> Iterator[bytes]:
        """File names and labels as bytes, for `fingerprint`; independent of the folder."""
        yield self.labels.numpy().tobytes()
        for start in range(0, len(self), NAMES_AT_A_TIME):
            positions = torch.arange(start, min(start + NAMES_AT_A_TIME, len(self)))
            names = "\n".join(os.path.basename(name) for name in self.names_at(positions))
            # file names may be in any encoding
            yield b"\n" * (start > 0) + names.encode("utf-8", "surrogateescape")

    def content(self) -> Content | None:
        """A checksum of each image; None if the store has none."""
        checksums = self.store.pixel_checksums(self.index.cpu())
        if checksums is None:
            return None
        return Content("pixels", checksums.astype(np.uint64), np.zeros((0, 2), np.int64), self._names_of)

    def _names_of(self, positions: Sequence[int]) -> list[str]:
        return self.names_at(torch.tensor(positions, dtype=torch.long))

    def relabelled(self, ids: Tensor) -> Split:
        """Labels replaced by ids[label]; -1 stays."""
        has_label = self.labels >= 0
        return replace(self, labels=torch.where(has_label, ids[self.labels.clamp(min=0)], self.labels))


@dataclass(frozen=True)
class Listing:
    """The image files that a reader lists; nothing is decoded yet."""

    entries: Sequence[Entry]
    location: Path
    remarks: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = None  # in label order; None: the names in the entries, sorted
    by_number: bool = False  # if all names are numbers, sort them as numbers: 2 before 10
    empty_folders: tuple[str, ...] = ()  # class folders without an image
    cache_name: str = ""  # name of its packed cache; '': the source's name


@dataclass(frozen=True)
class Source:
    """An opened source: splits by name (train, val, test), class names in label order, remarks for the user."""

    splits: dict[str, Split]
    classes: tuple[str, ...]
    remarks: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    items: Sequence[object] = ()  # image files or rows in the order of the store; empty for arrays
    empty_folders: tuple[str, ...] = ()  # class folders without an image


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
    skipped: tuple[str, ...] = ()
    summary: dict[str, object] = field(default_factory=dict)

    def __repr__(self) -> str:
        labelled = self.train.num_labelled
        labels = "all labelled" if labelled == len(self.train) else f"{labelled or 'none'} labelled"
        return (
            f"Data({self.summary.get('source') or 'arrays'}: {plural(len(self.train), 'training image')}, {labels}, "
            f"{len(self.held_out)} held out, {plural(len(self.classes), 'class', 'classes')})"
        )

    @cached_property
    def content(self) -> Content | None:
        """Checksums of the training images and the held-out ones; None if a store has none."""
        contents = [content for split in (self.train, self.held_out) if len(split) and (content := split.content())]
        return join_content(contents) if len(contents) == bool(len(self.train)) + bool(len(self.held_out)) else None


def full_split(store: ImageStore, labels: Tensor, names: Sequence[str]) -> Split:
    """A split with every image of a store."""
    return Split(store, torch.arange(len(store)), labels, names)


def sorted_names(names: set[str], by_number: bool) -> tuple[str, ...]:
    """Class names in label order. With `by_number`, names that are all numbers are sorted as numbers: 2 before 10."""
    if by_number and all(name.isascii() and name.isdigit() for name in names):
        return tuple(sorted(names, key=_as_number))
    return tuple(sorted(names))


def check_label(label: str, location: str) -> None:
    """Refuse a label that is a number of thousands of digits: it is a damaged file, not a class."""
    if len(label) > MAX_DIGITS and label.isascii() and label.isdigit():
        raise BadInput(f"{location}: the label is a number of {len(label):,} digits; write a class number or name")


def _as_number(digits: str) -> tuple[int, str, str]:
    """A key that sorts texts of digits by their value; int() refuses more than 4,300 of them."""
    significant = digits.lstrip("0")
    return len(significant), significant, digits


def fingerprint(*splits: Split) -> str:
    """A digest of file names and labels; the same in any folder."""
    content = hashlib.sha256()
    for split in splits:
        for chunk in split.iter_content():
            content.update(chunk)
    return content.hexdigest()[:16]


def prepare_data(source: Source, spec: DataSpec) -> Data:
    """Hold out images, leave out classes, hide labels, limit; in this order, each with a fixed seed."""
    train, held_out, held_out_from = _hold_out(source, spec)
    remarks = (*source.remarks, *_held_out_remarks(train, held_out, held_out_from, source.classes))
    test = source.splits.get("test")
    classes, transfer = source.classes, None
    transfer_classes: tuple[str, ...] = ()
    if spec.leave_out:
        kept_ids, left_out_ids = _separate_classes(source.classes, spec.leave_out)
        transfer = (_take_classes(train, left_out_ids), _take_classes(held_out, left_out_ids))
        transfer_classes = tuple(source.classes[i] for i in left_out_ids)
        # an unlabelled image may show a left-out class; nobody knows, so it is trained on
        train, held_out = (
            _take_classes(train, kept_ids, unlabelled=True),
            _take_classes(held_out, kept_ids, unlabelled=True),
        )
        test = None if test is None else _take_classes(test, kept_ids)
        classes = tuple(source.classes[i] for i in kept_ids)
    partly_labelled, label_remarks = _hide_labels(train, spec.labelled)
    train = _limit(partly_labelled, spec.limit)
    if spec.labelled < 1 and (lost := len(partly_labelled.class_ids()) - len(train.class_ids())):
        label_remarks.append(
            f"data.limit = {spec.limit} leaves {lost} of {len(partly_labelled.class_ids())} classes without a label, "
            "because it applies after data.labelled has hidden labels; raise one of the two"
        )
    remarks = (*remarks, *label_remarks)
    if not len(train):
        raise BadInput(f"{spec.source}: no image is left to train on; change data.leave_out or data.holdout")
    summary: dict[str, object] = {
        "source": spec.source,
        "train": len(train),
        "labelled": train.num_labelled,
        "held_out": len(held_out),
        "held_out_from": held_out_from,
        "classes": len(classes),
        "skipped": len(source.skipped),
        "fingerprint": fingerprint(train, held_out),
    }
    if spec.joined:
        summary["joined"] = list(spec.joined)
    return Data(train, held_out, classes, test, transfer, transfer_classes, remarks, source.skipped, summary)


def _hold_out(source: Source, spec: DataSpec) -> tuple[Split, Split, str]:
    """Hold out val, else test, else a stratified fraction of train; `data.holdout` always takes a fraction of train."""
    train = source.splits["train"]
    for name in ("val", "test"):
        if spec.holdout is None and name in source.splits:
            return train, source.splits[name], name
    fraction = USUAL_HOLDOUT if spec.holdout is None else spec.holdout
    if fraction == 0:  # a stream stays one: its labels are not read
        return train, train.take(torch.empty(0, dtype=torch.long)), "train"
    is_held_out = draw_held_out(train.labels, fraction)
    if not is_held_out.any():
        raise BadInput(
            f"{spec.source}: {plural(len(train), 'image is', 'images are')} too few to hold out "
            f"{fraction:.0%} of each class; add images or a val/ folder (or train on all: --set data.holdout=0)"
        )
    return train.take((~is_held_out).nonzero()[:, 0]), train.take(is_held_out.nonzero()[:, 0]), "train"


def draw_held_out(labels: Tensor, fraction: float) -> Tensor:
    """Mask of the training images to hold out.

    Unlabelled images cannot be evaluated on, so they are trained on, unless there are no others.
    """
    is_held_out = torch.zeros(len(labels), dtype=torch.bool)
    if fraction > 0:
        candidates = (labels >= 0).nonzero()[:, 0] if bool((labels >= 0).any()) else torch.arange(len(labels))
        is_held_out[candidates[draw_stratified(labels[candidates], fraction, SPLIT_SEED)]] = True
    return is_held_out


def _held_out_remarks(train: Split, held_out: Split, split_name: str, classes: Sequence[str]) -> Iterator[str]:
    """Remarks on held-out images that cannot be evaluated: without labels, or of classes that are not trained on."""
    if not train.num_labelled or not len(held_out):
        return
    if not held_out.num_labelled:
        images_have, images = f"none of the {len(held_out)} images of {split_name} has a", "them"
        if len(held_out) == 1:
            images_have, images = f"the one image of {split_name} has no", "it"
        yield (
            f"{images_have} label, so nothing can be evaluated on {images}; to hold out labelled images of "
            "train instead: --set data.holdout=0.1"
        )
    untrained = [classes[label] for label in sorted(set(held_out.class_ids()) - set(train.class_ids()))]
    if untrained:
        yield (
            f"{plural(len(untrained), 'class is held out and has', 'classes are held out and have')} no image to "
            f"train on, such as {untrained[0]!r}; class names must agree in case, spaces and the "
            "encoding of accents"
        )


def draw_stratified(labels: Tensor, fraction: float, seed: int, include_singletons: bool = False) -> Tensor:
    """Positions of about `fraction` of each class, never all of it; unlabelled images count as a class.

    A class with a single image gives none, or with `include_singletons` that one.
    """
    selected = []
    for label in sorted(set(labels.tolist())):
        members = (labels == label).nonzero()[:, 0]
        most_drawn = len(members) if include_singletons and len(members) == 1 else len(members) - 1
        count = min(most_drawn, max(round(fraction * len(members)), 1 if fraction > 0 else 0))
        order = torch.randperm(len(members), generator=torch.Generator().manual_seed(derive_seed(seed, label + 1)))
        selected.append(members[order[:count]])
    return torch.cat(selected).sort().values if selected else torch.empty(0, dtype=torch.long)


def _separate_classes(classes: Sequence[str], leave_out: Sequence[str]) -> tuple[list[int], list[int]]:
    """Ids of the classes to train on, and of those left out of pretraining."""
    for name in leave_out:
        if name not in classes:
            raise BadInput(
                f"data.leave_out names class {name!r}, which the data do not have{did_you_mean(name, classes)}"
            )
    left_out = [i for i, name in enumerate(classes) if name in leave_out]
    return [i for i in range(len(classes)) if i not in left_out], left_out


def _take_classes(split: Split, classes: Sequence[int], unlabelled: bool = False) -> Split:
    """Only images of these classes, relabelled 0, 1, ... in their order."""
    ids = torch.full((int(max([*classes, *split.labels.tolist(), 0])) + 1,), -2)
    ids[torch.tensor(list(classes), dtype=torch.long)] = torch.arange(len(classes))
    mapped = split.relabelled(ids)
    keep = (mapped.labels >= 0) | ((split.labels < 0) if unlabelled else False)
    return mapped.take(keep.nonzero()[:, 0])


def _hide_labels(train: Split, fraction: float) -> tuple[Split, list[str]]:
    """Keep the labels of about `fraction` of each class; a remark if rounding in small classes changes the total."""
    if fraction == 1.0:
        return train, []
    labels = keep_labels(train.labels, fraction)
    sizes = torch.bincount(train.labels[train.labels >= 0])
    kept_sizes = torch.bincount(labels[labels >= 0], minlength=len(sizes))
    num_kept, num_requested = int(kept_sizes.sum()), round(fraction * int(sizes.sum()))
    rounded_sizes, explanation = (sizes.double() * fraction).round(), ""
    if num_kept > num_requested and bool((kept_sizes > rounded_sizes).any()):
        explanation = "every class keeps at least one"
    elif num_kept < num_requested and bool((kept_sizes < rounded_sizes).any()):
        explanation = "every class of two or more hides at least one"
    elif abs(num_kept - num_requested) > max(1, 0.05 * num_requested):
        explanation = "the fraction is rounded in each class"
    remark = (
        f"data.labelled = {fraction:g} asks for {num_requested:,} of {int(sizes.sum()):,} labels; "
        f"{num_kept:,} are kept, because {explanation}"
    )
    return replace(train.materialize(), labels=labels), [remark] if explanation else []


def keep_labels(labels: Tensor, fraction: float) -> Tensor:
    """The labels of about `fraction` of each class; others are -1."""
    rows = draw_stratified(labels, fraction, SPLIT_SEED + 1, include_singletons=True)
    shown = torch.full_like(labels, -1)
    shown[rows] = labels[rows]
    return shown


def _limit(train: Split, limit: int | None) -> Split:
    return train if limit is None or limit >= len(train) else train.take(draw_limited(len(train), limit))


def draw_limited(count: int, limit: int) -> Tensor:
    """Positions of `limit` of `count` images."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(SPLIT_SEED + 2))
    return order[:limit].sort().values


# --- batches in time --------------------------------------------------------------------------------------------------


class Feed:
    """The batch of each step, on the device. Threads prefetch batches that are not resident there.

    A batch depends on the step number alone, so steps may be repeated or skipped.
    """

    def __init__(
        self, split: Split, positions: Callable[[int], Tensor], device: torch.device, steps: int, ahead: int = 3
    ) -> None:
        self.split, self.positions, self.device, self.steps, self.ahead = split, positions, device, steps, ahead
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.pending: dict[int, Future[tuple[Batch, Any, Any]]] = {}
        self.executor: ReadingThreads | None = None

    @property
    def is_resident(self) -> bool:
        """Whether a batch needs only indexing on the device, no disk and no copy."""
        return self.split.store.is_resident(self.device)

    @property
    def has_one_shape(self) -> bool:
        """Whether every batch has the same shape, so that the step can be captured and replayed."""
        return self.split.store.has_one_shape(self.device)

    def batch(self, step: int) -> Batch:
        if self.is_resident:
            return self.split.batch(self.positions(step))
        if self.executor is None:
            # two: one copies or decodes while the other's batch is being copied to the device
            self.executor = ReadingThreads(2, "feed")
        for later in range(step, max(step + 1, min(step + self.ahead, self.steps))):
            if later not in self.pending:
                self.pending[later] = self.executor.submit(self._prepare, later)
        for stale in [other for other in self.pending if other < step or other >= step + self.ahead]:
            self.pending.pop(stale).cancel()
        with waiting_for_images():
            batch, event, _ = self.pending[step].result()
        del self.pending[step]
        if event is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(event)
            for tensor in batch:
                if tensor is not None:
                    tensor.record_stream(current)  # keep its memory until this stream has read it
        return batch

    def _prepare(self, step: int) -> tuple[Batch, Any, Any]:
        positions = self.positions(step)
        if self.stream is None:
            return self.split.batch(positions), None, None
        host_batch = self.split.batch_on_canvas(positions)
        with torch.cuda.stream(self.stream):
            pinned = host_batch.pin_memory()
            moved = pinned.to(self.device)
            event = torch.cuda.Event()
            event.record(self.stream)
        return moved, event, pinned

    def close(self) -> None:
        """Stop the threads and drop prefetched batches. Asking for a batch afterwards starts them again."""
        if self.executor is not None:
            self.executor.shutdown(wait=True, cancel_futures=True)
            self.executor, self.pending = None, {}
