"""What is in a source: how many images of which class and size, what cannot be read, how much memory they take."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import torch

from supancl.data.decoding import CACHE_FROM
from supancl.data.images import ArrayImages, in_order, shrunk, size_of, why
from supancl.data.sources import DataSpec, Progress, Source, Split
from supancl.errors import BadInput


def described(source: Source, spec: DataSpec, channels: int, sizes: np.ndarray) -> dict[str, Any]:
    """Counts by split and class, sizes as stored (image_sizes gives them), bytes of pixels once decoded."""
    splits = {}
    for name, split in source.splits.items():
        known = split.labels[split.labels >= 0]
        splits[name] = {"images": len(split), "labelled": len(known), "classes": len(torch.unique(known))}
    side = spec.short_side if source.items else None  # arrays stay as they are
    decoded = np.array([shrunk((int(h), int(w)), side) for h, w in sizes], np.int64).reshape(-1, 2)
    # what is unreadable is listed by itself
    remarks = [remark for remark in source.remarks if "unreadable images were skipped" not in remark]
    stores = [split.store for split in source.splits.values()]
    arrays = [store.pixels for store in stores if not source.items and isinstance(store, ArrayImages)]
    nbytes = sum(each.nbytes for each in arrays) if arrays else channels * int(decoded.prod(1).sum())
    return {
        "source": spec.source, "splits": splits, "classes": len(source.classes),
        "histogram": histogram(source), "sizes": size_facts(sizes), "short_side": side,
        "bytes": nbytes, "kept": "in the packed cache" if source.items and nbytes > CACHE_FROM else "in memory",
        "unreadable": list(source.skipped), "remarks": remarks,
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
            raise BadInput(f"{item}: could be read before and cannot any more ({why(error)}); bring it back, and look "
                           "again") from None

    if source.items:
        found = []
        for done, size in enumerate(in_order(one, source.items), start=1):
            found.append(size)
            if progress is not None:
                progress("reading sizes", done, len(source.items))
        return np.array(found, np.int64).reshape(-1, 2)
    return np.concatenate([_array_sizes(split) for split in source.splits.values()])


def _array_sizes(split: Split) -> np.ndarray:
    pixels = split.store.pixels if isinstance(split.store, ArrayImages) else torch.zeros(1, 1)
    height, width = pixels.shape[-2:] if pixels.ndim == 4 else (1, pixels.shape[-1])
    return np.tile([[height, width]], (len(split), 1))


def size_facts(sizes: np.ndarray) -> dict[str, list[int]]:
    """[smallest, median, largest] of heights, widths and short sides."""
    def three(values: np.ndarray) -> list[int]:
        return [int(values.min()), int(np.median(values)), int(values.max())]

    return {"height": three(sizes[:, 0]), "width": three(sizes[:, 1]), "short side": three(sizes.min(1))}
