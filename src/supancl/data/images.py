"""Pixels in memory or on disk, and how a file becomes pixels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from supancl.errors import BadInput

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".jfif", ".avif"}


class Batch(NamedTuple):
    """Pixels (B, C, H, W) as uint8, and each image's own (height, width) where smaller ones were padded.

    Toy data are vectors (B, D) of floats.
    """

    pixels: Tensor
    sizes: Tensor | None = None

    def to(self, device: torch.device) -> Batch:
        sizes = None if self.sizes is None else self.sizes.to(device, non_blocking=True)
        return Batch(self.pixels.to(device, non_blocking=True), sizes)


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


class RaggedImages:
    """Images of differing sizes, decoded once and kept."""

    def __init__(self, images: Sequence[Tensor]) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: Tensor) -> Batch:
        return padded([self.images[i] for i in indices.tolist()])


class FileImages:
    """Images too many to keep: decoded each time they are asked for, by several threads."""

    def __init__(self, paths: Sequence[Path], channels: int, short_side: int | None) -> None:
        self.paths, self.channels, self.short_side = paths, channels, short_side
        self.threads = ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1))

    def __len__(self) -> int:
        return len(self.paths)

    def batch(self, indices: Tensor) -> Batch:
        chosen = [self.paths[i] for i in indices.tolist()]
        return padded(list(self.threads.map(self._read, chosen)))

    def _read(self, path: Path) -> Tensor:
        try:
            return decode(path, self.channels, self.short_side)
        except (OSError, ValueError) as error:
            raise BadInput(f"{path}: could be read before and cannot any more ({why(error)}); bring it back, then "
                           "continue with --resume") from None


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


def decode(path: Path, channels: int = 3, short_side: int | None = None) -> Tensor:
    """One file as uint8 (C, H, W): upright, in RGB or grey, its short side brought down to `short_side`.

    Raises OSError or ValueError for what is not a readable image.
    """
    try:
        with Image.open(path) as opened:
            opened.load()
            image = to_mode(upright(opened), "L" if channels == 1 else "RGB")
    except (OSError, ValueError):
        raise
    except Exception as error:  # a damaged file can make Pillow's decoders raise nearly anything
        raise OSError(f"{type(error).__name__}: {error}") from None
    if short_side is not None and min(image.size) > short_side:
        scale = short_side / min(image.size)
        size = max(short_side, round(image.width * scale)), max(short_side, round(image.height * scale))
        image = image.resize(size, Image.Resampling.BILINEAR)
    array = np.array(image, dtype=np.uint8)
    return torch.from_numpy(array)[None] if channels == 1 else torch.from_numpy(array).permute(2, 0, 1).contiguous()


# EXIF orientation -> what turns the stored pixels upright
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def upright(image: Any) -> Any:
    """Turned as its EXIF orientation says; Pillow's exif_transpose also rewrites other fields and fails on odd ones."""
    turn = TURNS.get(image.getexif().get(0x0112))
    return image if turn is None else image.transpose(turn)


def to_mode(image: Any, mode: str) -> Any:
    """Grey or RGB from whatever a file holds: 16 bit scaled to 8, transparency laid over white, CMYK and palettes."""
    if image.mode in ("I;16", "I;16L", "I;16B", "I;16N", "I"):
        deep = np.asarray(image).astype(np.int64)
        # a 16-bit file: 0..65535 -> 0..255; Pillow's own conversion would clip everything above 255 to white
        image = Image.fromarray((deep.clip(0, 65535) / 257).round().astype(np.uint8))
    elif image.mode == "F":
        raise ValueError("holds floating-point pixels, whose range is not known; save it with 8 or 16 bits")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert(mode)
