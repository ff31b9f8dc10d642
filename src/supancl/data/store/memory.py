"""Batches, and the stores they come from. The stores of cached and streamed images are in cache.py and stream.py.

Stores differ in the methods and attributes of `ImageStore`; no caller checks a store's type.
"""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from supancl.data.decode import (
    DECODE_VERSION,
    Item,
    Resample,
    decode,
    decode_threads_per_rank,
    image_problem,
    item_stamp,
)
from supancl.data.threads import ReadingThreads
from supancl.errors import BadInput
from supancl.reporter import report_progress

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

Progress = Callable[[str, int, int], None]  # (activity, done, total)
MAX_PADDING = 16  # a canvas for all images may be at most this many times their mean size


class Batch(NamedTuple):
    """Pixels (B, C, H, W) as uint8, and each image's (height, width) if images were padded.

    Toy data are float vectors (B, D).
    """

    pixels: Tensor
    sizes: Tensor | None = None

    def take(self, rows: Tensor) -> Batch:
        """The batch with only these rows."""
        return Batch(*(None if tensor is None else tensor[rows] for tensor in self))  # type: ignore[arg-type]

    def to(self, device: torch.device) -> Batch:
        return Batch(*(None if tensor is None else tensor.to(device, non_blocking=True) for tensor in self))  # type: ignore[arg-type]

    def pin_memory(self) -> Batch:
        return Batch(*(None if tensor is None else tensor.pin_memory() for tensor in self))  # type: ignore[arg-type]

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

    def pad_to(self, canvas: tuple[int, int]) -> Batch:
        """The images on a larger canvas, in pinned memory, which saves one copy to a GPU."""
        shape, sizes = self.pixels.shape, self.sizes
        if sizes is None:
            sizes = torch.tensor([shape[-2:]]).repeat(shape[0], 1)
        pixels = torch.empty(*shape[:2], *canvas, dtype=self.pixels.dtype, pin_memory=torch.cuda.is_available())
        pixels[..., : shape[-2], : shape[-1]] = self.pixels
        return Batch(pixels, sizes)


class UnreadableRows(BadInput):
    """Images of a stream cannot be read; their rows are in `unreadable`, and others take their places."""


class ImageStore(ABC):
    """Images by row. A store that defines only `__len__` and `batch` reads its images on demand.

    A stream has `shards`; those of a `window` are shuffled together.
    """

    shards: Sequence[Path] = ()
    shard_ends: Tensor  # the row after the last one of each shard
    shard_digests: Sequence[bytes] = ()  # of the names and labels in each shard
    window = 1

    @cached_property
    def unreadable(self) -> dict[int, str]:
        """Rows of a stream that cannot be read, and the names of their images."""
        return {}

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def batch(self, indices: Tensor) -> Batch:
        """The images at these rows."""

    @property
    def nbytes(self) -> int:
        """Bytes of pixels in memory, on a device, or mapped from disk."""
        return 0

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

    def iter_content(self, rows: Tensor) -> Iterator[bytes | memoryview] | None:
        """Bytes that change with the pixels of these rows, for cache keys; None if unknown.

        Raises OSError if files are gone.
        """
        return None

    def pixel_checksums(self, rows: Tensor) -> np.ndarray | None:
        """A checksum of each row's pixels (uint32); None if they are not known without reading everything."""
        return None

    def has_same_pixels(self, other: ImageStore) -> bool:
        """Whether two stores with equal fingerprints have equal pixels; only arrays need a comparison."""
        return True

    def new_remarks(self) -> list[str]:
        """Remarks for the user since the last call."""
        return []


