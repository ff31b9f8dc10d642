"""Decode listed images into a store: in memory, in the packed cache, or each time they are read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from supancl.data.decode import Item, map_in_order, open_image, shrunk_size, try_decode, upright_size
from supancl.data.splits import DataSpec
from supancl.data.store.cache import Cache, other_positions
from supancl.data.store.memory import ArrayImages, ImageStore, PackedImages, image_checksum, take_items
from supancl.data.store.stream import FileImages
from supancl.reporter import report_progress

if TYPE_CHECKING:
    import torch
else:
    from supancl.lazy import torch

AUTO_CACHE_BYTES = 32 * 2**20  # smaller data are decoded again in a second or two
SAMPLED_IMAGES = 64  # checked in place of all images, which would take too long
DARK_LEVEL = 16  # of 255: the brightest 12-bit value in a 16-bit file, 4095 of 65535


def store_images(
    items: Sequence[Path | Item], cache_name: str, channels: int, spec: DataSpec
) -> tuple[ImageStore, list[tuple[int, str]]]:
    """A store with the readable items in order, and (position, reason) of the unreadable ones.

    Small data are held in memory, large data in the packed cache; without a cache, large data are decoded each time.
    """
    settings = channels, spec.short_side, spec.resample
    estimate = estimate_bytes(items, channels, spec.short_side)
    if spec.cache == "always" or (spec.cache == "auto" and estimate > AUTO_CACHE_BYTES):
        return Cache(cache_name, *settings).build(items)
    in_memory = estimate <= spec.memory_gb * 1e9
    images, checksums, unreadable = [], list[int](), list[tuple[int, str]]()
    for position, image in enumerate(map_in_order(lambda item: try_decode(item, *settings), items)):
        if isinstance(image, str):
            unreadable.append((position, image))
        elif in_memory:
            images.append(image)
        else:
            checksums.append(image_checksum(image))
        report_progress("reading images", position + 1, len(items))
    if len({image.shape for image in images}) == 1:
        return ArrayImages(torch.stack(images)), unreadable
    if images:
        return PackedImages.from_images(images), unreadable
    readable = take_items(items, other_positions(len(items), unreadable)) if unreadable else items
    return FileImages(readable, *settings, np.array(checksums, np.uint32)), unreadable


def estimate_bytes(items: Sequence[Path | Item], channels: int, short_side: int | None) -> float:
    """Estimated bytes of decoded pixels, from the headers of some images."""
    sizes = []
    for i in evenly_spaced_positions(len(items)):
        try:
            height, width = shrunk_size(upright_size(items[i]), short_side)
            sizes.append(height * width)
        except Exception:  # decoding reports unreadable images later
            continue
    return channels * float(np.mean(sizes)) * len(items) if sizes else 0.0


def dark_image_remarks(store: ImageStore, items: Sequence[Path | Item]) -> list[str]:
    """A remark if files of more than 8 bits are nearly black, as unscaled 12-bit camera values in 16-bit files are.

    `items` are those of the store. 8-bit files get no remark: masks of 0 and 1 are meant to be dark.
    """
    checked = [i for i in evenly_spaced_positions(len(items)) if _has_over_8_bits(items[i])]
    if not checked or any(int(store.batch(torch.tensor([i])).pixels.max()) > DARK_LEVEL for i in checked):
        return []
    return [
        f"images of more than 8 bits that were checked: {len(checked)}, all darker than {DARK_LEVEL + 1} of 255; if "
        "they are 12-bit camera values in 16-bit files, scale them up first, by 16 for example"
    ]


def evenly_spaced_positions(count: int) -> list[int]:
    """Positions of at most SAMPLED_IMAGES images, from the first to the last."""
    positions: list[int] = np.linspace(0, count - 1, min(SAMPLED_IMAGES, count)).round().astype(int).tolist()
    return positions


def _has_over_8_bits(item: Path | Item) -> bool:
    """Whether the image's header says more than 8 bits per sample."""
    try:
        with open_image(item) as image:
            tile_modes = [tile[3] for tile in getattr(image, "tile", ())]  # 16-bit colour also has mode RGB
            return str(image.mode).startswith("I") or ";16" in str(tile_modes)
    except (OSError, ValueError):  # deleted since it was decoded
        return False
