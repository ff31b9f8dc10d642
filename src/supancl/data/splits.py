"""The images that a run works with: splits of stored images, what a source gives, and what is held out of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from supancl.config import INCIDENTAL, Count, Fraction, Positive, Within, marked
from supancl.data.decode import Item
from supancl.data.order import Order, WindowedOrder, seeded
from supancl.data.store.memory import Batch, ImageStore, Progress
from supancl.errors import BadInput, counted, nearest

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

Entry = tuple[str, Path | Item, str]  # split, image, class name ('': unlabelled)
SPLIT_NAMES = {  # what a folder or shard of a split may be called
    **dict.fromkeys(("train", "training", "trainval"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
NO_LABEL = ("-1", "-1.0")  # the second is what becomes of the first in a column with gaps
SPLIT_SEED = 20240  # held-out images are the same for every run, whatever its seed


@dataclass(frozen=True)
class DataSpec:
    """Which data, and which part of them. `source` is empty where a recipe leaves it to --data."""

    source: str = marked("", INCIDENTAL)
    limit: Count | None = None  # train on this many images, drawn with a fixed seed
    holdout: Annotated[float, Within(0, 0.9)] | None = None  # None: 10% where the data have no held-out split
    leave_out: tuple[str, ...] = ()  # classes kept out of pretraining, for transfer
    labelled: Fraction = 1.0  # share of the training labels that are kept
    short_side: Count | None = None  # larger images are brought down to this when decoded
    resample: Literal["bilinear", "bicubic"] = "bilinear"  # how
    balanced: bool = False  # every class equally often in an epoch, whatever its number of images
    # auto: where decoded images take more than 256 MB
    cache: Literal["auto", "always", "never"] = marked("auto", INCIDENTAL)
    memory_gb: Positive = marked(8.0, INCIDENTAL)  # without a cache, images beyond this are decoded again each time
    stream: bool = False  # tar shards are read while training, neither cached nor held in memory
    window: Count = 16  # of streamed shards, so many are shuffled among each other at a time
    skip_bad_images: bool = marked(False, INCIDENTAL)


@dataclass(frozen=True)
class Split:
    """Some of the images of a store, with labels (-1: unlabelled) and names for messages."""

    store: ImageStore
    index: Tensor
    labels: Tensor
    names: Sequence[str]

    is_streamed: ClassVar[bool] = False  # then batches bring their labels
    is_listed: ClassVar[bool] = True  # rows and labels are in memory

    def __len__(self) -> int:
        return len(self.index)

    def batch(self, positions: Tensor) -> Batch:
        return self.store.batch(self.index[positions])

    def batch_on_canvas(self, positions: Tensor) -> Batch:
        """The batch on its way to a GPU: where that is possible, all batches have one shape."""
        return self.store.batch_on_canvas(self.index[positions])

    def order(self, seed: int, batch_size: int, balanced: bool = False) -> Order | WindowedOrder:
        """Which images each step of a run takes."""
        return Order(self.labels, seed, batch_size, balanced)

    def place_on(self, device: torch.device, progress: Progress | None = None) -> Split:
        """The split with its pixels on the device, where they fit; else the split itself."""
        store = self.store.place_on(device, progress)
        return self if store is self.store else replace(self, store=store, index=self.index.to(device))

    def named(self, positions: Tensor) -> list[str]:
        return [self.names[i] for i in self.index.cpu()[positions.cpu()].tolist()]

    def take(self, positions: Tensor) -> Split:
        return replace(self, index=self.index[positions], labels=self.labels[positions])

    def listed(self) -> Split:
        """The split with rows and labels in memory."""
        return self

    @property
    def labelled(self) -> int:
        return int((self.labels >= 0).sum())

    def present(self) -> list[int]:
        """The classes that have an image, by id."""
        found: list[int] = torch.unique(self.labels[self.labels >= 0]).tolist()
        return found

    def some(self, count: int) -> Split:
        """At most so many images, the same ones every time."""
        if len(self) <= count:
            return self
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(0))
        return self.take(order[:count].sort().values)

    def content(self) -> Iterator[bytes]:
        """File names and labels: the same wherever the files lie, different for other files or other labels."""
        yield self.labels.numpy().tobytes()
        names = "\n".join(Path(name).name for name in self.named(torch.arange(len(self))))
        yield names.encode("utf-8", "surrogateescape")  # the name of a file may be in any encoding

    def relabelled(self, ids: Tensor) -> Split:
        """Labels replaced by ids[label]; -1 stays."""
        known = self.labels >= 0
        return replace(self, labels=torch.where(known, ids[self.labels.clamp(min=0)], self.labels))


@dataclass(frozen=True)
class Listing:
    """Image files that a reader found; nothing is decoded yet."""

    entries: Sequence[Entry]
    where: Path
    remarks: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = None  # in label order; None: the names in the entries, sorted
    by_number: bool = False  # sort names that are all numbers as numbers: 2 before 10
    empty: tuple[str, ...] = ()  # class folders without an image
    cache_name: str = ""  # the packed cache is found by it; '': by the name of the source


@dataclass(frozen=True)
class Source:
    """Splits by name (train, val, test) with stored images, class names in label order, remarks for the user."""

    splits: dict[str, Split]
    classes: tuple[str, ...]
    remarks: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    items: Sequence[object] = ()  # images outside memory, in the order of their store
    empty: tuple[str, ...] = ()  # class folders without an image


@dataclass(frozen=True)
class Data:
    """What a run works with. `transfer` holds the left-out classes: images to fit on, images to test on."""

    train: Split
    held_out: Split
    classes: tuple[str, ...]
    test: Split | None = None
    transfer: tuple[Split, Split] | None = None
    transfer_classes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    described: dict[str, object] = field(default_factory=dict)


def whole_split(store: ImageStore, labels: Tensor, names: Sequence[str]) -> Split:
    """Every image of a store."""
    return Split(store, torch.arange(len(store)), labels, names)


def sorted_names(names: set[str], by_number: bool) -> tuple[str, ...]:
    """Class names in label order; `by_number` sorts names that are all numbers as numbers (2 before 10)."""
    if by_number and all(name.isascii() and name.isdigit() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def fingerprint(*splits: Split) -> str:
    """Changes with any file name or label, not with where the files lie."""
    content = hashlib.sha256()
    for split in splits:
        for part in split.content():
            content.update(part)
    return content.hexdigest()[:16]


def prepare_data(source: Source, spec: DataSpec) -> Data:
    """What a run works with: hold out, leave out classes, hide labels, limit; in this order, each with a fixed seed."""
    train, held_out, held_out_from = _hold_out(source, spec)
    remarks = (*source.remarks, *_held_out_remarks(train, held_out, held_out_from, source.classes))
    test = source.splits.get("test")
    classes, transfer = source.classes, None
    transfer_classes: tuple[str, ...] = ()
    if spec.leave_out:
        kept, left = _kept_and_left_out(source.classes, spec.leave_out)
        transfer = (_take_classes(train, left), _take_classes(held_out, left))
        transfer_classes = tuple(source.classes[i] for i in left)
        # an image without a label may show a left-out class: nobody can tell, so it stays
        train, held_out = _take_classes(train, kept, unlabelled=True), _take_classes(held_out, kept, unlabelled=True)
        test = None if test is None else _take_classes(test, kept)
        classes = tuple(source.classes[i] for i in kept)
    known, hidden = _hide_labels(train, spec.labelled)
    train = _limit(known, spec.limit)
    if spec.labelled < 1 and (lost := len(known.present()) - len(train.present())):
        hidden.append(
            f"data.limit = {spec.limit} leaves {lost} of {len(known.present())} classes without a label, for "
            "it is drawn after data.labelled has hidden them; raise one of the two"
        )
    remarks = (*remarks, *hidden)
    if not len(train):
        raise BadInput(f"{spec.source}: no image is left to train on; look at data.leave_out and data.holdout")
    described: dict[str, object] = {
        "source": spec.source,
        "train": len(train),
        "labelled": train.labelled,
        "held_out": len(held_out),
        "held_out_from": held_out_from,
        "classes": len(classes),
        "skipped": len(source.skipped),
        "fingerprint": fingerprint(train, held_out),
    }
    return Data(train, held_out, classes, test, transfer, transfer_classes, remarks, source.skipped, described)


def _hold_out(source: Source, spec: DataSpec) -> tuple[Split, Split, str]:
    """The val split, else the test split, else a stratified share of train; `data.holdout` always takes a share."""
    train = source.splits["train"]
    for name in ("val", "test"):
        if spec.holdout is None and name in source.splits:
            return train, source.splits[name], name
    share = 0.1 if spec.holdout is None else spec.holdout
    if share == 0:
        return train, train.take(torch.empty(0, dtype=torch.long)), "train"
    # an image without a label can judge nothing, so it is trained on, unless there are no others
    judging = (train.labels >= 0).nonzero()[:, 0] if bool((train.labels >= 0).any()) else torch.arange(len(train))
    chosen = judging[draw_stratified(train.labels[judging], share, SPLIT_SEED)]
    if share > 0 and len(chosen) == 0:
        raise BadInput(
            f"{spec.source}: {counted(len(train), 'image is', 'images are')} too few to hold {share:.0%} "
            "of each class out; add images or a val/ folder (for training alone: --set data.holdout=0)"
        )
    mask = torch.zeros(len(train), dtype=torch.bool)
    mask[chosen] = True
    return train.take((~mask).nonzero()[:, 0]), train.take(mask.nonzero()[:, 0]), "train"


def _held_out_remarks(train: Split, held_out: Split, name: str, classes: Sequence[str]) -> Iterator[str]:
    """Remarks on what is held out and can judge nothing: images without a label, classes that nobody trains on."""
    if not train.labelled or not len(held_out):
        return
    if not held_out.labelled:
        some, them = f"none of the {len(held_out)} images of {name} has a", "them"
        if len(held_out) == 1:
            some, them = f"the one image of {name} has no", "it"
        yield (
            f"{some} label, so nothing can be judged by {them}; to hold labelled images of train out "
            "instead: --set data.holdout=0.1"
        )
    unknown = [classes[label] for label in sorted(set(held_out.present()) - set(train.present()))]
    if unknown:
        yield (
            f"{counted(len(unknown), 'class is held out and has', 'classes are held out and have')} no image to "
            f"train on, such as {unknown[0]!r}; a name counts with its capitals, spaces and the way its accents are "
            "encoded"
        )


def draw_stratified(labels: Tensor, share: float, seed: int, ones: bool = False) -> Tensor:
    """Positions of about `share` of each class (unlabelled ones are a class here), at most all but one of it.

    Of a class of one none is taken, or with `ones` that one.
    """
    chosen = []
    for label in sorted(set(labels.tolist())):
        members = (labels == label).nonzero()[:, 0]
        most = len(members) if ones and len(members) == 1 else len(members) - 1
        count = min(most, max(round(share * len(members)), 1 if share > 0 else 0))
        order = torch.randperm(len(members), generator=torch.Generator().manual_seed(seeded(seed, label + 1)))
        chosen.append(members[order[:count]])
    return torch.cat(chosen).sort().values if chosen else torch.empty(0, dtype=torch.long)


def _kept_and_left_out(classes: Sequence[str], leave_out: Sequence[str]) -> tuple[list[int], list[int]]:
    """Ids of the classes to train on, and of those kept out of pretraining."""
    for name in leave_out:
        if name not in classes:
            raise BadInput(f"data.leave_out names class {name!r}, which the data do not have{nearest(name, classes)}")
    left = [i for i, name in enumerate(classes) if name in leave_out]
    return [i for i in range(len(classes)) if i not in left], left


def _take_classes(split: Split, classes: Sequence[int], unlabelled: bool = False) -> Split:
    """Only images of these classes, relabelled 0, 1, ... in their order."""
    ids = torch.full((int(max([*classes, *split.labels.tolist(), 0])) + 1,), -2)
    ids[torch.tensor(list(classes), dtype=torch.long)] = torch.arange(len(classes))
    mapped = split.relabelled(ids)
    keep = (mapped.labels >= 0) | ((split.labels < 0) if unlabelled else False)
    return mapped.take(keep.nonzero()[:, 0])


def _hide_labels(train: Split, share: float) -> tuple[Split, list[str]]:
    """Labels of about `share` of each class, and a remark where small classes make it another share of them all."""
    if share == 1.0:
        return train, []
    kept = draw_stratified(train.labels, share, SPLIT_SEED + 1, ones=True)
    labels = torch.full_like(train.labels, -1)
    labels[kept] = train.labels[kept]
    sizes = torch.bincount(train.labels[train.labels >= 0])
    taken = torch.bincount(labels[labels >= 0], minlength=len(sizes))
    found, wanted = int(taken.sum()), round(share * int(sizes.sum()))
    rounded, why = (sizes.double() * share).round(), ""
    if found > wanted and bool((taken > rounded).any()):
        why = "every class keeps one at least"
    elif found < wanted and bool((taken < rounded).any()):
        why = "every class of two or more hides one at least"
    elif abs(found - wanted) > max(1, 0.05 * wanted):
        why = "the share is rounded in each class"
    remark = (
        f"data.labelled = {share:g} asks for {wanted:,} of {int(sizes.sum()):,} labels; {found:,} are kept, for {why}"
    )
    return replace(train.listed(), labels=labels), [remark] if why else []


def _limit(train: Split, limit: int | None) -> Split:
    if limit is None or limit >= len(train):
        return train
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(SPLIT_SEED + 2))
    return train.take(order[:limit].sort().values)


# --- batches in time --------------------------------------------------------------------------------------------------


class Feed:
    """The batch of each step, on the device. What is not resident there is made ready ahead, by threads of its own.

    Which images a batch has depends on the step alone, so a step may be asked for again, or passed over.
    """

    def __init__(
        self, split: Split, positions: Callable[[int], Tensor], device: torch.device, steps: int, ahead: int = 3
    ) -> None:
        self.split, self.positions, self.device, self.steps, self.ahead = split, positions, device, steps, ahead
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.ready: dict[int, Future[tuple[Batch, Any, Any]]] = {}
        self.thread: ThreadPoolExecutor | None = None

    @property
    def resident(self) -> bool:
        """Whether a batch is one indexing away, without disk or bus."""
        return self.split.store.is_resident(self.device)

    @property
    def one_shape(self) -> bool:
        """Whether every batch has the same shape, so that a step that takes it can be captured and replayed."""
        return self.split.store.has_one_shape(self.device)

    def batch(self, step: int) -> Batch:
        if self.resident:
            return self.split.batch(self.positions(step))
        if self.thread is None:
            # two: one copies or decodes while the other's batch is on its way to the device
            self.thread = ThreadPoolExecutor(max_workers=2, thread_name_prefix="feed")
        for later in range(step, max(step + 1, min(step + self.ahead, self.steps))):
            if later not in self.ready:
                self.ready[later] = self.thread.submit(self._make, later)
        for passed in [other for other in self.ready if other < step or other >= step + self.ahead]:
            self.ready.pop(passed).cancel()
        batch, event, _ = self.ready.pop(step).result()
        if event is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(event)
            for tensor in batch:
                if tensor is not None:
                    tensor.record_stream(current)  # its memory is not to be reused while this stream reads it
        return batch

    def _make(self, step: int) -> tuple[Batch, Any, Any]:
        positions = self.positions(step)
        if self.stream is None:
            return self.split.batch(positions), None, None
        on_host = self.split.batch_on_canvas(positions)
        with torch.cuda.stream(self.stream):
            pinned = on_host.pin_memory()
            moved = pinned.to(self.device)
            event = torch.cuda.Event()
            event.record(self.stream)
        return moved, event, pinned

    def close(self) -> None:
        """Drop what was made ready; no thread is left at work. Who asks for a batch afterwards gets it all the same."""
        if self.thread is not None:
            self.thread.shutdown(wait=True, cancel_futures=True)
            self.thread, self.ready = None, {}