class ArrayImages(ImageStore):
    """Images of one size as a tensor (N, C, H, W) of uint8, or vectors (N, D)."""

    def __init__(self, pixels: Tensor) -> None:
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.pixels)

    def batch(self, indices: Tensor) -> Batch:
        return Batch(self.pixels[indices.to(self.pixels.device)])

    @property
    def nbytes(self) -> int:
        return self.pixels.nbytes

    def place_on(self, device: torch.device) -> ImageStore:
        if device.type == "cuda" and not fits_on_gpu(self.nbytes, device):
            return self
        return ArrayImages(self.pixels.to(device))

    def is_resident(self, device: torch.device) -> bool:
        return self.pixels.device.type == device.type

    def has_one_shape(self, device: torch.device) -> bool:
        return True

    def iter_content(self, rows: Tensor) -> Iterator[bytes | memoryview]:
        yield str((tuple(self.pixels.shape[1:]), self.pixels.dtype)).encode()
        for chunk in rows.split(4096):
            yield self.pixels[chunk.to(self.pixels.device)].cpu().contiguous().numpy().data

    def pixel_checksums(self, rows: Tensor) -> np.ndarray:
        pixels = self.pixels.cpu().contiguous().numpy()
        return np.array([zlib.crc32(pixels[row].data) for row in rows.tolist()], np.uint32)

    def has_same_pixels(self, other: ImageStore) -> bool:
        return not isinstance(other, ArrayImages) or torch.equal(self.pixels.cpu(), other.pixels.cpu())


class PackedImages(ImageStore):
    """Images of different sizes, packed in flat buffers: in memory, mapped from disk, or on a GPU.

    `locations` is (N, 2): the buffer of an image, and where it starts there. `sizes` is (N, 2).
    """

    def __init__(self, buffers: Sequence[Tensor], locations: Tensor, sizes: Tensor, channels: int) -> None:
        self.buffers, self.locations, self.sizes, self.channels = buffers, locations, sizes, channels
        self.device = buffers[0].device if buffers else torch.device("cpu")
        self.host_sizes = sizes.cpu()  # readable without waiting for the GPU
        self.canvas = tuple(int(side) for side in self.host_sizes.amax(0)) if len(sizes) else (0, 0)
        self.uniform = len(sizes) > 0 and bool((self.host_sizes == self.host_sizes[:1]).all())
        if self.device.type != "cpu":
            self.locations, self.sizes = locations.to(self.device), sizes.to(self.device)

    @classmethod
    def from_images(cls, images: Sequence[Tensor]) -> PackedImages:
        """Pack images (C, H, W) that are in memory."""
        lengths = torch.tensor([image.numel() for image in images])
        starts = lengths.cumsum(0) - lengths
        locations = torch.stack([torch.zeros_like(starts), starts], dim=1)
        sizes = torch.tensor([image.shape[1:] for image in images])
        return cls([torch.cat([image.reshape(-1) for image in images])], locations, sizes, images[0].shape[0])

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def nbytes(self) -> int:
        return self.channels * int(self.host_sizes.prod(1).sum())

    @cached_property
    def has_shared_canvas(self) -> bool:
        """Whether one canvas that fits every image is not much larger than most of them."""
        return math.prod(self.canvas) * self.channels * len(self) <= MAX_PADDING * self.nbytes

    def image(self, index: int) -> Tensor:
        """One image (C, H, W), not copied."""
        (buffer, start), (height, width) = self.locations[index].tolist(), self.sizes[index].tolist()
        pixels: Tensor = self.buffers[buffer][start : start + self.channels * height * width]
        return pixels.view(self.channels, height, width)

    def batch(self, indices: Tensor) -> Batch:
        if self.device.type == "cpu":
            return pad_images([self.image(i) for i in indices.tolist()])
        return self._gather(indices)

    def batch_on_canvas(self, indices: Tensor) -> Batch:
        """The batch on the canvas that fits every image; pixels outside an image are undefined."""
        if not self.has_shared_canvas:
            return self.batch(indices)
        (height, width), sizes, pin_memory = self.canvas, self.host_sizes[indices], torch.cuda.is_available()
        pixels = torch.empty(len(indices), self.channels, height, width, dtype=torch.uint8, pin_memory=pin_memory)
        targets = [pixel[:, :height, :width] for pixel, (height, width) in zip(pixels, sizes.tolist(), strict=True)]
        torch._foreach_copy_(targets, [self.image(index) for index in indices.tolist()])
        return Batch(pixels, None if self.uniform else sizes)

    def _gather(self, indices: Tensor) -> Batch:
        """On a GPU: cut the rows of the canvas out of the buffer in one indexing, with static shapes.

        So the step can be captured and replayed. If one panorama would make every batch huge, the canvas fits only the
        batch instead; then the host waits for the GPU, which cannot be captured.
        """
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

    def iter_content(self, rows: Tensor) -> Iterator[bytes | memoryview]:
        yield self.host_sizes[rows].contiguous().numpy().data
        for row in rows.tolist():
            yield self.image(row).cpu().contiguous().numpy().data

    def pixel_checksums(self, rows: Tensor) -> np.ndarray:
        return np.array([image_checksum(self.image(row).cpu()) for row in rows.tolist()], np.uint32)

    def place_on(self, device: torch.device) -> ImageStore:
        return self.to(device) if device.type == "cuda" and fits_on_gpu(self.nbytes, device) else self

    def to(self, device: torch.device) -> PackedImages:
        """The same images in one buffer on the device, copied in chunks to save host memory."""
        lengths = self.channels * self.host_sizes.prod(1)
        starts = lengths.cumsum(0) - lengths
        # padding after the last image, as a window may be wider than it
        buffer = torch.zeros(int(lengths.sum()) + self.canvas[1], dtype=torch.uint8, device=device)
        for begin in range(0, len(self), 512):
            rows = range(begin, min(begin + 512, len(self)))
            chunk = torch.cat([self.image(i).reshape(-1) for i in rows])
            buffer[int(starts[begin]) : int(starts[begin]) + len(chunk)] = chunk.to(device)
            report_progress("moving images to the GPU", rows[-1] + 1, len(self))
        locations = torch.stack([torch.zeros_like(starts), starts], dim=1)
        return PackedImages([buffer], locations, self.host_sizes, self.channels)


