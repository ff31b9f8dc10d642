"""Batches; images in memory, mapped from the packed cache, or on a GPU; and the batch of each step, prefetched."""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from supancl.data.threads import ReadingThreads, waiting_for_images
from supancl.reporter import report_progress

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from supancl.data.splits import Split
else:
    from supancl.lazy import torch

Progress = Callable[[str, int, int], None]  # (activity, done, total)
AHEAD = 3  # batches that a feed prepares, that of the step included
MAX_PADDING = 16  # a canvas for all images may be at most this many times their mean size


class Batch(NamedTuple):
    """Pixels (B, C, H, W) as uint8, or float vectors (B, D); and each image's (height, width) if they were padded."""

    pixels: Tensor
    sizes: Tensor | None = None

    def _map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        return Batch(change(self.pixels), None if self.sizes is None else change(self.sizes))

    def take(self, rows: Tensor) -> Batch:
        """The batch with only these rows."""
        return self._map(lambda tensor: tensor[rows])

    def to(self, device: torch.device) -> Batch:
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        return self._map(lambda tensor: tensor.pin_memory())

    def image_sizes(self) -> Tensor:
        """(B, 2): height and width of each image, without padding."""
        if self.sizes is not None:
            return self.sizes
        sizes = torch.full((len(self.pixels), 2), self.pixels.shape[-1], device=self.pixels.device)
        sizes[:, 0] = self.pixels.shape[-2]
        return sizes

    def image(self, row: int) -> Tensor:
        """The pixels of one image, without its padding."""
        if self.sizes is None:
            return self.pixels[row]
        height, width = self.sizes[row].tolist()
        return self.pixels[row][:, :height, :width]


class ImageStore(ABC):
    """Images by row. A stream has `shards`; those of a `window` are shuffled together."""

    shards: Sequence[Path] = ()
    shard_ends: Tensor  # the row after the last one of each shard
    shard_digests: Sequence[bytes] = ()  # of the names and labels in each shard
    window = 1
    nbytes = 0  # of pixels in memory, on a device, or mapped from disk

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def batch(self, indices: Tensor) -> Batch:
        """The images at these rows."""

    def batch_on_canvas(self, indices: Tensor) -> Batch:
        """The batch to copy to a GPU, padded to the same shape every time if the store can."""
        return self.batch(indices)

    def padded_bytes(self, indices: Tensor) -> int:
        """Bytes of a batch of these rows, with its padding; 0 if it has none, or if sizes are not known."""
        return 0

    def place_on(self, device: torch.device) -> ImageStore:
        """The store with its pixels on the device, or the store itself if they cannot be moved or do not fit."""
        return self

    def is_resident(self, device: torch.device) -> bool:
        """Whether a batch needs only indexing on the device, no disk and no copy."""
        return False

    def has_one_shape(self, device: torch.device) -> bool:
        """Whether every batch on the device has the same shape, so that the step can be captured."""
        return False

    def pixel_checksums(self, rows: Tensor) -> np.ndarray | None:
        """A checksum of each row's pixels (uint32); None if they are not known without reading everything."""
        return None

    def new_remarks(self) -> list[str]:
        """Remarks for the user since the last call."""
        return []


class ArrayImages(ImageStore):
    """Images of one size as a tensor (N, C, H, W) of uint8, or vectors (N, D)."""

    def __init__(self, pixels: Tensor) -> None:
        self.pixels, self.nbytes = pixels, pixels.nbytes

    def __len__(self) -> int:
        return len(self.pixels)

    def batch(self, indices: Tensor) -> Batch:
        return Batch(self.pixels[indices.to(self.pixels.device)])

    def place_on(self, device: torch.device) -> ImageStore:
        return ArrayImages(self.pixels.to(device)) if fits_on(device, self.nbytes) else self

    def is_resident(self, device: torch.device) -> bool:
        return self.pixels.device.type == device.type

    def has_one_shape(self, device: torch.device) -> bool:
        return True

    def pixel_checksums(self, rows: Tensor) -> np.ndarray:
        pixels = self.pixels.cpu()
        return np.array([image_checksum(pixels[row]) for row in rows.tolist()], np.uint32)


