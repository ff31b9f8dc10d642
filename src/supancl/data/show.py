"""What is in a source: how many images of which class and size, what cannot be read, how much memory they take."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from supancl.data.decode import image_fault, map_in_order, shrunk_size, size_of
from supancl.data.opening import CACHE_FROM
from supancl.data.splits import DataSpec, Source, Split
from supancl.data.store.memory import Progress
from supancl.errors import BadInput
from supancl.files import digest

if TYPE_CHECKING:
    import torch
else:
    from supancl.lazy import torch


def described(source: Source, spec: DataSpec, channels: int, sizes: np.ndarray) -> dict[str, Any]:
    """Counts by split and class, sizes as stored (image_sizes gives them), bytes of pixels once decoded."""
    splits = {}
    for name, split in source.splits.items():
        known = split.labels[split.labels >= 0]
        splits[name] = {"images": len(split), "labelled": len(known), "classes": len(torch.unique(known))}
    side = spec.short_side if source.items else None  # arrays stay as they are
    decoded = np.array([shrunk_size((int(h), int(w)), side) for h, w in sizes], np.int64).reshape(-1, 2)
    # what is unreadable is listed by itself
    remarks = [remark for remark in source.remarks if not re.match(r"\d+ unreadable image", remark)]
    in_memory = sum(split.store.nbytes for split in source.splits.values())
    nbytes = channels * int(decoded.prod(1).sum()) if source.items else in_memory
    return {
        "source": spec.source,
        "splits": splits,
        "classes": len(source.classes),
        "histogram": histogram(source),
        "sizes": size_facts(sizes),
        "short_side": side,
        "bytes": nbytes,
        "kept": "in the packed cache" if source.items and nbytes > CACHE_FROM else "in memory",
        "unreadable": list(source.skipped),
        "empty_class_folders": list(source.empty),
        "remarks": remarks,
    }


def histogram(source: Source) -> dict[str, dict[str, int]]:
    """class -> split -> images, in label order; unlabelled images as their own line."""
    counts = {name: Counter(split.labels.tolist()) for name, split in source.splits.items()}
    lines = {kind: {name: counts[name].get(label, 0) for name in counts} for label, kind in enumerate(source.classes)}
    unlabelled = {name: counts[name].get(-1, 0) for name in counts}
    return lines | ({"(unlabelled)": unlabelled} if any(unlabelled.values()) else {})


def image_sizes(source: Source, progress: Progress | None = None) -> np.ndarray:
    """(N, 2) height and width of every image as it is stored, from the headers of files."""

    def one(item: Any) -> tuple[int, int]:
        try:
            return size_of(item)
        except (OSError, ValueError) as error:
            raise _gone(item, error) from None

    if source.items:
        found = []
        for done, size in enumerate(map_in_order(one, source.items), start=1):
            found.append(size)
            if progress is not None:
                progress("reading sizes", done, len(source.items))
        return np.array(found, np.int64).reshape(-1, 2)
    return np.concatenate([_array_sizes(split) for split in source.splits.values()])


def _gone(item: object, error: OSError | ValueError) -> BadInput:
    return BadInput(
        f"{item}: could be read before and cannot any more ({image_fault(error)}); bring it back, and look again"
    )


def _array_sizes(split: Split) -> np.ndarray:
    pixels = split.batch(torch.arange(len(split))[:1]).pixels
    height, width = pixels.shape[-2:] if pixels.ndim == 4 else (1, pixels.shape[-1])
    return np.tile([[height, width]], (len(split), 1))


def size_facts(sizes: np.ndarray) -> dict[str, list[int]]:
    """[smallest, median, largest] of heights, widths and short sides."""

    def three(values: np.ndarray) -> list[int]:
        return [int(values.min()), int(np.median(values)), int(values.max())]

    return {"height": three(sizes[:, 0]), "width": three(sizes[:, 1]), "short side": three(sizes.min(1))}


# --- copies -----------------------------------------------------------------------------------------------------------

NAMED = 3  # pairs of copies whose labels differ


def copies(source: Source, progress: Progress | None = None) -> dict[str, Any] | None:
    """How many files are byte-for-byte copies of one another; None for a source that does not consist of files.

    A file that a table lists twice is no copy of itself. A label that is not there contradicts no other.
    """
    files: dict[Path, int] = {}
    for row, item in enumerate(source.items):
        if not isinstance(item, Path):
            return None
        files.setdefault(item, row)
    if not files:
        return None
    labels, splits = np.full(len(source.items), -1), np.zeros(len(source.items), np.int64)
    for number, split in enumerate(source.splits.values()):
        rows = split.index.cpu().numpy()
        labels[rows], splits[rows] = split.labels.numpy(), number
    counted = {"files": 0, "images": 0, "labels_differ": 0, "in_several_splits": 0}
    examples: list[list[str]] = []
    for group in _alike(list(files), progress):
        rows = np.array([files[path] for path in group])
        counted["files"] += len(group)
        counted["images"] += 1
        counted["in_several_splits"] += len(set(splits[rows].tolist())) > 1
        of_label = {label: str(path) for label, path in zip(labels[rows].tolist(), group, strict=True) if label >= 0}
        if len(of_label) > 1:
            counted["labels_differ"] += 1
            if len(examples) < NAMED:
                examples.append([of_label[label] for label in sorted(of_label)[:2]])
    return {**counted, "examples": examples}


def _alike(paths: list[Path], progress: Progress | None) -> Iterator[list[Path]]:
    """Files of the same content. Only those of equal size are read, and the sums of one size are held at a time."""

    def nbytes(path: Path) -> int:
        try:
            return path.stat().st_size
        except OSError as error:
            raise _gone(path, error) from None

    def content(place: int) -> tuple[int, str]:
        try:
            return place, digest(paths[place])
        except OSError as error:
            raise _gone(paths[place], error) from None

    sizes = np.array(list(map_in_order(nbytes, paths)), np.int64)
    _, kind, count = np.unique(sizes, return_inverse=True, return_counts=True)
    several = np.flatnonzero(count[kind] > 1)
    several = several[np.argsort(sizes[several], kind="stable")]
    done = 0
    for _, same_size in groupby(map_in_order(content, several.tolist()), key=lambda found: sizes[found[0]]):
        by_content: dict[str, list[Path]] = {}
        for place, checksum in same_size:
            by_content.setdefault(checksum, []).append(paths[place])
            done += 1
            if progress is not None:
                progress("comparing files of equal size", done, len(several))
        yield from (group for group in by_content.values() if len(group) > 1)
