"""Thumbnails for pages: many small images on a few WebP sheets, and arrays as base64; sprites.js reads both."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from supancl.data.splits import Split
from supancl.reporter import report_progress

SHEET_SIDE = 2048  # pixels: a browser decodes a sheet in one piece
SIDES = {2_000: 96, 10_000: 64, 20_000: 48}  # up to so many images -> side of a thumbnail
SMALLEST_SIDE = 32
QUALITIES = (95, 85, 75, 60, 45, 30, 15, 5)  # of WebP, tried in turn until a sheet is small enough
IMAGES_AT_A_TIME = 256
BYTES_PER_IMAGE = 490  # of a whole page: less than 25 MB for 50,000 images
USUAL_BYTES = 6e6  # a page of few images may have these
MIN_THUMBNAIL_BYTES = 60  # per image, however little room the rest leaves


class Sprites(NamedTuple):
    """Thumbnails of images in order: the side of a tile, tiles per row of a sheet, WebP files, and (width, height)."""

    side: int
    columns: int
    sheets: list[bytes]
    sizes: np.ndarray[Any, Any]

    def to_page(self) -> dict[str, Any]:
        """What sprites.js reads."""
        return {
            "side": self.side,
            "columns": self.columns,
            "sheets": [base64.b64encode(sheet).decode() for sheet in self.sheets],
            "sizes": pack_array(self.sizes.astype(np.uint8)),
        }


def pack_array(values: np.ndarray[Any, Any]) -> dict[str, str]:
    """An array as base64, for unpackArray of sprites.js; numbers as text would take three times the space."""
    little_endian = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False)
    return {"dtype": values.dtype.name, "base64": base64.b64encode(little_endian.tobytes()).decode()}


def thumbnail_bytes(count: int, rest: Any) -> float:
    """Bytes for a thumbnail, so that a page with `count` images is at most 6 MB, or of many 500 per image."""
    room = max(USUAL_BYTES, BYTES_PER_IMAGE * count) - _text_bytes(rest)
    return max(MIN_THUMBNAIL_BYTES, 0.75 * room / count)  # base64 makes four bytes of three


def _text_bytes(value: Any) -> int:
    """About how many bytes a value takes in the page."""
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogateescape")) + 3
    if isinstance(value, dict):
        return sum(_text_bytes(item) for item in value.values())
    return sum(map(_text_bytes, value)) if isinstance(value, list) else 8


def draw_sprites(splits: Sequence[Split], bytes_per_image: float, side: int | None = None) -> Sprites:
    """Thumbnails of every image of the splits, one split after the other.

    A sheet that needs more than `bytes_per_image` is compressed more. Small images are not enlarged.
    """
    count = sum(map(len, splits))
    side = side or next((size for most, size in SIDES.items() if count <= most), SMALLEST_SIDE)
    columns = SHEET_SIDE // side
    sheets: list[bytes] = []
    sizes = np.zeros((count, 2), np.uint8)
    quality = 0  # position in QUALITIES; the next sheet begins where the last one ended
    thumbnails = iter_thumbnails(splits, side)
    for start in range(0, count, columns * columns):
        tiles = list(islice(thumbnails, columns * columns))
        for position, tile in enumerate(tiles):
            sizes[start + position] = tile.size
        sheet = _paste(tiles, side, columns)
        content = _encode(sheet, QUALITIES[quality])
        while len(content) > bytes_per_image * len(tiles) and quality < len(QUALITIES) - 1:
            quality += 1
            content = _encode(sheet, QUALITIES[quality])
        sheets.append(content)
        report_progress("thumbnails", start + len(tiles), count)
    return Sprites(side, columns, sheets, sizes)


def iter_thumbnails(splits: Iterable[Split], side: int) -> Iterator[Image.Image]:
    """Each image in RGB, reduced to fit into a square of this side."""
    for split in splits:
        for start in range(0, len(split), IMAGES_AT_A_TIME):
            batch = split.batch(torch.arange(start, min(start + IMAGES_AT_A_TIME, len(split))))
            for row in range(len(batch.pixels)):
                image = to_image(batch.image(row))
                scale = side / max(image.size)
                if scale < 1:
                    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
                    image = image.resize(size, Image.Resampling.LANCZOS)
                yield image


def to_image(pixels: Tensor) -> Image.Image:
    """uint8 pixels (C, H, W) as an RGB image; of more than three channels the first three."""
    array = pixels[:3].cpu().permute(1, 2, 0).numpy()
    return Image.fromarray(np.ascontiguousarray(array[..., 0] if array.shape[2] < 3 else array)).convert("RGB")


def _paste(tiles: Sequence[Image.Image], side: int, columns: int) -> Image.Image:
    rows = -(-len(tiles) // columns)
    sheet = Image.new("RGB", (columns * side if rows > 1 else len(tiles) * side, rows * side), "#808080")
    for position, tile in enumerate(tiles):
        sheet.paste(tile, (position % columns * side, position // columns * side))
    return sheet


def _encode(sheet: Image.Image, quality: int) -> bytes:
    file = io.BytesIO()
    sheet.save(file, "WEBP", quality=quality, method=4)
    return file.getvalue()
