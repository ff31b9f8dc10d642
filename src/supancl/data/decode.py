"""Decode an image file: turn it upright, convert it to grey or RGB, shrink it."""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from PIL import Image

from supancl.data.threads import ReadingThreads
from supancl.files import check_regular

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

T = TypeVar("T")
R = TypeVar("R")
Resample = Literal["bilinear", "bicubic"]

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".jfif", ".avif"}
HEIF_SUFFIXES = {".heic", ".heif"}  # of phones; read by pillow-heif, an extra
LISTED_SUFFIXES = IMAGE_SUFFIXES | HEIF_SUFFIXES
# what Pillow may take a file for, by its content: the formats of these suffixes; for EPS it starts a program
IMAGE_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP", "AVIF")
MAX_IMAGE_BYTES = 2**29 + 2**20  # 8-bit RGB of as many pixels as Pillow accepts (2**29 / 3), uncompressed, and a header
BAND_PIXELS = 2**20  # larger pictures are converted in bands of rows, so that no second copy is needed
MAX_THREADS = 32
DECODE_VERSION = 4  # part of the key of a cached image


@dataclass(frozen=True, slots=True, eq=False)
class MadeItem:
    """An image that is no file: a member of a tar, a row of another library's data set, or pixels in memory."""

    name: str
    open: Callable[[], Any]  # the image as Pillow opens it
    stamp: Callable[[], tuple[int, int]]  # changes with the content; raises OSError if the file is gone

    def __str__(self) -> str:
        return self.name


Item = Path | str | MadeItem


def decode(
    item: Item | Image.Image, channels: int = 3, short_side: int | None = None, resample: Resample = "bilinear"
) -> Tensor:
    """One image as uint8 (C, H, W): upright, in RGB or grey, its short side shrunk; raises OSError or ValueError."""
    try:
        image = convert_mode(_load_upright(item), "L" if channels == 1 else "RGB")
        height, width = shrunk_size((image.height, image.width), short_side)
        if (width, height) != image.size:
            image = image.resize((width, height), Image.Resampling[resample.upper()])
        pixels = np.empty((channels, height, width), np.uint8)
        for rows, band in _bands(image):
            array = np.asarray(band, dtype=np.uint8)
            pixels[:, rows] = array if channels == 1 else array.transpose(2, 0, 1)
        return torch.from_numpy(pixels)
    except (OSError, ValueError, MemoryError):  # running out of memory is not the image's fault
        raise
    except Exception as error:  # Pillow may raise nearly anything on a damaged file
        raise OSError(f"{type(error).__name__}: {error}") from None


def _load_upright(item: Item | Image.Image) -> Any:
    """The image upright and in 8 bits. It is a function so that a deep image is freed before its colours are made."""
    opened: Any = nullcontext(item) if isinstance(item, Image.Image) else open_image(item)
    with opened as file:
        file.load()
        tags = file.tag_v2 if file.format == "TIFF" else {}
        is_odd = file.mode.startswith("I;16") and (tags.get(0x0102) == (12,) or tags.get(0x0106) == 0)
        # of other formats older versions of Pillow give 16 bits the mode I; an image made in memory has no format
        if is_odd or (file.mode == "I" and file.format in ("TIFF", None)):
            raise ValueError("holds signed, 12-bit, 32-bit or inverted pixels; save it with 8 or 16 bits")
        transpose = TRANSPOSE_BY_ORIENTATION.get(file.getexif().get(ORIENTATION))
        image = file if transpose is None else file.transpose(transpose)
        if image.mode not in DEEP_MODES:
            return image
        scaled = np.empty((image.height, image.width), np.uint8)
        for rows, band in _bands(image):
            scaled[rows] = (np.asarray(band).astype(np.int64).clip(0, 65535) / 257).round().astype(np.uint8)
        return Image.fromarray(scaled)


def try_decode(
    item: Item | Image.Image, channels: int = 3, short_side: int | None = None, resample: Resample = "bilinear"
) -> Tensor | str:
    """The decoded image, or the reason why it cannot be read, without its path."""
    try:
        return decode(item, channels, short_side, resample)
    except (OSError, ValueError) as error:
        message = str(getattr(error, "strerror", None) or str(error) or type(error).__name__)
        return "no known image format" if "cannot identify image file" in message else message


def shrunk_size(size: tuple[int, int], short_side: int | None) -> tuple[int, int]:
    """(height, width) with the short side shrunk to `short_side`, never enlarged, as torchvision's Resize does."""
    if short_side is None or min(size) <= short_side:
        return size
    return short_side * size[0] // min(size), short_side * size[1] // min(size)


