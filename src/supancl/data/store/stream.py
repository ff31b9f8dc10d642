"""Tar shards that are read while training, without a cache of pixels.

A shard is indexed once: offsets, labels and names of its images go into a small file in the cache folder, which is
read when the shard is needed. The order is computed one window of shards at a time (order.py), so neither memory nor
start-up time grows with the number of images, and a run can resume in the middle of an epoch at once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from supancl.data.content import Content, shard_content
from supancl.data.decode import Resample, decode, decode_threads_per_rank, image_problem, large_image_remarks
from supancl.data.order import Order, WindowedOrder
from supancl.data.sources.tar_index import TarIndex, index_tars
from supancl.data.sources.tars import TarItem, caption_remarks, check_splits, find_tars, split_from_name
from supancl.data.splits import DataSpec, Source, Split, sorted_names
from supancl.data.store.memory import Batch, ImageStore, pad_images
from supancl.data.threads import ReadingThreads
from supancl.errors import BadInput, plural

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

MAX_ASPECT = 2  # longer images are cut to their middle, so that one canvas fits every image
SAMPLED_SHARDS = 50  # from which a sample of a stream is drawn
SPLIT_ORDER = ("train", "val", "test")


class StreamImages(ImageStore):
    """The images of indexed shards, decoded each time they are read; rows are numbered through the shards in order."""

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
        self.canvas = None if short_side is None else (MAX_ASPECT * short_side, MAX_ASPECT * short_side)
        self.open_indexes: OrderedDict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = OrderedDict()
        self.lock = threading.Lock()
        self.executor = ReadingThreads(decode_threads_per_rank(), "decode")
        self.skipped: set[str] = set()
        self.large: set[str] = set()
        self.reported: set[str] = set()

    def __len__(self) -> int:
        return int(self.ends[-1])

    def batch(self, indices: Tensor) -> Batch:
        images = list(self.executor.map(self.decode_item, self.items(indices)))
        refusals = [image for image in images if isinstance(image, BadInput)]
        if refusals:
            raise refusals[0]
        return pad_images([image for image in images if not isinstance(image, BadInput)])

    def decode_item(self, item: TarItem) -> Tensor | BadInput:
        """Pixels, cut to at most `MAX_ASPECT` times the short side; or the error, if the image cannot be read."""
        large: list[str] = []
        try:
            image = decode(item, self.channels, self.short_side, self.resample, large)
        except (OSError, ValueError) as error:
            return BadInput(
                f"{item}: cannot be read as an image ({image_problem(error)}); repair or remove it, "
                "or skip it with skip_bad_images"
            )
        finally:
            self.record(large, self.large)
        if self.canvas is None:
            return image
        for axis, limit in ((1, self.canvas[0]), (2, self.canvas[1])):
            if image.shape[axis] > limit:
                image = image.narrow(axis, (image.shape[axis] - limit) // 2, limit)
        return image

    def locate(self, row: int) -> tuple[int, int]:
        """The shard of a row, and the position within it."""
        shard = int(torch.searchsorted(self.ends, row, right=True))
        return shard, row - self.first_row(shard)

    def first_row(self, shard: int) -> int:
        return int(self.ends[shard - 1]) if shard else 0

    def items(self, rows: Tensor) -> list[TarItem]:
        """The images at these rows; their names are read from the index only when needed."""
        items: list[TarItem] = []
        for row in rows.tolist():
            shard, position = self.locate(row)
            offsets, lengths, _ = self.open_index(shard)
            index = self.shards[shard]
            items.append(StreamItem(index.tar, "", int(offsets[position]), int(lengths[position]), index, position))
        return items

    def names_of(self, rows: Tensor) -> list[str]:
        locations = [self.locate(row) for row in rows.tolist()]
        members = {shard: self.shards[shard].members() for shard in {shard for shard, _ in locations}}
        return [f"{self.shards[shard].tar}::{members[shard][position]}" for shard, position in locations]

    def labels_of(self, rows: Tensor) -> Tensor:
        """Class ids of these rows, -1 for unlabelled."""
        shards = torch.searchsorted(self.ends, rows, right=True)
        ids = torch.empty(len(rows), dtype=torch.long)
        for number in torch.unique(shards).tolist():
            in_shard = (shards == number).nonzero()[:, 0]
            ids[in_shard] = torch.from_numpy(self.open_index(number)[2]).long()[rows[in_shard] - self.first_row(number)]
        return ids

    def labels_of_shards(self, begin: int, end: int) -> Tensor:
        """Class ids of all images of the shards begin to end."""
        pieces = [torch.from_numpy(self.open_index(shard)[2]).long() for shard in range(begin, end)]
        return torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.long)

    def open_index(self, shard: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Offsets, lengths and class ids of a shard; the most recently used ones are cached."""
        with self.lock:
            if shard in self.open_indexes:
                self.open_indexes.move_to_end(shard)
                return self.open_indexes[shard]
        offsets, lengths, codes, classes = self.shards[shard].read()
        ids = np.array([*(self.ids.get(name, -1) for name in classes), -1], np.int32)
        arrays = offsets, lengths, ids[codes]  # code -1 (unlabelled) selects the last
        with self.lock:
            self.open_indexes[shard] = arrays
            while len(self.open_indexes) > max(64, 3 * self.window):
                self.open_indexes.popitem(last=False)
        return arrays

    def record(self, names: Sequence[str], into: set[str]) -> None:
        if names:
            with self.lock:
                into.update(names)

    def has_one_shape(self, device: torch.device) -> bool:
        return device.type != "cpu" and self.canvas is not None

    def new_remarks(self) -> list[str]:
        with self.lock:
            skipped, large = (sorted(names - self.reported) for names in (self.skipped, self.large))
            self.reported.update(skipped, large)
        sentence = plural(len(skipped), "unreadable image was replaced", "unreadable images were replaced, each")
        sentence += " by another of its class and shard: "
        return [*large_image_remarks(large), *([sentence + ", ".join(skipped)] if skipped else [])]


