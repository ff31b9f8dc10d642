"""Decode an image file: turn it upright, convert it to grey or RGB, shrink it."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import numpy as np
from PIL import Image

from supancl.data.threads import ReadingThreads
from supancl.errors import plural

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

T = TypeVar("T")
R = TypeVar("R")
Resample = Literal["bilinear", "bicubic"]

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".jfif", ".avif"}
MAX_THREADS = 32
DECODE_VERSION = 3  # 1 scrambled rotated TIFFs; 2 made 12-bit TIFFs nearly black


class Item(Protocol):
    """One image that is not in memory: a file, a member of a tar, a row of another library's data set."""

    def __str__(self) -> str:
        """Its name in messages and in the cache."""
        ...

    def stamp(self) -> tuple[int, int]:
        """Two numbers that change with the content. Raises OSError if the file is gone."""
        ...

    def open(self) -> Any:
        """The image as Pillow opens it."""
        ...


def decode(
    item: Item | Path,
    channels: int = 3,
    short_side: int | None = None,
    resample: Resample = "bilinear",
    large: list[str] | None = None,
) -> Tensor:
    """One image as uint8 (C, H, W): upright, in RGB or grey, its short side shrunk to `short_side`.

    Images with so many pixels that Pillow warns are noted in `large`; Pillow refuses twice as many.
    Raises OSError or ValueError if the image cannot be read.
    """
    try:
        with open_image(item) as file:
            if large is not None and file.width * file.height > (Image.MAX_IMAGE_PIXELS or math.inf):
                large.append(f"{item} ({file.width} x {file.height})")
            file.load()
            if file.mode == "I" and file.format == "TIFF":
                raise ValueError("holds signed or 32-bit pixels, whose range is not known; save it with 8 or 16 bits")
            image, white_level = apply_orientation(file), _white_level(file)
            if _has_inverted_grey(file):
                image = Image.fromarray(white_level - np.asarray(image).astype(np.uint16))
            image = convert_mode(image, "L" if channels == 1 else "RGB", white_level)
        height, width = shrunk_size((image.height, image.width), short_side)
        if (width, height) != image.size:
            image = image.resize((width, height), Image.Resampling[resample.upper()])
        array = np.array(image, dtype=np.uint8)
    except (OSError, ValueError, MemoryError):  # running out of memory is not the image's fault
        raise
    except Exception as error:  # Pillow may raise nearly anything on a damaged file
        raise OSError(f"{type(error).__name__}: {error}") from None
    return torch.from_numpy(array)[None] if channels == 1 else torch.from_numpy(array).permute(2, 0, 1).contiguous()


def try_decode(
    item: Item | Path, channels: int, short_side: int | None, resample: Resample, large: list[str] | None = None
) -> Tensor | str:
    """The decoded image, or the reason why it cannot be read."""
    try:
        return decode(item, channels, short_side, resample, large)
    except (OSError, ValueError) as error:
        return image_problem(error)


def _white_level(file: Any) -> int:
    """The value of white in an image of more than 8 bits: Pillow does not scale 12-bit TIFFs.

    Other fields say nothing about white: TIFF's MaxSampleValue is a statistic, and a PNG with fewer significant bits
    (sBIT) stores them scaled to 16.
    """
    return 4095 if file.format == "TIFF" and file.tag_v2.get(0x0102) == (12,) else 65535


def _has_inverted_grey(file: Any) -> bool:
    """Whether a TIFF stores white as 0; Pillow inverts that for 8 bits, not for 16."""
    return bool(file.format == "TIFF" and file.mode.startswith("I;16") and file.tag_v2.get(0x0106) == 0)


def large_image_remarks(large: Sequence[str]) -> list[str]:
    """A remark that names the images that `decode` noted; Pillow's warning does not."""
    if not large:
        return []
    examples, others = sorted(large)[:3], f" and {len(large) - 3} more" if len(large) > 3 else ""
    images_have, pronoun = plural(len(large), "image has", "images have"), "it" if len(large) == 1 else "them"
    return [
        f"{images_have} more than {Image.MAX_IMAGE_PIXELS or 0:,} pixels and take long to decode; "
        f"store {pronoun} smaller: {', '.join(examples)}{others}"
    ]