class PackedImages(ImageStore):
    """Images of different sizes, packed in flat buffers: in memory, mapped from the cache, or on a GPU.

    `locations` is (N, 2): the buffer of an image, and where it starts there. `checksums` are known for cached images.
    """

    def __init__(
        self, buffers: Sequence[Tensor], locations: Tensor, sizes: Tensor, channels: int,
        checksums: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        self.buffers, self.channels, self.checksums = buffers, channels, checksums
        self.device = buffers[0].device if buffers else torch.device("cpu")
        self.host_sizes = sizes.cpu()  # readable without waiting for the GPU
        self.locations, self.sizes = locations.to(self.device), sizes.to(self.device)
        self.canvas = tuple(int(side) for side in self.host_sizes.amax(0)) if len(sizes) else (0, 0)
        self.uniform = len(sizes) > 0 and bool((self.host_sizes == self.host_sizes[:1]).all())
        self.nbytes = channels * int(self.host_sizes.prod(1).sum())
        # whether one canvas that fits every image is not much larger than most of them
        self.has_shared_canvas = math.prod(self.canvas) * channels * len(self) <= MAX_PADDING * self.nbytes

    @classmethod
    def from_images(cls, images: Sequence[Tensor]) -> PackedImages:
        """Pack images (C, H, W) that are in memory."""
        sizes, channels = torch.tensor([image.shape[1:] for image in images]), images[0].shape[0]
        return cls([torch.cat([image.reshape(-1) for image in images])], _locations(sizes, channels), sizes, channels)

    def __len__(self) -> int:
        return len(self.sizes)

    def images(self, rows: Tensor) -> list[Tensor]:
        """The images (C, H, W) at these rows, not copied."""
        channels, rows = self.channels, rows.cpu()
        places = zip(self.locations[rows].tolist(), self.host_sizes[rows].tolist(), strict=True)
        return [
            self.buffers[buffer][start : start + channels * height * width].view(channels, height, width)
            for (buffer, start), (height, width) in places
        ]

    def batch(self, indices: Tensor) -> Batch:
        return pad_images(self.images(indices)) if self.device.type == "cpu" else self._gather(indices)

    def batch_on_canvas(self, indices: Tensor) -> Batch:
        """The batch on the canvas that fits every image; pixels outside an image are undefined."""
        if not self.has_shared_canvas:
            return self.batch(indices)
        batch = pad_images(self.images(indices), self.canvas)
        return Batch(batch.pixels) if self.uniform else batch

    def _gather(self, indices: Tensor) -> Batch:
        """On a GPU: cut the rows of the canvas out of the buffer in one indexing; a shared one waits for nothing."""
        (height, width), sizes = self.canvas, self.sizes[indices.to(self.device)]
        if not self.has_shared_canvas:
            height, width = self.host_sizes[indices.cpu()].amax(0).tolist()
        indices = indices.to(self.device)
        channel = torch.arange(self.channels, device=self.device)[:, None]
        row = torch.arange(height, device=self.device)
        area = sizes.prod(1)[:, None, None]
        start = self.locations[indices, 1][:, None, None] + channel * area + row * sizes[:, 1][:, None, None]
        windows = self.buffers[0].unfold(0, width, 1)  # a view: row i is bytes i to i + width
        pixels = windows[start.clamp(max=len(windows) - 1)]
        return Batch(pixels, None if self.uniform else sizes)

    def padded_bytes(self, indices: Tensor) -> int:
        sizes = self.host_sizes[indices.cpu()]
        return self.channels * len(sizes) * int(sizes.amax(0).prod())

    def is_resident(self, device: torch.device) -> bool:
        return device.type != "cpu" and self.device.type == device.type

    def has_one_shape(self, device: torch.device) -> bool:
        return self.uniform or (device.type != "cpu" and self.has_shared_canvas)

    def pixel_checksums(self, rows: Tensor) -> np.ndarray:
        if self.checksums is not None:
            known: np.ndarray = self.checksums[rows.numpy()]
            return known
        return np.array([image_checksum(image.cpu()) for image in self.images(rows)], np.uint32)

    def place_on(self, device: torch.device) -> ImageStore:
        return self.to(device) if device.type == "cuda" and fits_on(device, self.nbytes) else self

    def to(self, device: torch.device) -> PackedImages:
        """The same images in one buffer on the device, copied in chunks to save host memory."""
        # padding after the last image, as a window may be wider than it
        buffer = torch.zeros(self.nbytes + self.canvas[1], dtype=torch.uint8, device=device)
        locations = _locations(self.host_sizes, self.channels)
        for rows in torch.arange(len(self)).split(512):
            chunk = torch.cat([image.reshape(-1) for image in self.images(rows)])
            start = int(locations[rows[0], 1])
            buffer[start : start + len(chunk)] = chunk.to(device)
            report_progress("moving images to the GPU", int(rows[-1]) + 1, len(self))
        return PackedImages([buffer], locations, self.host_sizes, self.channels, self.checksums)


def _locations(sizes: Tensor, channels: int) -> Tensor:
    """(N, 2): the places of images of these sizes, one after another in one buffer."""
    lengths = channels * sizes.prod(1)
    return torch.stack([torch.zeros_like(lengths), lengths.cumsum(0) - lengths], dim=1)


class LazyItems(Sequence[Any]):
    """Items that are made when they are asked for."""

    def __init__(self, length: int, make: Callable[[int], Any]) -> None:
        self.length, self.make = length, make

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        if index >= self.length:
            raise IndexError(index)
        return self.make(int(index))


def take_items(items: Sequence[Any], positions: np.ndarray) -> LazyItems:
    """Some items, by their positions."""
    return LazyItems(len(positions), lambda index: items[int(positions[index])])


def image_checksum(image: Tensor) -> int:
    """The checksum of an image's bytes."""
    return zlib.crc32(image.contiguous().numpy().data)


def pad_images(images: Sequence[Tensor], canvas: tuple[int, ...] | None = None) -> Batch:
    """Images (C, H, W) of any sizes as one batch; with a `canvas` in pinned memory, undefined outside the images."""
    sizes = torch.tensor([image.shape[1:] for image in images])
    is_uniform = bool((sizes == sizes[0]).all())
    if canvas is None and is_uniform:
        return Batch(torch.stack(list(images)))
    height, width = canvas or sizes.amax(0).tolist()
    make = torch.zeros if canvas is None else torch.empty
    pinned = canvas is not None and torch.cuda.is_available()
    pixels = make(len(images), images[0].shape[0], height, width, dtype=torch.uint8, pin_memory=pinned)
    targets = [row[:, :height, :width] for row, (height, width) in zip(pixels, sizes.tolist(), strict=True)]
    torch._foreach_copy_(targets, list(images))
    return Batch(pixels, sizes)


def fits_on(device: torch.device, nbytes: int) -> bool:
    """Whether pixels take at most half of the free memory of a GPU; the rest is for training."""
    return device.type != "cuda" or nbytes <= torch.cuda.mem_get_info(device)[0] / 2


class Feed:
    """The batch of each step, in any order, on the device. Threads prefetch batches that are not resident there."""

    def __init__(self, split: Split, positions: Callable[[int], Tensor], device: torch.device, steps: int) -> None:
        self.split, self.positions, self.device, self.steps = split, positions, device, steps
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.pending: dict[int, Future[tuple[Batch, Any, Any]]] = {}
        self.executor: ReadingThreads | None = None

    @property
    def is_resident(self) -> bool:
        return self.split.store.is_resident(self.device)

    def batch(self, step: int) -> Batch:
        if self.is_resident:
            return self.split.batch(self.positions(step))
        if self.executor is None:
            # two: one copies or decodes while the other's batch is being copied to the device
            self.executor = ReadingThreads(2, "feed")
        for later in range(step, max(step + 1, min(step + AHEAD, self.steps))):
            if later not in self.pending:
                self.pending[later] = self.executor.submit(self._prepare, later)
        for stale in [other for other in self.pending if other < step or other >= step + AHEAD]:
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
        host_batch = self.split.store.batch_on_canvas(self.split.index[positions])
        with torch.cuda.stream(self.stream):
            pinned = host_batch.pin_memory()
            moved = pinned.to(self.device)
            event = torch.cuda.Event()
            event.record(self.stream)
        return moved, event, pinned

    def close(self) -> None:
        """Stop the threads and drop prefetched batches; a batch that is asked for later starts them again."""
        if self.executor is not None:
            self.executor.shutdown(wait=True, cancel_futures=True)
            self.executor, self.pending = None, {}