@dataclass(frozen=True, slots=True)
class StreamItem(TarItem):
    """An image of an indexed shard; its name is read from the index when needed."""

    index: TarIndex
    position: int

    def __str__(self) -> str:
        return f"{self.tar}::{self.index.members()[self.position]}"


@dataclass(frozen=True)
class StreamSplit(Split):
    """A subset of a stream, with rows and labels in memory: 16 bytes per image.

    Batches carry their labels. An unreadable image is refused, or replaced by the next readable one of the same class,
    shard and split, so that labels stay right and held-out images are never trained on.
    """

    store: StreamImages

    is_streamed: ClassVar[bool] = True

    def batch(self, positions: Tensor) -> Batch:
        rows = self.rows_at(positions)
        labels = self.labels_at(positions)
        decoded = list(self.store.executor.map(self.store.decode_item, self.store.items(rows)))
        images = [
            self._substitute(position, label, image) if isinstance(image, BadInput) else image
            for position, label, image in zip(positions.tolist(), labels.tolist(), decoded, strict=True)
        ]
        pixels, sizes, _ = pad_images(images)
        return Batch(pixels, sizes, labels)

    def batch_on_canvas(self, positions: Tensor) -> Batch:
        batch = self.batch(positions)
        return batch if self.store.canvas is None else batch.pad_to(self.store.canvas)

    def order(
        self, seed: int, batch_size: int, balanced: bool = False, unlabelled: bool = True
    ) -> Order | WindowedOrder:
        return WindowedOrder(self.images_per_shard(), seed, batch_size, self.store.window)

    def _substitute(self, position: int, label: int, refusal: BadInput) -> Tensor:
        """The image that replaces an unreadable one; the same one every time."""
        row = self.rows_at(torch.tensor([position]))
        self.store.shards[self.store.locate(int(row))[0]].check()  # a missing tar is not a bad image
        if not self.store.skip_bad:
            raise refusal
        self.store.record(self.store.names_of(row), self.store.skipped)
        begin, end = self.positions_in_shard(position)
        others = torch.cat([torch.arange(position + 1, end), torch.arange(begin, position)])
        for other in others[self.labels_at(others) == label].tolist():
            image = self.store.decode_item(self.store.items(self.rows_at(torch.tensor([other])))[0])
            if not isinstance(image, BadInput):
                return image
        raise refusal

    def rows_at(self, positions: Tensor) -> Tensor:
        return self.index[positions]

    def labels_at(self, positions: Tensor) -> Tensor:
        return self.labels[positions]

    def positions_in_shard(self, position: int) -> tuple[int, int]:
        """Begin and end of this split's positions in the shard of `position`."""
        shard, _ = self.store.locate(int(self.index[position]))
        shard_rows = torch.tensor([self.store.first_row(shard), int(self.store.ends[shard])])
        begin, end = torch.searchsorted(self.index, shard_rows).tolist()
        return begin, end

    def images_per_shard(self) -> list[int]:
        """Number of the split's images in each shard."""
        ends = torch.searchsorted(self.index, self.store.ends)
        counts: list[int] = torch.diff(ends, prepend=torch.zeros(1, dtype=torch.long)).tolist()
        return counts

    def names_at(self, positions: Tensor) -> list[str]:
        return self.store.names_of(self.rows_at(positions.cpu()))

    def content(self) -> Content:
        return shard_content([shard.tar for shard in self.store.shards])

    def iter_content(self) -> Iterator[bytes]:
        yield from (self.index.numpy().tobytes(), self.labels.numpy().tobytes())
        yield from (shard.digest for shard in self.store.shards)