def shrunk_size(size: tuple[int, int], short_side: int | None) -> tuple[int, int]:
    """(height, width) with the short side shrunk to `short_side`, never enlarged, as torchvision's Resize does."""
    if short_side is None or min(size) <= short_side:
        return size
    return short_side * size[0] // min(size), short_side * size[1] // min(size)


ORIENTATION = 0x0112  # the EXIF field
# its value -> what turns the stored pixels upright
TRANSPOSE_BY_ORIENTATION = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def apply_orientation(image: Any) -> Any:
    """The image turned upright. Pillow's exif_transpose also rewrites other EXIF fields and fails on odd ones."""
    transpose = TRANSPOSE_BY_ORIENTATION.get(image.getexif().get(ORIENTATION))
    return image if transpose is None else image.transpose(transpose)


def convert_mode(image: Any, mode: str, white_level: int = 65535) -> Any:
    """Convert any mode to grey or RGB: 16 bits are scaled to 8, transparency is laid over white."""
    if image.mode in ("I;16", "I;16L", "I;16B", "I;16N", "I"):
        deep = np.asarray(image).astype(np.int64)
        # 0..65535 -> 0..255; Pillow would clip everything above 255 to white
        image = Image.fromarray((deep.clip(0, white_level) / (white_level / 255)).round().astype(np.uint8))
    elif image.mode == "F":
        raise ValueError("holds floating-point pixels, whose range is not known; save it with 8 or 16 bits")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert(mode)


def image_problem(error: OSError | ValueError) -> str:
    """Why an image cannot be read, without its path."""
    message = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return "no known image format" if "cannot identify image file" in message else str(message)


def open_image(item: Item | Path) -> Any:
    image = Image.open(item) if isinstance(item, Path) else item.open()
    if image.format == "TIFF":
        # with a name, Pillow maps uncompressed files using the sides of the turned image, which scrambles pixels
        image.filename = ""
    return image


def item_stamp(item: Item | Path) -> tuple[int, int]:
    """Two numbers that change with an item's content."""
    return file_stamp(item) if isinstance(item, Path) else item.stamp()


def file_stamp(path: Path) -> tuple[int, int]:
    """Size, and a number made of mtime and ctime: mtime can be set by hand (`cp -p`), ctime cannot."""
    status = path.stat()
    return status.st_size, (status.st_mtime_ns * 31 + status.st_ctime_ns) % 2**63


def upright_size(item: Item | Path) -> tuple[int, int]:
    """(height, width) of the image turned upright, from its header alone."""
    with open_image(item) as file:
        # for a TIFF, newer versions of Pillow give the size of the turned image
        width, height = (file.tag_v2[0x0100], file.tag_v2[0x0101]) if file.format == "TIFF" else file.size
        swaps_sides = _is_sideways(file)
    return (width, height) if swaps_sides else (height, width)


def is_sideways(item: Item | Path) -> bool:
    """Whether an image's EXIF orientation swaps its height and width."""
    with open_image(item) as file:
        return _is_sideways(file)


def _is_sideways(file: Any) -> bool:
    return file.getexif().get(ORIENTATION) in (5, 6, 7, 8)


# --- threads ----------------------------------------------------------------------------------------------------------


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def decode_threads() -> int:
    """Number of threads that decode; Pillow releases the GIL."""
    return min(MAX_THREADS, available_cores())


def decode_threads_per_rank() -> int:
    """Decoding threads of one rank: the ranks of one machine share its cores."""
    local_world_size = os.environ.get("LOCAL_WORLD_SIZE", "")
    ranks = int(local_world_size) if local_world_size.isdecimal() else 1
    return decode_threads() if ranks < 2 else max(1, min(MAX_THREADS, available_cores() // ranks))


def map_in_order(function: Callable[[T], R], inputs: Iterable[T], ahead: int = 4) -> Iterator[R]:
    """function(item) for each input, in order, by several threads that stay at most a few results ahead."""
    pending: deque[Future[R]] = deque()
    with ReadingThreads(decode_threads(), "decode") as executor:
        try:
            for item in inputs:
                pending.append(executor.submit(function, item))
                if len(pending) >= ahead * decode_threads():
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