class FileImages(ImageStore):
    """Images that are decoded by several threads each time they are read."""

    def __init__(
        self,
        items: Sequence[Item | Path],
        channels: int,
        short_side: int | None,
        resample: Resample = "bilinear",
        checksums: np.ndarray | None = None,
    ) -> None:
        self.items, self.channels, self.short_side, self.resample = items, channels, short_side, resample
        self.checksums = checksums  # of the pixels, as they were when all images were decoded once
        self.executor = ReadingThreads(decode_threads_per_rank(), "decode")

    def __len__(self) -> int:
        return len(self.items)

    def batch(self, indices: Tensor) -> Batch:
        items = [self.items[i] for i in indices.tolist()]
        return pad_images(list(self.executor.map(self._read, items)))

    def iter_content(self, rows: Tensor) -> Iterator[bytes | memoryview]:
        """Size and time of each file, and the settings of the decoder."""
        yield str((DECODE_VERSION, self.channels, self.short_side, self.resample)).encode()
        for row in rows.tolist():
            yield f"{self.items[row]}{item_stamp(self.items[row])}".encode()

    def pixel_checksums(self, rows: Tensor) -> np.ndarray | None:
        return None if self.checksums is None else self.checksums[rows.numpy()]

    def _read(self, item: Item | Path) -> Tensor:
        try:
            return decode(item, self.channels, self.short_side, self.resample)
        except (OSError, ValueError) as error:
            raise BadInput(
                f"{item}: was readable before, now it is not ({image_problem(error)}); restore it, then "
                "continue with resume"
            ) from None


class TakenItems(Sequence[Any]):
    """Some items of a sequence, by their positions."""

    def __init__(self, items: Sequence[Any], positions: np.ndarray) -> None:
        self.items, self.positions = items, positions

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self.items[position] for position in self.positions[index].tolist()]
        return self.items[int(self.positions[index])]


def image_checksum(image: Tensor) -> int:
    """The checksum of an image's bytes."""
    return zlib.crc32(image.contiguous().numpy().data)


def pad_images(images: Sequence[Tensor]) -> Batch:
    """Images (C, H, W) of any sizes as one batch; `sizes` says where the padding starts."""
    sizes = torch.tensor([image.shape[1:] for image in images])
    height, width = sizes.amax(0).tolist()
    if bool((sizes == sizes[0]).all()):
        return Batch(torch.stack(list(images)))
    pixels = torch.zeros(len(images), images[0].shape[0], height, width, dtype=torch.uint8)
    for row, image in zip(pixels, images, strict=True):
        row[:, : image.shape[1], : image.shape[2]] = image
    return Batch(pixels, sizes)


def fits_on_gpu(nbytes: int, device: torch.device) -> bool:
    """Whether pixels take at most half of the free GPU memory; the rest is for training."""
    return nbytes <= torch.cuda.mem_get_info(device)[0] / 2
