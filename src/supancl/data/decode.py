"""How a file becomes pixels: opened, turned upright, brought to grey or RGB and down to size."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import numpy as np
from PIL import Image

from supancl.errors import counted

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

T = TypeVar("T")
R = TypeVar("R")
Resample = Literal["bilinear", "bicubic"]

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".jfif", ".avif"}
MOST_WORKERS = 32
DECODE_VERSION = 3  # 1 gave TIFFs with an orientation as Pillow read them, in disorder; 2 such of 12 bits nearly black


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
        with open_image(item) as opened:
            if large is not None and opened.width * opened.height > (Image.MAX_IMAGE_PIXELS or math.inf):
                large.append(f"{item} ({opened.width} x {opened.height})")
            opened.load()
            if opened.mode == "I" and opened.format == "TIFF":
                raise ValueError("holds signed or 32-bit pixels, whose range is not known; save it with 8 or 16 bits")
            image, white = upright(opened), _white(opened)
            if _white_is_zero(opened):
                image = Image.fromarray(white - np.asarray(image).astype(np.uint16))
            image = to_mode(image, "L" if channels == 1 else "RGB", white)
        height, width = shrunk_size((image.height, image.width), short_side)
        if (width, height) != image.size:
            image = image.resize((width, height), Image.Resampling[resample.upper()])
        array = np.array(image, dtype=np.uint8)
    except (OSError, ValueError, MemoryError):  # want of memory says nothing about the image
        raise
    except Exception as error:  # a damaged file can make Pillow's decoders raise nearly anything
        raise OSError(f"{type(error).__name__}: {error}") from None
    return torch.from_numpy(array)[None] if channels == 1 else torch.from_numpy(array).permute(2, 0, 1).contiguous()


def decode_or_fault(
    item: Item | Path, channels: int, short_side: int | None, resample: Resample, large: list[str] | None = None
) -> Tensor | str:
    """The image, or what is wrong with it."""
    try:
        return decode(item, channels, short_side, resample, large)
    except (OSError, ValueError) as error:
        return image_fault(error)


def _white(opened: Any) -> int:
    """The whole range of a deep image: of a TIFF with 12 bits a sample Pillow gives the bits as they are.

    What else a file may say is no range: TIFF's MaxSampleValue is a statistic that must not change what is seen, and
    a PNG with fewer significant bits (sBIT) holds them scaled to all 16.
    """
    return 4095 if opened.format == "TIFF" and opened.tag_v2.get(0x0102) == (12,) else 65535


def _white_is_zero(opened: Any) -> bool:
    """A TIFF may store white as 0; Pillow turns that round for 8 bits and not for 16."""
    return bool(opened.format == "TIFF" and opened.mode.startswith("I;16") and opened.tag_v2.get(0x0106) == 0)


def remarks_on_large(large: Sequence[str]) -> list[str]:
    """A remark on images that `decode` noted, in place of Pillow's warning, which does not name them."""
    if not large:
        return []
    shown, more = sorted(large)[:3], f" and {len(large) - 3} more" if len(large) > 3 else ""
    have, them = counted(len(large), "image has", "images have"), "it" if len(large) == 1 else "them"
    return [
        f"{have} more than {Image.MAX_IMAGE_PIXELS or 0:,} pixels, which take long to decode; "
        f"store {them} smaller: {', '.join(shown)}{more}"
    ]


def shrunk_size(size: tuple[int, int], short_side: int | None) -> tuple[int, int]:
    """(height, width) with the short side brought down to `short_side`, never up, as torchvision's Resize has it."""
    if short_side is None or min(size) <= short_side:
        return size
    return short_side * size[0] // min(size), short_side * size[1] // min(size)


ORIENTATION = 0x0112  # the EXIF field
# its value -> what turns the stored pixels upright
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
    turn = TURNS.get(image.getexif().get(ORIENTATION))
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


def image_fault(error: OSError | ValueError) -> str:
    """What is wrong with an image, without its path."""
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return "no known image format" if "cannot identify image file" in said else str(said)


def open_image(item: Item | Path) -> Any:
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
    with open_image(item) as opened:
        # of a TIFF, newer Pillows say the size of the turned image
        width, height = (opened.tag_v2[0x0100], opened.tag_v2[0x0101]) if opened.format == "TIFF" else opened.size
        sideways = _is_sideways(opened)
    return (width, height) if sideways else (height, width)


def is_sideways(item: Item | Path) -> bool:
    """Whether an image's EXIF orientation swaps its height and width."""
    with open_image(item) as opened:
        return _is_sideways(opened)


def _is_sideways(opened: Any) -> bool:
    return opened.getexif().get(ORIENTATION) in (5, 6, 7, 8)


# --- threads ----------------------------------------------------------------------------------------------------------


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers() -> int:
    """Threads that decode: Pillow lets go of the interpreter while it works."""
    return min(MOST_WORKERS, cores())


def workers_per_rank() -> int:
    """Those of one rank while training: ranks of one machine, of which torchrun says how many, share its cores."""
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    ranks = int(local) if local.isdecimal() else 1
    return workers() if ranks < 2 else max(1, min(MOST_WORKERS, cores() // ranks))


def map_in_order(work: Callable[[T], R], things: Iterable[T], ahead: int = 4) -> Iterator[R]:
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
