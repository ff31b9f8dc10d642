"""Tar shards read while training: nothing is packed, and nothing about an image is held but where the open shards are.

A shard is indexed once: where each image lies, its label and its name go into a small file in the cache folder, which
is read again when the shard's turn comes. Order is worked out a window of shards at a time (order.py), so neither
memory nor the wait before a step grows with the number of images, and a run goes on in the middle of an epoch at once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from supancl.data.decode import Resample, decode, image_fault, remarks_on_large, workers_per_rank
from supancl.data.order import Order, WindowedOrder
from supancl.data.sources.tar_index import TarIndex, index_tars
from supancl.data.sources.tars import TarItem, check_splits, remarks_on_captions, split_of, tar_files
from supancl.data.splits import DataSpec, Source, Split, sorted_names
from supancl.data.store.memory import Batch, ImageStore, Progress, padded
from supancl.errors import BadInput, counted

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

LONGEST = 2  # times the short side: what is longer is cut to its middle, so that one canvas holds any image
SOME_SHARDS = 50  # out of which a sample of a whole stream is drawn
SPLITS = ("train", "val", "test")


class StreamImages(ImageStore):
    """The images of indexed shards, decoded each time they are asked for; rows count through the shards in order."""

    def __init__(
        self,
        shards: Sequence[TarIndex],
        ids: dict[str, int],
        channels: int,
        short_side: int | None,
        resample: Resample = "bilinear",
        skip_bad: bool = False,
        window: int = 16,
    ) -> None:
        self.shards, self.ids, self.channels, self.short_side = shards, ids, channels, short_side
        self.resample, self.skip_bad, self.window = resample, skip_bad, window
        self.ends = torch.tensor([shard.images for shard in shards]).cumsum(0)
        self.canvas = None if short_side is None else (LONGEST * short_side, LONGEST * short_side)
        self.opened: OrderedDict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = OrderedDict()
        self.lock = threading.Lock()
        self.threads = ThreadPoolExecutor(max_workers=workers_per_rank(), thread_name_prefix="decode")
        self.skipped: set[str] = set()
        self.large: set[str] = set()
        self.reported: set[str] = set()

    def __len__(self) -> int:
        return int(self.ends[-1])

    def batch(self, indices: Tensor) -> Batch:
        found = list(self.threads.map(self.decoded, self.items(indices)))
        broken = [image for image in found if isinstance(image, BadInput)]
        if broken:
            raise broken[0]
        return padded([image for image in found if not isinstance(image, BadInput)])

    def decoded(self, item: TarItem) -> Tensor | BadInput:
        """Pixels, at most `LONGEST` times as long as wide; or what is wrong with the image."""
        large: list[str] = []
        try:
            image = decode(item, self.channels, self.short_side, self.resample, large)
        except (OSError, ValueError) as error:
            return BadInput(
                f"{item}: cannot be read as an image ({image_fault(error)}); mend or remove it, "
                "or pass --skip-bad-images to go on without"
            )
        finally:
            self.note(large, self.large)
        if self.canvas is None:
            return image
        for axis, most in ((1, self.canvas[0]), (2, self.canvas[1])):
            if image.shape[axis] > most:
                image = image.narrow(axis, (image.shape[axis] - most) // 2, most)
        return image

    def place(self, row: int) -> tuple[int, int]:
        """In which shard a row is, and where in it."""
        shard = int(torch.searchsorted(self.ends, row, right=True))
        return shard, row - self.first(shard)

    def first(self, shard: int) -> int:
        return int(self.ends[shard - 1]) if shard else 0

    def items(self, rows: Tensor) -> list[TarItem]:
        """Where the bytes of these images are. Their names are left in the index until somebody asks for them."""
        found: list[TarItem] = []
        for row in rows.tolist():
            shard, at = self.place(row)
            offsets, lengths, _ = self.open_index(shard)
            index = self.shards[shard]
            found.append(StreamItem(index.tar, "", int(offsets[at]), int(lengths[at]), index, at))
        return found

    def names(self, rows: Tensor) -> list[str]:
        places = [self.place(row) for row in rows.tolist()]
        members = {shard: self.shards[shard].members() for shard in {shard for shard, _ in places}}
        return [f"{self.shards[shard].tar}::{members[shard][at]}" for shard, at in places]

    def labels(self, rows: Tensor) -> Tensor:
        """Class ids of any rows, -1 where an image has no label; shard by shard."""
        shard = torch.searchsorted(self.ends, rows, right=True)
        result = torch.empty(len(rows), dtype=torch.long)
        for each in torch.unique(shard).tolist():
            mine = (shard == each).nonzero()[:, 0]
            result[mine] = torch.from_numpy(self.open_index(each)[2]).long()[rows[mine] - self.first(each)]
        return result

    def all_labels(self, begin: int, end: int) -> Tensor:
        """Of whole shards, one after another."""
        parts = [torch.from_numpy(self.open_index(shard)[2]).long() for shard in range(begin, end)]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.long)

    def open_index(self, shard: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Offsets, lengths and class ids of a shard; those used last stay in memory, a few windows of them."""
        with self.lock:
            if shard in self.opened:
                self.opened.move_to_end(shard)
                return self.opened[shard]
        offsets, lengths, codes, classes = self.shards[shard].read()
        ids = np.array([*(self.ids.get(name, -1) for name in classes), -1], np.int32)
        found = offsets, lengths, ids[codes]  # code -1, unlabelled, takes the last
        with self.lock:
            self.opened[shard] = found
            while len(self.opened) > max(64, 3 * self.window):
                self.opened.popitem(last=False)
        return found

    def note(self, names: Sequence[str], where: set[str]) -> None:
        if names:
            with self.lock:
                where.update(names)

    def has_one_shape(self, device: torch.device) -> bool:
        return device.type != "cpu" and self.canvas is not None

    def new_remarks(self) -> list[str]:
        with self.lock:
            bad, large = (sorted(each - self.reported) for each in (self.skipped, self.large))
            self.reported.update(bad, large)
        said = counted(len(bad), "unreadable image was skipped,", "unreadable images were skipped, each")
        said += " for another of its class and shard: "
        return [*remarks_on_large(large), *([said + ", ".join(bad)] if bad else [])]


