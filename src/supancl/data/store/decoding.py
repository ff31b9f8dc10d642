"""From a list of images outside memory to a source: kept in memory, in the packed cache, or decoded each time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from supancl.data.splits import DataSpec, Progress, Source, Split, absolute_source, whole
from supancl.data.store.cache import Cache
from supancl.data.store.images import (
    ArrayImages,
    FileImages,
    ImageStore,
    Item,
    PackedImages,
    about_large,
    decode,
    in_order,
    opened_image,
    shrunk,
    size_of,
    why,
)
from supancl.errors import BadInput, counted

CACHE_FROM = 256 * 2**20  # bytes of pixels; less is decoded again in seconds
LOOKED_AT = 64  # images that stand for all of them, where every one would take too long
DARK = 16  # of 255, as bright as 12 bits get in a file of 16: 4095 of 65535

Entry = tuple[str, Path | Item, str]  # split, image, class name ('': unlabelled)


def from_items(
    entries: Sequence[Entry],
    root: Path,
    channels: int,
    spec: DataSpec,
    progress: Progress | None,
    remarks: list[str],
    classes: tuple[str, ...] | None = None,
    by_number: bool = False,
) -> Source:
    """Every image decoded once; what cannot be read is refused, or listed and skipped.

    `classes` gives the label order where it is not that of the sorted names; `by_number` sorts names that are all
    numbers as numbers (2 before 10), for sources whose labels are numbers to begin with.
    """
    items = [item for _, item, _ in entries]
    store, broken = _stored(items, str(root), channels, spec, progress, remarks)
    if broken and not spec.skip_bad_images:
        position, reason = broken[0]
        more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        raise BadInput(
            f"{items[position]}: cannot be read as an image ({reason}){more}; mend or remove it, "
            "or pass --skip-bad-images to go on without"
        )
    bad = {position for position, _ in broken}
    remarks += about_dark(store, [item for position, item in enumerate(items) if position not in bad])
    skipped = sorted(str(items[position]) for position in bad)
    if bad:
        entries = [entry for position, entry in enumerate(entries) if position not in bad]
        remarks.append(
            f"{counted(len(bad), 'unreadable image was', 'unreadable images were')} skipped: " + ", ".join(skipped)
        )
    if not any(split == "train" for split, _, _ in entries):
        such = f", such as {skipped[0]}" if skipped else ""
        raise BadInput(f"{root}: no training image could be read{such}; mend the files, or what lists them")
    if classes is None:
        classes = sorted_names({label for _, _, label in entries if label}, by_number)
    ids = {name: i for i, name in enumerate(classes)} | {"": -1}
    labels = torch.tensor([ids[label] for _, _, label in entries])
    every = whole(store, labels, [str(item) for _, item, _ in entries])
    of_split = np.array([split for split, _, _ in entries])
    splits: dict[str, Split] = {
        name: every.take(torch.from_numpy(np.flatnonzero(of_split == name)))
        for name in ("train", "val", "test")
        if (of_split == name).any()
    }
    return Source(splits, classes, tuple(remarks), tuple(skipped), [item for _, item, _ in entries])


def about_dark(store: ImageStore, items: Sequence[Path | Item]) -> list[str]:
    """A remark where images are nearly black, as 12 bits of a camera are in a file of 16, which does not say so.

    `items` are those of the store. Of files of 8 bits nothing is said: masks of 0 and 1 are as they should be.
    """
    looked = _spread(len(items))
    if not any(_deep(items[i]) for i in looked):
        return []
    if any(int(store.batch(torch.tensor([i])).pixels.max()) > DARK for i in looked):
        return []
    return [
        f"none of {counted(len(looked), 'image')} looked at has a pixel above {DARK} of 255: 12 bits of a camera "
        "in 16-bit files? Scale them up first, such as by 16"
    ]


def _spread(count: int) -> list[int]:
    """Positions of the images to look at, from the first to the last."""
    found: list[int] = np.linspace(0, count - 1, min(LOOKED_AT, count)).round().astype(int).tolist()
    return found


def _deep(item: Path | Item) -> bool:
    """Whether an image has more than 8 bits a sample, by its header."""
    try:
        with opened_image(item) as opened:
            stored = [part[3] for part in getattr(opened, "tile", ())]  # colours of 16 bits have the mode RGB too
            return str(opened.mode).startswith("I") or ";16" in str(stored)
    except (OSError, ValueError):  # it has gone since it was decoded
        return False


def sorted_names(names: set[str], by_number: bool) -> tuple[str, ...]:
    if by_number and all(name.isascii() and name.isdigit() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def _stored(
    items: list[Path | Item], root: str, channels: int, spec: DataSpec, progress: Progress | None, remarks: list[str]
) -> tuple[ImageStore, list[tuple[int, str]]]:
    """Where the pixels of the readable items are, in their order, and (position, reason) of the others."""
    estimate = expected_bytes(items, channels, spec.short_side)
    if spec.cache == "always" or (spec.cache == "auto" and estimate > CACHE_FROM):
        cache = Cache(absolute_source(spec.source) or root, channels, spec.short_side, spec.resample)
        cached, broken, said = cache.build(items, progress)
        remarks += said
        return cached, broken
    keep = estimate <= 2 * spec.memory_gb * 1e9  # a guess well above it needs no trying
    images, broken = _decoded(items, channels, spec, progress, keep, remarks)
    bad = {position for position, _ in broken}
    good = [item for position, item in enumerate(items) if position not in bad]
    if images is None:
        return FileImages(good, channels, spec.short_side, spec.resample), broken
    if len({tuple(image.shape) for image in images}) == 1:
        return ArrayImages(torch.stack(images)), broken
    return PackedImages.of(images) if images else FileImages([], channels, None), broken


def expected_bytes(items: Sequence[Path | Item], channels: int, short_side: int | None) -> float:
    """How many bytes of pixels these images have, judged by the headers of some of them."""
    sizes = []
    for i in _spread(len(items)):
        try:
            height, width = shrunk(size_of(items[i]), short_side)
            sizes.append(height * width)
        except Exception:  # what cannot be read is told later, by who decodes it
            continue
    return channels * float(np.mean(sizes)) * len(items) if sizes else 0.0


def _decoded(
    items: list[Path | Item], channels: int, spec: DataSpec, progress: Progress | None, keep: bool, remarks: list[str]
) -> tuple[list[Tensor] | None, list[tuple[int, str]]]:
    """Pixels of the readable items (None once they outgrow data.memory_gb) and the others."""
    images: list[Tensor] | None = [] if keep else None
    broken: list[tuple[int, str]] = []
    large: list[str] = []
    used = 0

    def one(item: Path | Item) -> Tensor | str:
        try:
            return decode(item, channels, spec.short_side, spec.resample, large)
        except (OSError, ValueError) as error:
            return why(error)

    for done, image in enumerate(in_order(one, items), start=1):
        if isinstance(image, str):
            broken.append((done - 1, image))
        else:
            used += image.numel()
            if images is not None:
                images.append(image)
            if used > spec.memory_gb * 1e9:
                images = None
        if progress is not None:
            progress("reading images", done, len(items))
    remarks += about_large(large)
    return images, broken
