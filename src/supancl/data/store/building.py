"""Decode listed images into a store: in memory, in the packed cache, or each time they are read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from supancl.data.decode import (
    Item,
    large_image_remarks,
    map_in_order,
    open_image,
    shrunk_size,
    try_decode,
    upright_size,
)
from supancl.data.splits import DataSpec
from supancl.data.store.cache import Cache, other_positions
from supancl.data.store.memory import ArrayImages, FileImages, ImageStore, PackedImages, TakenItems, image_checksum
from supancl.errors import plural
from supancl.reporter import report_progress, track_task

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

AUTO_CACHE_BYTES = 32 * 2**20  # smaller data are decoded again in a second or two
SAMPLED_IMAGES = 64  # checked in place of all images, which would take too long
DARK_LEVEL = 16  # of 255: the brightest 12-bit value in a 16-bit file, 4095 of 65535


def store_images(
    items: Sequence[Path | Item],
    cache_name: str,
    channels: int,
    spec: DataSpec,
    remarks: list[str],
) -> tuple[ImageStore, list[tuple[int, str]]]:
    """A store with the readable items in order, and (position, reason) of the unreadable ones.

    Small data are held in memory, large data in the packed cache; without a cache, large data are decoded each time.
    """
    estimate = estimate_bytes(items, channels, spec.short_side)
    if spec.cache == "always" or (spec.cache == "auto" and estimate > AUTO_CACHE_BYTES):
        cache = Cache(cache_name, channels, spec.short_side, spec.resample)
        cached, unreadable, cache_remarks = cache.build(items)
        remarks += cache_remarks
        return cached, unreadable
    in_memory = estimate <= 2 * spec.memory_gb * 1e9  # if the estimate is far above, do not even try
    images, unreadable, checksums_of_readable = _decode_all(items, channels, spec, in_memory, remarks)
    readable_items = TakenItems(items, other_positions(len(items), unreadable)) if unreadable else items
    if images is None:
        checksums = np.array(checksums_of_readable, np.uint32)
        return FileImages(readable_items, channels, spec.short_side, spec.resample, checksums), unreadable
    if len({tuple(image.shape) for image in images}) == 1:
        with track_task("gathering the images"):
            return ArrayImages(torch.stack(images)), unreadable
    return PackedImages.from_images(images) if images else FileImages([], channels, None), unreadable


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


def _decode_all(
    items: Sequence[Path | Item],
    channels: int,
    spec: DataSpec,
    in_memory: bool,
    remarks: list[str],
) -> tuple[list[Tensor] | None, list[tuple[int, str]], list[int]]:
    """Pixels of the readable items (None if beyond data.memory_gb), (position, reason) of the unreadable ones, and the
    checksums of the readable ones."""
    images: list[Tensor] | None = [] if in_memory else None
    checksums: list[int] = []
    unreadable: list[tuple[int, str]] = []
    large: list[str] = []
    total_bytes = 0

    decode_one = partial(try_decode, channels=channels, short_side=spec.short_side, resample=spec.resample, large=large)
    for done, image in enumerate(map_in_order(decode_one, items), start=1):
        if isinstance(image, str):
            unreadable.append((done - 1, image))
        else:
            total_bytes += image.numel()
            checksums.append(image_checksum(image))
            if images is not None:
                images.append(image)
            if total_bytes > spec.memory_gb * 1e9:
                images = None
        report_progress("reading images", done, len(items))
    remarks += large_image_remarks(large)
    return images, unreadable, checksums


def dark_image_remarks(store: ImageStore, items: Sequence[Path | Item]) -> list[str]:
    """A remark if files of more than 8 bits are nearly black, as unscaled 12-bit camera values in 16-bit files are.

    `items` are those of the store. 8-bit files get no remark: masks of 0 and 1 are meant to be dark.
    """
    checked = [i for i in evenly_spaced_positions(len(items)) if _has_over_8_bits(items[i])]
    if not checked or any(int(store.batch(torch.tensor([i])).pixels.max()) > DARK_LEVEL for i in checked):
        return []
    return [
        f"none of {plural(len(checked), 'image')} of more than 8 bits that were checked has a pixel above {DARK_LEVEL} "
        "of 255: 12-bit camera values in 16-bit files? Then scale them up first, by 16 for example"
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