@dataclass(frozen=True, slots=True)
class StreamItem(TarItem):
    """An image of an indexed shard, which knows its name only when it is asked for it."""

    index: TarIndex
    at: int

    def __str__(self) -> str:
        return f"{self.tar}::{self.index.members()[self.at]}"


@dataclass(frozen=True)
class StreamSplit(Split):
    """Some of the images of a stream, whose rows and labels are listed: 16 bytes an image.

    Its batches bring their labels. An unreadable image is refused, or its place is taken by the next readable one of
    its class, shard and split: so labels stay right and nothing held out is trained on.
    """

    store: StreamImages

    is_streamed: ClassVar[bool] = True

    def batch(self, positions: Tensor) -> Batch:
        rows = self.rows_at(positions)
        labels = self.labels_at(positions)
        found = list(self.store.threads.map(self.store.decoded, self.store.items(rows)))
        images = [
            self._readable_instead(position, label, image) if isinstance(image, BadInput) else image
            for position, label, image in zip(positions.tolist(), labels.tolist(), found, strict=True)
        ]
        pixels, sizes, _ = padded(images)
        return Batch(pixels, sizes, labels)

    def batch_on_canvas(self, positions: Tensor) -> Batch:
        batch = self.batch(positions)
        return batch if self.store.canvas is None else batch.pad_to(self.store.canvas)

    def order(self, seed: int, batch_size: int, balanced: bool = False) -> Order | WindowedOrder:
        return WindowedOrder(self.counts(), seed, batch_size, self.store.window)

    def _readable_instead(self, position: int, label: int, refusal: BadInput) -> Tensor:
        """Another image for one that cannot be read, the same one every time."""
        row = self.rows_at(torch.tensor([position]))
        self.store.shards[self.store.place(int(row))[0]].check()  # a tar that has gone is no bad image
        if not self.store.skip_bad:
            raise refusal
        self.store.note(self.store.names(row), self.store.skipped)
        begin, end = self.shard_of(position)
        others = torch.cat([torch.arange(position + 1, end), torch.arange(begin, position)])
        for other in others[self.labels_at(others) == label].tolist():
            image = self.store.decoded(self.store.items(self.rows_at(torch.tensor([other])))[0])
            if not isinstance(image, BadInput):
                return image
        raise refusal

    def rows_at(self, positions: Tensor) -> Tensor:
        return self.index[positions]

    def labels_at(self, positions: Tensor) -> Tensor:
        return self.labels[positions]

    def shard_of(self, position: int) -> tuple[int, int]:
        """The positions of this split that lie in the same shard: from, to."""
        shard, _ = self.store.place(int(self.index[position]))
        between = torch.tensor([self.store.first(shard), int(self.store.ends[shard])])
        begin, end = torch.searchsorted(self.index, between).tolist()
        return begin, end

    def counts(self) -> list[int]:
        """How many images of the split each shard has."""
        ends = torch.searchsorted(self.index, self.store.ends)
        counted: list[int] = torch.diff(ends, prepend=torch.zeros(1, dtype=torch.long)).tolist()
        return counted

    def named(self, positions: Tensor) -> list[str]:
        return self.store.names(self.rows_at(positions.cpu()))

    def content(self) -> Iterator[bytes]:
        yield from (self.index.numpy().tobytes(), self.labels.numpy().tobytes())
        yield from (shard.digest for shard in self.store.shards)