DEEP_MODES = ("I;16", "I;16L", "I;16B", "I;16N", "I")  # of more than 8 bits per pixel
ORIENTATION = 0x0112  # the EXIF field
TURN = Image.Transpose
# its value -> what turns the stored pixels upright
TRANSPOSE_BY_ORIENTATION = {
    2: TURN.FLIP_LEFT_RIGHT, 3: TURN.ROTATE_180, 4: TURN.FLIP_TOP_BOTTOM, 5: TURN.TRANSPOSE, 6: TURN.ROTATE_270,
    7: TURN.TRANSVERSE, 8: TURN.ROTATE_90,
}  # fmt: skip


def convert_mode(image: Any, mode: str) -> Any:
    """Convert any mode of 8 bits to grey or RGB; transparency is laid over white."""
    if image.mode == "F":
        raise ValueError("holds floating-point pixels, whose range is not known; save it with 8 or 16 bits")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == mode else image.convert(mode)  # convert would copy it


def _bands(image: Any) -> Iterator[tuple[slice, Any]]:
    """(rows, those rows of the image) of about BAND_PIXELS: numpy's copy of a whole Pillow image takes it twice."""
    height = max(1, BAND_PIXELS // image.width)
    for top in range(0, image.height, height):
        bottom = min(top + height, image.height)
        yield slice(top, bottom), image.crop((0, top, image.width, bottom))


def open_image(item: Item) -> Any:
    if str(item).lower().endswith(tuple(HEIF_SUFFIXES)) and "HEIF" not in _formats():
        raise ValueError("HEIC needs pillow-heif: pip install 'supancl[heic]'")
    image = item.open() if isinstance(item, MadeItem) else open_image_file(item)
    # with a name, Pillow maps uncompressed TIFFs using the sides of the turned image, which scrambles pixels
    image.filename = ""
    return image


def open_image_file(path: Path | str) -> Any:
    """Open an image file of one of IMAGE_FORMATS. Raises OSError or ValueError for anything else."""
    check_image_bytes(check_regular(path).st_size)
    return Image.open(path, formats=_formats())


def open_image_bytes(content: bytes) -> Any:
    """Open an image in memory, of one of IMAGE_FORMATS."""
    return Image.open(io.BytesIO(content), formats=_formats())


@cache
def _formats() -> tuple[str, ...]:
    """What Pillow may take a file for; with pillow-heif also HEIF, the format of phones."""
    Image.preinit()  # else Pillow imports every format it knows
    try:
        import pillow_heif
    except ImportError:
        return IMAGE_FORMATS
    pillow_heif.register_heif_opener()
    return (*IMAGE_FORMATS, "HEIF")


def check_image_bytes(length: int) -> None:
    """Refuse a file before it is read: some of Pillow's readers take all of it into memory."""
    if length > MAX_IMAGE_BYTES:
        raise ValueError(f"has {length:,} bytes, an image may have {MAX_IMAGE_BYTES:,}; store it smaller or compressed")


def file_stamp(path: Path | str) -> tuple[int, int]:
    """Size, and a number made of mtime and ctime: mtime can be set by hand (`cp -p`), ctime cannot."""
    status = os.stat(path)
    return status.st_size, (status.st_mtime_ns * 31 + status.st_ctime_ns) % 2**63


def upright_size(item: Item) -> tuple[int, int]:
    """(height, width) of the image turned upright, from its header alone."""
    with open_image(item) as file:
        # for a TIFF, newer versions of Pillow give the size of the turned image
        width, height = (file.tag_v2[0x0100], file.tag_v2[0x0101]) if file.format == "TIFF" else file.size
        return (width, height) if file.getexif().get(ORIENTATION) in (5, 6, 7, 8) else (height, width)


def has_over_8_bits(item: Item) -> bool:
    """Whether the image's header says more than 8 bits per sample."""
    try:
        with open_image(item) as image:
            tile_modes = [tile[3] for tile in getattr(image, "tile", ())]  # 16-bit colour also has mode RGB
            return str(image.mode).startswith("I") or ";16" in str(tile_modes)
    except (OSError, ValueError):  # deleted since it was decoded
        return False


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def decode_threads(ranks: int = 1) -> int:
    """Number of threads that decode, where so many ranks share a machine; Pillow releases the GIL."""
    return max(1, min(MAX_THREADS, available_cores() // ranks))


def map_in_order(function: Callable[[T], R], inputs: Iterable[T], ahead: int = 4) -> Generator[R]:
    """function(item) for each input, in order, by several threads that stay at most a few results ahead."""
    pending: deque[Future[R]] = deque()
    threads = decode_threads()
    with ReadingThreads(threads, "decode") as executor:
        for item in inputs:
            pending.append(executor.submit(function, item))
            if len(pending) >= ahead * threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
