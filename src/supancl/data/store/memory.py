"""Where pixels lie: batches, and the stores that give them. Cached and streamed images have files of their own.

What differs between stores is a method or an attribute of `ImageStore`; nobody asks for the type of a store.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from supancl.data.decode import DECODE_VERSION, Item, Resample, decode, image_fault, stamp_of, workers_per_rank
from supancl.errors import BadInput

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

Progress = Callable[[str, int, int], None]  # what is being done, how many are done, of how many
MOST_PADDING = 16  # a canvas for all images may be so many times as large as their mean


class Batch(NamedTuple):
    """Pixels (B, C, H, W) as uint8, and each image's own (height, width) where smaller ones were padded.

    Toy data are vectors (B, D) of floats. `labels` (B,) come along where the images are streamed: of those nobody
    holds the labels of all.
    """

    pixels: Tensor
    sizes: Tensor | None = None
    labels: Tensor | None = None

    def take(self, rows: Tensor) -> Batch:
        """Some of the images."""
        return Batch(*(None if part is None else part[rows] for part in self))  # type: ignore[arg-type]

    def to(self, device: torch.device) -> Batch:
        return Batch(*(None if part is None else part.to(device, non_blocking=True) for part in self))  # type: ignore[arg-type]

    def pin_memory(self) -> Batch:
        return Batch(*(None if part is None else part.pin_memory() for part in self))  # type: ignore[arg-type]

    def image_sizes(self) -> Tensor:
        """(B, 2): height and width of each image, without padding."""
        if self.sizes is not None:
            return self.sizes
        full = torch.full((len(self.pixels), 2), self.pixels.shape[-1], device=self.pixels.device)
        full[:, 0] = self.pixels.shape[-2]
        return full

    def pad_to(self, canvas: tuple[int, int]) -> Batch:
        """The images on a larger canvas, in memory that is pinned already: one copy less on the way to a GPU."""
        shape, sizes = self.pixels.shape, self.sizes
        if sizes is None:
            sizes = torch.tensor([shape[-2:]]).repeat(shape[0], 1)
        pixels = torch.empty(*shape[:2], *canvas, dtype=self.pixels.dtype, pin_memory=torch.cuda.is_available())
        pixels[..., : shape[-2], : shape[-1]] = self.pixels
        return Batch(pixels, sizes, self.labels)


class ImageStore(ABC):
    """Images by their row. A store that overrides no more than `len` and `batch` reads its images when asked for."""

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
        """The batch on its way to a GPU: where that is possible, all batches have one shape."""
        return self.batch(indices)

    def place_on(self, device: torch.device, progress: Progress | None = None) -> ImageStore:
        """The store with its pixels on the device, or the store itself where they cannot be, or do not fit."""
        return self

    def is_resident(self, device: torch.device) -> bool:
        """Whether a batch on the device is one indexing away, without disk or bus."""
        return False

    def has_one_shape(self, device: torch.device) -> bool:
        """Whether every batch on the device has the same shape, so that a step that takes it can be captured."""
        return False

    def content(self, rows: Tensor) -> Iterator[bytes | memoryview] | None:
        """What changes when the pixels of these rows do, to name what is computed from them; None: not known.

        Raises OSError where files have gone.
        """
        return None

    def has_same_pixels(self, other: ImageStore) -> bool:
        """Asked of data with one fingerprint, which tells files apart; arrays, which it does not, are compared."""
        return True

    def new_remarks(self) -> list[str]:
        """What there is to tell the user since this was last asked."""
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

    def place_on(self, device: torch.device, progress: Progress | None = None) -> ImageStore:
        if device.type == "cuda" and not fits(self.nbytes, device):
            return self
        return ArrayImages(self.pixels.to(device))

    def is_resident(self, device: torch.device) -> bool:
        return self.pixels.device.type == device.type

    def has_one_shape(self, device: torch.device) -> bool:
        return True

    def content(self, rows: Tensor) -> Iterator[bytes | memoryview]:
        yield str((tuple(self.pixels.shape[1:]), self.pixels.dtype)).encode()
        for some in rows.split(4096):
            yield self.pixels[some.to(self.pixels.device)].cpu().contiguous().numpy().data

    def has_same_pixels(self, other: ImageStore) -> bool:
        return not isinstance(other, ArrayImages) or torch.equal(self.pixels.cpu(), other.pixels.cpu())


class PackedImages(ImageStore):
    """Images of differing sizes, one after another in flat runs of bytes: in memory, mapped from disk, or on a GPU.

    `places` is (N, 2): in which flat tensor an image is, and where it starts there. `sizes` is (N, 2).
    """

    def __init__(self, flats: Sequence[Tensor], places: Tensor, sizes: Tensor, channels: int) -> None:
        self.flats, self.places, self.sizes, self.channels = flats, places, sizes, channels
        self.device = flats[0].device if flats else torch.device("cpu")
        self.known_sizes = sizes.cpu()  # to be looked at without asking the GPU
        self.canvas = tuple(int(side) for side in self.known_sizes.amax(0)) if len(sizes) else (0, 0)
        self.uniform = len(sizes) > 0 and bool((self.known_sizes == self.known_sizes[:1]).all())
        if self.device.type != "cpu":
            self.places, self.sizes = places.to(self.device), sizes.to(self.device)

    @classmethod
    def of(cls, images: Sequence[Tensor]) -> PackedImages:
        """Packed from images (C, H, W) in memory."""
        lengths = torch.tensor([image.numel() for image in images])
        starts = lengths.cumsum(0) - lengths
        places = torch.stack([torch.zeros_like(starts), starts], dim=1)
        sizes = torch.tensor([image.shape[1:] for image in images])
        return cls([torch.cat([image.reshape(-1) for image in images])], places, sizes, images[0].shape[0])

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def nbytes(self) -> int:
        return self.channels * int(self.known_sizes.prod(1).sum())

    @cached_property
    def one_canvas(self) -> bool:
        """Whether a canvas that every image fits on is not out of all proportion to them."""
        return math.prod(self.canvas) * self.channels * len(self) <= MOST_PADDING * self.nbytes

    def image(self, index: int) -> Tensor:
        """One image (C, H, W), not copied."""
        (flat, start), (height, width) = self.places[index].tolist(), self.sizes[index].tolist()
        run: Tensor = self.flats[flat][start : start + self.channels * height * width]
        return run.view(self.channels, height, width)

    def batch(self, indices: Tensor) -> Batch:
        if self.device.type == "cpu":
            return padded([self.image(i) for i in indices.tolist()])
        return self._gathered(indices)

    def batch_on_canvas(self, indices: Tensor) -> Batch:
        """On the canvas that every image fits on, copied once; what lies beside an image has no meaning."""
        if not self.one_canvas:
            return self.batch(indices)
        (height, width), sizes, pinned = self.canvas, self.known_sizes[indices], torch.cuda.is_available()
        pixels = torch.empty(len(indices), self.channels, height, width, dtype=torch.uint8, pin_memory=pinned)
        places = [pixel[:, :rows, :columns] for pixel, (rows, columns) in zip(pixels, sizes.tolist(), strict=True)]
        torch._foreach_copy_(places, [self.image(index) for index in indices.tolist()])
        return Batch(pixels, None if self.uniform else sizes)

    def _gathered(self, indices: Tensor) -> Batch:
        """On a GPU: rows of the canvas are cut out of the bytes in one indexing, shapes known without looking.

        So the step can be captured and replayed. Where one panorama would make every batch huge, the canvas is that of
        the batch instead: then the GPU has to be asked, which cannot be captured.
        """
        (height, width), sizes = self.canvas, self.sizes[indices.to(self.device)]
        if not self.one_canvas:
            height, width = self.known_sizes[indices.cpu()].amax(0).tolist()
        indices = indices.to(self.device)
        channel = torch.arange(self.channels, device=self.device)[:, None]
        row = torch.arange(height, device=self.device)
        area = sizes.prod(1)[:, None, None]
        start = self.places[indices, 1][:, None, None] + channel * area + row * sizes[:, 1][:, None, None]
        windows = self.flats[0].unfold(0, width, 1)  # a view: row i of it is bytes i to i + width
        pixels = windows[start.clamp(max=len(windows) - 1)]
        return Batch(pixels, None if self.uniform else sizes)

    def is_resident(self, device: torch.device) -> bool:
        return device.type != "cpu" and self.device.type == device.type

    def has_one_shape(self, device: torch.device) -> bool:
        return self.uniform or (device.type != "cpu" and self.one_canvas)

    def content(self, rows: Tensor) -> Iterator[bytes | memoryview]:
        yield self.known_sizes[rows].contiguous().numpy().data
        for row in rows.tolist():
            yield self.image(row).cpu().contiguous().numpy().data

    def place_on(self, device: torch.device, progress: Progress | None = None) -> ImageStore:
        return self.to(device, progress) if device.type == "cuda" and fits(self.nbytes, device) else self

    def to(self, device: torch.device, progress: Progress | None = None) -> PackedImages:
        """The same images as one flat tensor on the device, image by image: host memory stays as it is."""
        lengths = self.channels * self.known_sizes.prod(1)
        starts = lengths.cumsum(0) - lengths
        # behind the last image: a window may be wider than it
        flat = torch.zeros(int(lengths.sum()) + self.canvas[1], dtype=torch.uint8, device=device)
        for at in range(0, len(self), 512):
            rows = range(at, min(at + 512, len(self)))
            part = torch.cat([self.image(i).reshape(-1) for i in rows])
            flat[int(starts[at]) : int(starts[at]) + len(part)] = part.to(device)
            if progress is not None:
                progress("moving images to the GPU", rows[-1] + 1, len(self))
        places = torch.stack([torch.zeros_like(starts), starts], dim=1)
        return PackedImages([flat], places, self.known_sizes, self.channels)


class FileImages(ImageStore):
    """Images neither kept nor cached: decoded each time they are asked for, by several threads."""

    def __init__(
        self, items: Sequence[Item | Path], channels: int, short_side: int | None, resample: Resample = "bilinear"
    ) -> None:
        self.items, self.channels, self.short_side, self.resample = items, channels, short_side, resample
        self.threads = ThreadPoolExecutor(max_workers=workers_per_rank())

    def __len__(self) -> int:
        return len(self.items)

    def batch(self, indices: Tensor) -> Batch:
        chosen = [self.items[i] for i in indices.tolist()]
        return padded(list(self.threads.map(self._read, chosen)))

    def content(self, rows: Tensor) -> Iterator[bytes | memoryview]:
        """By each file's size and time, and by how files are read: the same file may have given other pixels."""
        yield str((DECODE_VERSION, self.channels, self.short_side, self.resample)).encode()
        for row in rows.tolist():
            yield f"{self.items[row]}{stamp_of(self.items[row])}".encode()

    def _read(self, item: Item | Path) -> Tensor:
        try:
            return decode(item, self.channels, self.short_side, self.resample)
        except (OSError, ValueError) as error:
            raise BadInput(
                f"{item}: could be read before and cannot any more ({image_fault(error)}); bring it back, then "
                "continue with --resume"
            ) from None


def padded(images: Sequence[Tensor]) -> Batch:
    """Images (C, H, W) of any sizes as one batch; the padding is never looked at, `sizes` says where it starts."""
    sizes = torch.tensor([image.shape[1:] for image in images])
    height, width = sizes.amax(0).tolist()
    if bool((sizes == sizes[0]).all()):
        return Batch(torch.stack(list(images)))
    pixels = torch.zeros(len(images), images[0].shape[0], height, width, dtype=torch.uint8)
    for row, image in zip(pixels, images, strict=True):
        row[:, : image.shape[1], : image.shape[2]] = image
    return Batch(pixels, sizes)


def fits(nbytes: int, device: torch.device) -> bool:
    """Whether pixels may stay on the GPU: at most half of what is free, the rest is for training."""
    return nbytes <= torch.cuda.mem_get_info(device)[0] / 2
