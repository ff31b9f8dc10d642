"""Pixels in memory or on disk, and how a file becomes pixels."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from supancl.errors import BadInput, counted

T = TypeVar("T")
Resample = Literal["bilinear", "bicubic"]
R = TypeVar("R")

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".jfif", ".avif"}


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


class ImageStore(Protocol):
    """Where pixels are: anything that can give the batch at these positions."""

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor) -> Batch: ...


class ArrayImages:
    """Images of one size as a tensor (N, C, H, W) of uint8, or vectors (N, D)."""

    def __init__(self, pixels: Tensor) -> None:
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.pixels)

    def batch(self, indices: Tensor) -> Batch:
        return Batch(self.pixels[indices.to(self.pixels.device)])

    def to(self, device: torch.device) -> ArrayImages:
        return ArrayImages(self.pixels.to(device))


class PackedImages:
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

    def on_canvas(self, indices: Tensor, pinned: bool) -> Batch:
        """A batch on the canvas that every image fits on, copied once; what lies beside an image has no meaning."""
        (height, width), sizes = self.canvas, self.known_sizes[indices]
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

    def to(self, device: torch.device, progress: Callable[[int, int], None] | None = None) -> PackedImages:
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
                progress(rows[-1] + 1, len(self))
        places = torch.stack([torch.zeros_like(starts), starts], dim=1)
        return PackedImages([flat], places, self.known_sizes, self.channels)


class FileImages:
    """Images neither kept nor cached: decoded each time they are asked for, by several threads."""

    def __init__(
        self, items: Sequence[Item | Path], channels: int, short_side: int | None, resample: Resample = "bilinear"
    ) -> None:
        self.items, self.channels, self.short_side, self.resample = items, channels, short_side, resample
        self.threads = ThreadPoolExecutor(max_workers=own_workers())

    def __len__(self) -> int:
        return len(self.items)

    def batch(self, indices: Tensor) -> Batch:
        chosen = [self.items[i] for i in indices.tolist()]
        return padded(list(self.threads.map(self._read, chosen)))

    def _read(self, item: Item | Path) -> Tensor:
        try:
            return decode(item, self.channels, self.short_side, self.resample)
        except (OSError, ValueError) as error:
            raise BadInput(
                f"{item}: could be read before and cannot any more ({why(error)}); bring it back, then "
                "continue with --resume"
            ) from None


MOST_WORKERS = 32


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers() -> int:
    """Threads that decode: Pillow lets go of the interpreter while it works."""
    return min(MOST_WORKERS, cores())


def own_workers() -> int:
    """Those of one rank while training: ranks of one machine, of which torchrun says how many, share its cores."""
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    ranks = int(told) if told.isdecimal() else 1
    return workers() if ranks < 2 else max(1, min(MOST_WORKERS, cores() // ranks))


def in_order(work: Callable[[T], R], things: Iterable[T], ahead: int = 4) -> Iterator[R]:
    """work(thing) for each, by several threads, in order; never more than a few results ahead of who takes them."""
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(max_workers=workers()) as threads:
        try:
            for thing in things:
                waiting.append(threads.submit(work, thing))
                if len(waiting) >= ahead * workers():
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


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


def why(error: OSError | ValueError) -> str:
    """What is wrong with an image, without its path."""
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return "no known image format" if "cannot identify image file" in said else str(said)


class Item(Protocol):
    """One image of a source that is not in memory: a file, a member of a tar, a row of somebody's data set."""

    def __str__(self) -> str:
        """A name for messages, and by which the cache knows it."""
        ...

    def stamp(self) -> tuple[int, int]:
        """Two numbers that change when the content does; OSError where it has gone."""
        ...

    def open(self) -> Any:
        """The image as Pillow opens it."""
        ...


def opened_image(item: Item | Path) -> Any:
    opened = Image.open(item) if isinstance(item, Path) else item.open()
    if opened.format == "TIFF":
        # by its name Pillow would map an uncompressed file with the sides of the turned image: pixels in disorder
        opened.filename = ""
    return opened


def stamp_of(item: Item | Path) -> tuple[int, int]:
    """Two numbers that change with the content."""
    return file_stamp(item) if isinstance(item, Path) else item.stamp()


def file_stamp(path: Path) -> tuple[int, int]:
    """Size, and the times of the last change: mtime may be set by hand (`cp -p`), ctime may not."""
    status = path.stat()
    return status.st_size, (status.st_mtime_ns * 31 + status.st_ctime_ns) % 2**63