class WholeStream(StreamSplit):
    """Every image of some shards one after another: nothing is listed, whatever their number."""

    is_listed: ClassVar[bool] = False
    begin: int
    end: int
    first: int
    classes: set[str]

    def __init__(self, store: StreamImages, begin: int, end: int, classes: set[str]) -> None:
        values = {"store": store, "begin": begin, "end": end, "first": store.first(begin), "classes": classes}
        for name, value in {**values, "names": ()}.items():
            object.__setattr__(self, name, value)  # it is frozen, as every split

    def __len__(self) -> int:
        return self.store.first(self.end) - self.first

    @cached_property
    def index(self) -> Tensor:
        return torch.arange(len(self)) + self.first

    @cached_property
    def labels(self) -> Tensor:
        return self.store.all_labels(self.begin, self.end)

    @property
    def labelled(self) -> int:
        return sum(shard.labelled for shard in self._shards())

    def present(self) -> list[int]:
        return sorted(self.store.ids[name] for name in self.classes)

    def rows_at(self, positions: Tensor) -> Tensor:
        return positions + self.first

    def labels_at(self, positions: Tensor) -> Tensor:
        return self.store.labels(self.rows_at(positions))

    def shard_of(self, position: int) -> tuple[int, int]:
        shard, _ = self.store.place(position + self.first)
        return self.store.first(shard) - self.first, int(self.store.ends[shard]) - self.first

    def counts(self) -> list[int]:
        return [shard.images for shard in self._shards()]

    def content(self) -> Iterator[bytes]:
        yield from (shard.digest for shard in self._shards())

    def take(self, positions: Tensor) -> Split:
        return StreamSplit(self.store, self.rows_at(positions), self.labels_at(positions), ())

    def listed(self) -> Split:
        return StreamSplit(self.store, self.index, self.labels, ())

    def relabelled(self, ids: Tensor) -> Split:
        return self.listed().relabelled(ids)

    def some(self, count: int) -> Split:
        """Images of shards evenly spaced, evenly spaced in them: a few indices are read, not all."""
        if len(self) <= count:
            return self
        shards = np.unique(np.linspace(self.begin, self.end - 1, min(SOME_SHARDS, self.end - self.begin)).astype(int))
        parts = []
        for number, shard in enumerate(shards.tolist()):
            want = count * (number + 1) // len(shards) - count * number // len(shards)
            rows = np.unique(np.linspace(0, self.store.shards[shard].images - 1, want).astype(int))
            parts.append(torch.from_numpy(rows) + self.store.first(shard) - self.first)
        return self.take(torch.cat(parts))

    def _shards(self) -> Sequence[TarIndex]:
        return self.store.shards[self.begin : self.end]


def read_stream(name: str, channels: int, spec: DataSpec, progress: Progress | None = None) -> Source:
    """Tar shards as `read_tars` has them (splits by name, labels, class order), but nothing is decoded yet."""
    if spec.balanced:
        raise BadInput(
            "data.balanced needs the labels of all images at once, which data.stream does not hold; "
            "take --set data.balanced=false, or --set data.stream=false"
        )
    files = tar_files(name)
    shards: dict[str, list[TarIndex]] = {split: [] for split in SPLITS}
    named: dict[str, set[str]] = {split: set() for split in SPLITS}
    found = index_tars(files, lambda number, there: named[split_of(files[number])].update(there), progress)
    for path, shard in zip(files, found, strict=True):
        if shard.images:
            shards[split_of(path)].append(shard)
    check_splits(name, len(files), {split for split, there in shards.items() if there})
    classes = sorted_names(set.union(*named.values()), by_number=True)
    store = StreamImages(
        [shard for split in SPLITS for shard in shards[split]],
        {label: i for i, label in enumerate(classes)},
        channels,
        spec.short_side,
        spec.resample,
        spec.skip_bad_images,
        spec.window,
    )
    splits: dict[str, Split] = {}
    begin = 0
    for split, there in shards.items():
        if there:
            splits[split] = WholeStream(store, begin, begin + len(there), named[split])
        begin += len(there)
    labelled = sum(shard.labelled for shard in store.shards)
    return Source(splits, classes, tuple(remarks_on_captions(name, len(classes), labelled)))