class FullStream(StreamSplit):
    """All images of consecutive shards; neither rows nor labels are in memory."""

    is_materialized: ClassVar[bool] = False
    begin: int
    end: int
    first_row: int
    classes: set[str]

    def __init__(self, store: StreamImages, begin: int, end: int, classes: set[str]) -> None:
        values = {"store": store, "begin": begin, "end": end, "first_row": store.first_row(begin), "classes": classes}
        for name, value in {**values, "names": ()}.items():
            object.__setattr__(self, name, value)  # the dataclass is frozen

    def __len__(self) -> int:
        return self.store.first_row(self.end) - self.first_row

    @cached_property
    def index(self) -> Tensor:
        return torch.arange(len(self)) + self.first_row

    @cached_property
    def labels(self) -> Tensor:
        return self.store.labels_of_shards(self.begin, self.end)

    @property
    def num_labelled(self) -> int:
        return sum(shard.labelled for shard in self._shards())

    def class_ids(self) -> list[int]:
        return sorted(self.store.ids[name] for name in self.classes)

    def rows_at(self, positions: Tensor) -> Tensor:
        return positions + self.first_row

    def labels_at(self, positions: Tensor) -> Tensor:
        return self.store.labels_of(self.rows_at(positions))

    def positions_in_shard(self, position: int) -> tuple[int, int]:
        shard, _ = self.store.locate(position + self.first_row)
        return self.store.first_row(shard) - self.first_row, int(self.store.ends[shard]) - self.first_row

    def images_per_shard(self) -> list[int]:
        return [shard.images for shard in self._shards()]

    def iter_content(self) -> Iterator[bytes]:
        yield from (shard.digest for shard in self._shards())

    def take(self, positions: Tensor) -> Split:
        return StreamSplit(self.store, self.rows_at(positions), self.labels_at(positions), ())

    def materialize(self) -> Split:
        return StreamSplit(self.store, self.index, self.labels, ())

    def relabelled(self, ids: Tensor) -> Split:
        return self.materialize().relabelled(ids)

    def sample(self, count: int) -> Split:
        """Evenly spaced images of evenly spaced shards, so that only a few indexes are read."""
        if len(self) <= count:
            return self
        shards = np.unique(
            np.linspace(self.begin, self.end - 1, min(SAMPLED_SHARDS, self.end - self.begin)).astype(int)
        )
        pieces = []
        for number, shard in enumerate(shards.tolist()):
            shard_count = count * (number + 1) // len(shards) - count * number // len(shards)
            rows = np.unique(np.linspace(0, self.store.shards[shard].images - 1, shard_count).astype(int))
            pieces.append(torch.from_numpy(rows) + self.store.first_row(shard) - self.first_row)
        return self.take(torch.cat(pieces))

    def _shards(self) -> Sequence[TarIndex]:
        return self.store.shards[self.begin : self.end]


def read_stream(name: str, channels: int, spec: DataSpec) -> Source:
    """A source with the splits, labels and class order of `list_tars`, without decoding any image."""
    if spec.balanced:
        raise BadInput(
            "data.balanced needs the labels of all images, which data.stream does not hold; "
            "use data.balanced=false or data.stream=false"
        )
    if spec.hierarchy != "none":
        raise BadInput(
            f"data.hierarchy = {spec.hierarchy} gives images several labels, and data.stream reads one of each; use "
            "data.hierarchy=none or data.stream=false"
        )
    files = find_tars(name)
    shards: dict[str, list[TarIndex]] = {split: [] for split in SPLIT_ORDER}
    class_names: dict[str, set[str]] = {split: set() for split in SPLIT_ORDER}
    indexes = index_tars(files, lambda number, names: class_names[split_from_name(files[number])].update(names))
    for path, shard in zip(files, indexes, strict=True):
        if shard.images:
            shards[split_from_name(path)].append(shard)
    check_splits(name, len(files), {split for split, indexed in shards.items() if indexed})
    classes = sorted_names(set.union(*class_names.values()), by_number=True)
    store = StreamImages(
        [shard for split in SPLIT_ORDER for shard in shards[split]],
        {label: i for i, label in enumerate(classes)},
        channels,
        spec.short_side,
        spec.resample,
        spec.skip_bad_images,
        spec.window,
    )
    splits: dict[str, Split] = {}
    begin = 0
    for split, indexed in shards.items():
        if indexed:
            splits[split] = FullStream(store, begin, begin + len(indexed), class_names[split])
        begin += len(indexed)
    labelled = sum(shard.labelled for shard in store.shards)
    return Source(splits, classes, tuple(caption_remarks(name, len(classes), labelled)))