def size_of(item: Item | Path) -> tuple[int, int]:
    """(height, width) of an upright image, from its header alone."""
    with opened_image(item) as opened:
        # of a TIFF, newer Pillows say the size of the turned image
        width, height = (opened.tag_v2[0x0100], opened.tag_v2[0x0101]) if opened.format == "TIFF" else opened.size
        turned = opened.getexif().get(0x0112) in (5, 6, 7, 8)
    return (width, height) if turned else (height, width)


def decode(
    item: Item | Path,
    channels: int = 3,
    short_side: int | None = None,
    resample: Resample = "bilinear",
    large: list[str] | None = None,
) -> Tensor:
    """One image as uint8 (C, H, W): upright, in RGB or grey, its short side brought down to `short_side`.

    One with so many pixels that Pillow warns of it is noted in `large`; of twice as many, Pillow refuses it.
    Raises OSError or ValueError for what is not a readable image.
    """
    try:
        with opened_image(item) as opened:
            if large is not None and opened.width * opened.height > (Image.MAX_IMAGE_PIXELS or math.inf):
                large.append(f"{item} ({opened.width} x {opened.height})")
            opened.load()
            if opened.mode == "I" and opened.format == "TIFF":
                raise ValueError("holds signed or 32-bit pixels, whose range is not known; save it with 8 or 16 bits")
            image, white = upright(opened), _white(opened)
            if _white_is_zero(opened):
                image = Image.fromarray(white - np.asarray(image).astype(np.uint16))
            image = to_mode(image, "L" if channels == 1 else "RGB", white)
        height, width = shrunk((image.height, image.width), short_side)
        if (width, height) != image.size:
            image = image.resize((width, height), Image.Resampling[resample.upper()])
        array = np.array(image, dtype=np.uint8)
    except (OSError, ValueError, MemoryError):  # want of memory says nothing about the image
        raise
    except Exception as error:  # a damaged file can make Pillow's decoders raise nearly anything
        raise OSError(f"{type(error).__name__}: {error}") from None
    return torch.from_numpy(array)[None] if channels == 1 else torch.from_numpy(array).permute(2, 0, 1).contiguous()


def _white(opened: Any) -> int:
    """The whole range of a deep image: of a TIFF with 12 bits a sample Pillow gives the bits as they are.

    What else a file may say is no range: TIFF's MaxSampleValue is a statistic that must not change what is seen, and
    a PNG with fewer significant bits (sBIT) holds them scaled to all 16.
    """
    return 4095 if opened.format == "TIFF" and opened.tag_v2.get(0x0102) == (12,) else 65535


def _white_is_zero(opened: Any) -> bool:
    """A TIFF may store white as 0; Pillow turns that round for 8 bits and not for 16."""
    return bool(opened.format == "TIFF" and opened.mode.startswith("I;16") and opened.tag_v2.get(0x0106) == 0)


def about_large(large: Sequence[str]) -> list[str]:
    """A remark on images that `decode` noted, in place of Pillow's warning, which does not name them."""
    if not large:
        return []
    shown, more = sorted(large)[:3], f" and {len(large) - 3} more" if len(large) > 3 else ""
    have, them = counted(len(large), "image has", "images have"), "it" if len(large) == 1 else "them"
    return [
        f"{have} more than {Image.MAX_IMAGE_PIXELS or 0:,} pixels, which take long to decode; "
        f"store {them} smaller: {', '.join(shown)}{more}"
    ]


def shrunk(size: tuple[int, int], short_side: int | None) -> tuple[int, int]:
    """(height, width) with the short side brought down to `short_side`, never up, as torchvision's Resize has it."""
    if short_side is None or min(size) <= short_side:
        return size
    return short_side * size[0] // min(size), short_side * size[1] // min(size)


# EXIF orientation -> what turns the stored pixels upright
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def upright(image: Any) -> Any:
    """Turned as its EXIF orientation says; Pillow's exif_transpose also rewrites other fields and fails on odd ones."""
    turn = TURNS.get(image.getexif().get(0x0112))
    return image if turn is None else image.transpose(turn)


def to_mode(image: Any, mode: str, white: int = 65535) -> Any:
    """Grey or RGB from whatever a file holds: 16 bit scaled to 8, transparency laid over white, CMYK and palettes."""
    if image.mode in ("I;16", "I;16L", "I;16B", "I;16N", "I"):
        deep = np.asarray(image).astype(np.int64)
        # a 16-bit file: 0..65535 -> 0..255; Pillow's own conversion would clip everything above 255 to white
        image = Image.fromarray((deep.clip(0, white) / (white / 255)).round().astype(np.uint8))
    elif image.mode == "F":
        raise ValueError("holds floating-point pixels, whose range is not known; save it with 8 or 16 bits")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert(mode)
