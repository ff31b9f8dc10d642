"""Describe a source: images by class and split, sizes, unreadable files, memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from supancl.data.decode import image_problem, map_in_order, shrunk_size, upright_size
from supancl.data.labels import describe_labels
from supancl.data.opening import SKIPPED
from supancl.data.splits import DataSpec, Source, Split
from supancl.data.store.building import AUTO_CACHE_BYTES
from supancl.errors import BadInput
from supancl.reporter import report_progress

if TYPE_CHECKING:
    import torch
else:
    from supancl.lazy import torch


def describe_source(source: Source, spec: DataSpec, channels: int, sizes: np.ndarray) -> dict[str, Any]:
    """Counts by split and class, sizes as stored (from `image_sizes`), bytes of decoded pixels."""
    splits: dict[str, dict[str, Any]] = {}
    for name, split in source.splits.items():
        splits[name] = {"images": len(split), "labelled": split.num_labelled, "classes": len(split.class_ids())}
        if not split.all_labels.has_one_each:
            splits[name]["labels_per_image"] = describe_labels(split.all_labels)
    short_side = spec.short_side if source.items else None  # arrays are not shrunk
    decoded = np.array([shrunk_size((int(h), int(w)), short_side) for h, w in sizes], np.int64).reshape(-1, 2)
    # unreadable images have their own entry
    remarks = [remark for remark in source.remarks if not remark.startswith(SKIPPED)]
    in_memory = sum(split.store.nbytes for split in source.splits.values())
    levels = {"levels": np.bincount(source.levels).tolist()} if source.levels else {}
    nbytes = channels * int(decoded.prod(1).sum()) if source.items else in_memory
    return {
        "source": spec.source,
        "splits": splits,
        "classes": len(source.classes),
        **levels,
        "histogram": histogram(source),
        "sizes": summarize_sizes(sizes),
        "short_side": short_side,
        "bytes": nbytes,
        "kept": "in the packed cache" if source.items and nbytes > AUTO_CACHE_BYTES else "in memory",
        "unreadable": dict(source.skipped),
        "empty_class_folders": list(source.empty_folders),
        "remarks": remarks,
    }


def histogram(source: Source) -> dict[str, dict[str, int]]:
    """class -> split -> number of images, in label order, unlabelled images last."""
    counts, unlabelled = {}, {}
    for name, split in source.splits.items():
        counts[name] = split.all_labels.counts(len(source.classes)).tolist()
        unlabelled[name] = len(split) - split.num_labelled
    counts_by_class = {
        class_name: {name: counts[name][label] for name in counts} for label, class_name in enumerate(source.classes)
    }
    return counts_by_class | ({"(unlabelled)": unlabelled} if any(unlabelled.values()) else {})


def image_sizes(source: Source) -> np.ndarray:
    """(N, 2): height and width of every image as stored, read from file headers."""

    def read_size(item: Any) -> tuple[int, int]:
        try:
            return upright_size(item)
        except (OSError, ValueError) as error:
            raise _no_longer_readable(item, error) from None

    if source.items:
        sizes = []
        for done, size in enumerate(map_in_order(read_size, source.items), start=1):
            sizes.append(size)
            report_progress("reading sizes", done, len(source.items))
        return np.array(sizes, np.int64).reshape(-1, 2)
    return np.concatenate([_array_sizes(split) for split in source.splits.values()])


def _no_longer_readable(item: object, error: OSError | ValueError) -> BadInput:
    return BadInput(f"{item}: was readable before, now it is not ({image_problem(error)}); restore it and try again")


def _array_sizes(split: Split) -> np.ndarray:
    pixels = split.batch(torch.arange(len(split))[:1]).pixels
    height, width = pixels.shape[-2:] if pixels.ndim == 4 else (1, pixels.shape[-1])
    return np.tile([[height, width]], (len(split), 1))


def summarize_sizes(sizes: np.ndarray) -> dict[str, list[int]]:
    """[smallest, median, largest] of heights, widths and short sides."""

    def min_median_max(values: np.ndarray) -> list[int]:
        return [int(values.min()), int(np.median(values)), int(values.max())]

    return {
        "height": min_median_max(sizes[:, 0]),
        "width": min_median_max(sizes[:, 1]),
        "short side": min_median_max(sizes.min(1)),
    }
