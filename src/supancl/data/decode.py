"""Decode an image file: turn it upright, convert it to grey or RGB, shrink it."""

from __future__ import annotations

import io
import math
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import numpy as np
from PIL import Image, UnidentifiedImageError

from supancl.data.threads import ReadingThreads
from supancl.errors import plural
from supancl.files import check_regular, open_regular

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
# what Pillow may take a file for, by its content: the formats of these suffixes. It knows 35 more, and for one of them
# (EPS) it starts another program. The first five are those that Pillow's `preinit` knows
IMAGE_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP", "AVIF")
MAX_IMAGE_BYTES = 2**29 + 2**20  # 8-bit RGB of as many pixels as Pillow accepts (2**29 / 3), uncompressed, and a header
BAND_PIXELS = 2**20  # larger pictures are converted in bands of rows, so that no second copy is needed
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
    with _only_usual_errors():
        return _shrink_to_tensor(_load_upright(item, large), channels, short_side, resample)


def decode_opened(image: Image.Image, channels: int, short_side: int | None, resample: Resample) -> Tensor:
    """The same for an image that Pillow has opened or made."""
    with _only_usual_errors():
        return _shrink_to_tensor(_to_upright(image), channels, short_side, resample)


@contextmanager
def _only_usual_errors() -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, MemoryError):  # running out of memory is not the image's fault
        raise
    except Exception as error:  # Pillow may raise nearly anything on a damaged file
        raise OSError(f"{type(error).__name__}: {error}") from None


def _shrink_to_tensor(upright: Any, channels: int, short_side: int | None, resample: Resample) -> Tensor:
    image = convert_mode(upright, "L" if channels == 1 else "RGB")
    height, width = shrunk_size((image.height, image.width), short_side)
    if (width, height) != image.size:
        image = image.resize((width, height), Image.Resampling[resample.upper()])
    return _to_tensor(image, channels)


def _load_upright(item: Item | Path, large: list[str] | None) -> Any:
    """The image upright and in 8 bits. It is a function so that a deep image is freed before its colours are made."""
    with open_image(item) as file:
        if large is not None and file.width * file.height > (Image.MAX_IMAGE_PIXELS or math.inf):
            large.append(f"{item} ({file.width} x {file.height})")
        return _to_upright(file)


def _to_upright(file: Any) -> Any:
    file.load()
    # of other formats older versions of Pillow give 16 bits this mode; an image made in memory has no format
    if file.mode == "I" and file.format in ("TIFF", None):
        raise ValueError("holds signed or 32-bit pixels, whose range is not known; save it with 8 or 16 bits")
    image = apply_orientation(file)
    return _scale_to_8_bits(image, _white_level(file), _has_inverted_grey(file)) if image.mode in DEEP_MODES else image


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


DEEP_MODES = ("I;16", "I;16L", "I;16B", "I;16N", "I")  # of more than 8 bits per pixel
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


def convert_mode(image: Any, mode: str) -> Any:
    """Convert any mode of 8 bits to grey or RGB; transparency is laid over white."""
    if image.mode == "F":
        raise ValueError("holds floating-point pixels, whose range is not known; save it with 8 or 16 bits")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == mode else image.convert(mode)  # convert would copy it


def _scale_to_8_bits(image: Any, white_level: int, is_inverted: bool) -> Any:
    """0..white_level -> 0..255; Pillow would clip everything above 255 to white."""
    scaled = np.empty((image.height, image.width), np.uint8)
    for rows, band in _bands(image):
        deep = np.asarray(band).astype(np.int64)
        if is_inverted:
            deep = (white_level - deep) % 2**16
        scaled[rows] = (deep.clip(0, white_level) / (white_level / 255)).round().astype(np.uint8)
    return Image.fromarray(scaled)


def _to_tensor(image: Any, channels: int) -> Tensor:
    """The pixels of a grey or RGB image as uint8 (C, H, W)."""
    if image.width * image.height <= BAND_PIXELS:
        array = np.array(image, dtype=np.uint8)
        return torch.from_numpy(array)[None] if channels == 1 else torch.from_numpy(array).permute(2, 0, 1).contiguous()
    pixels = np.empty((channels, image.height, image.width), np.uint8)
    for rows, band in _bands(image):
        array = np.asarray(band, dtype=np.uint8)
        pixels[:, rows] = array if channels == 1 else array.transpose(2, 0, 1)
    return torch.from_numpy(pixels)


def _bands(image: Any) -> Iterator[tuple[slice, Any]]:
    """(rows, those rows of the image) of about BAND_PIXELS: numpy's copy of a whole Pillow image takes it twice."""
    height = max(1, BAND_PIXELS // image.width)
    for top in range(0, image.height, height):
        bottom = min(top + height, image.height)
        yield slice(top, bottom), image.crop((0, top, image.width, bottom))


def image_problem(error: OSError | ValueError) -> str:
    """Why an image cannot be read, without its path."""
    message = str(getattr(error, "strerror", None) or str(error) or type(error).__name__)
    if "cannot identify image file" in message:
        return "no known image format"
    return "the file is truncated" if "truncated" in message.lower() else message


def open_image(item: Item | Path) -> Any:
    image = open_image_file(item) if isinstance(item, Path) else item.open()
    if image.format == "TIFF":
        # with a name, Pillow maps uncompressed files using the sides of the turned image, which scrambles pixels
        image.filename = ""
    return image


def open_image_file(path: Path | str) -> Any:
    """Open an image file of one of IMAGE_FORMATS. Raises OSError or ValueError for anything else."""
    check_image_bytes(check_regular(path).st_size)
    return _open_with_pillow(path)


def open_image_bytes(content: bytes) -> Any:
    """Open an image in memory, of one of IMAGE_FORMATS."""
    return _open_with_pillow(io.BytesIO(content))


def _open_with_pillow(file: Path | str | io.BytesIO) -> Any:
    Image.preinit()  # else Pillow imports every format it knows
    try:
        return Image.open(file, formats=IMAGE_FORMATS)
    except UnidentifiedImageError:
        if not _is_heif(file):
            raise
    _register_heif()
    return Image.open(file, formats=("HEIF",))


HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")


def _is_heif(file: Path | str | io.BytesIO) -> bool:
    """Whether a file says in its first bytes that it is HEIC or HEIF."""
    if isinstance(file, io.BytesIO):
        start = file.getvalue()[:12]
    else:
        with open_regular(file) as opened:
            start = opened.read(12)
    return start[4:8] == b"ftyp" and start[8:12] in HEIF_BRANDS


@cache
def _register_heif() -> None:
    """Let Pillow read HEIF. Raises ValueError if pillow-heif is missing."""
    try:
        import pillow_heif
    except ImportError:
        raise ValueError("HEIC needs pillow-heif: pip install 'supancl[heic]'") from None
    pillow_heif.register_heif_opener()


def check_image_bytes(length: int) -> None:
    """Refuse a file before it is read: some of Pillow's readers take all of it into memory."""
    if length > MAX_IMAGE_BYTES:
        raise ValueError(f"has {length:,} bytes, an image may have {MAX_IMAGE_BYTES:,}; store it smaller or compressed")


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


def map_in_order(function: Callable[[T], R], inputs: Iterable[T], ahead: int = 4) -> Generator[R]:
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
