"""Benchmark data sets by name: find them, check that they are complete, say where to get them.

>>> row = benchmark("pets")
>>> row.split, row.metric, row.uses
((2940, 740, 3669), 'per_class', ('transfer',))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from supancl.data.preparing import SPLIT_SEED
from supancl.data.sources.benchmark_rows import ALIASES, BENCHMARKS, Benchmark, Use
from supancl.data.splits import OFFICIAL_SPLITS, SPLITS, Source, list_entries
from supancl.data.store.memory import take_items
from supancl.errors import BadInput, did_you_mean

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch


def benchmark(name: str) -> Benchmark:
    """The benchmark with this name or alias."""
    return BENCHMARKS[official_name(name)]


def official_name(name: str) -> str:
    """The name in BENCHMARKS; resolves aliases such as `flowers` and `gtsrb`."""
    name = ALIASES.get(name, name)
    if name not in BENCHMARKS:
        raise BadInput(f"no benchmark {name!r}{did_you_mean(name, BENCHMARKS)} (register your own in a --plugin FILE)")
    return name


def is_benchmark(source: str) -> bool:
    """Whether a source is NAME@ROOT of a benchmark."""
    name, separator, _ = source.partition("@")
    return bool(separator) and (name in BENCHMARKS or name in ALIASES)


def find_benchmark(name: str, root: Path | str) -> tuple[Path, str]:
    """The data set's folder, one of its names below ROOT or ROOT itself, and what identifies its layout there."""
    if found := _find(benchmark(name), Path(root)):
        return found
    raise BadInput(f"{name}: not in {root}; see: supancl data check {name}")


def _find(row: Benchmark, root: Path) -> tuple[Path, str] | None:
    folders = (*(root / name for name in row.folders), root)
    places = ((folder, marker) for folder in folders for marker in (*row.files, *row.arrays))
    return next(((folder, marker) for folder, marker in places if (folder / marker).exists()), None)


def find_benchmarks(root: Path | str, use: Use) -> tuple[str, ...]:
    """The benchmarks for this use that lie in ROOT, complete or not, in the order of BENCHMARKS."""
    if not Path(root).is_dir():
        raise BadInput(f"no folder {str(root)!r}; give the folder that has the data sets in it")
    return tuple(name for name, row in BENCHMARKS.items() if use in row.uses and _find(row, Path(root)))


def choose_benchmarks(root: Path | str, names: Sequence[str], present: Sequence[str]) -> Sequence[str]:
    """The data sets of these names, or all that are present; refuses one that is not."""
    chosen = [official_name(name) for name in names] or present
    if missing := [name for name in chosen or ("NAME",) if name not in present]:
        raise BadInput(f"not in {root}: {missing[0]}; see: supancl data check {missing[0]}")
    return chosen


# --- reading ----------------------------------------------------------------------------------------------------------


def _read(name: str, root: Path | str, channels: int) -> tuple[Path, Source, np.ndarray, list[str]]:
    """The folder, the images that the official lists name, the class name of each, and the files that are not there."""
    (folder, marker), row = find_benchmark(name, root), benchmark(name)
    if marker in row.arrays:
        source, missing = row.arrays[marker](folder, channels), list[str]()
    else:
        try:  # drawn splits depend on the order
            entries = sorted(row.files[marker](folder), key=lambda entry: Path(entry[1]).as_posix())
            if len({path for _, path, _ in entries}) < len(entries) or not entries:
                raise ValueError("an image is listed twice" if entries else "they list no image")
            present = {label for _, _, label in entries}
            classes = tuple(label for label in row.class_order if label in present) or None
            source = list_entries([(split, Path(path), label) for split, path, label in entries], folder, classes)
        except Exception as error:  # scipy may raise nearly anything on a broken file, and readers on odd lines
            raise BadInput(f"{name} in {folder}: its lists are not the official ones ({error}); unpack again") from None
        exists = np.array([Path(str(path)).is_file() for path in source.items], bool)
        absent = map(str, take_items(source.items, np.flatnonzero(~exists)))
        missing = [Path(path).relative_to(folder).as_posix() for path in absent]
        source = source.take(np.flatnonzero(exists)) if missing else source
    return folder, source, np.array([*source.classes, ""])[source.labels.single], missing


def list_benchmark(name: str, root: Path | str, channels: int, use: Use | None = None, partial: bool = False) -> Source:
    """List a benchmark's images with the splits of the paper; see `supancl.data.opening.open_benchmark`."""
    name = official_name(name)
    row, (folder, source, labels, missing) = BENCHMARKS[name], _read(name, root, channels)
    use = use or row.uses[0]
    if use not in row.uses or not len(labels):
        raise BadInput(f"{name}: images for {use} in {folder}: none; it is for {' and '.join(row.uses)}")
    splits = assign_splits(name, row, np.array(OFFICIAL_SPLITS)[source.split_numbers], labels, use)
    is_complete = not missing and all(good for _, _, good in _count(row, use, splits, labels).values())
    if not is_complete and not partial:
        raise BadInput(f"{name} in {folder} is incomplete; see: supancl data check {name} --root {folder}")
    why = (f"{name} is incomplete, so its results cannot be compared with published ones",)
    return replace(
        source,
        split_numbers=np.array([SPLITS.index(split) for split in splits.tolist()], np.uint8),
        remarks=(*row.remarks, *(() if is_complete else why)),
        incomplete=not is_complete,
        cache_name=f"{name}@{folder.resolve()}",  # not spec.source: a suite opens many data sets with one spec
    )


# --- splits that the published data lack, drawn with a fixed seed, in exactly the paper's sizes ---------------------


def assign_splits(name: str, row: Benchmark, official: np.ndarray, labels: np.ndarray, use: Use) -> np.ndarray:
    """The split of each image: the official one, except that trainval (or everything, if there is none) is divided.

    Few-shot has a single split with every image, called train as in any source with a single split.
    """
    if use == "few-shot":
        return np.full(len(official), "train")
    splits = official.astype("<U8")
    ids = torch.from_numpy(np.unique(labels, return_inverse=True)[1])
    if row.per_class is not None:
        train, val = row.per_class
        if int(torch.bincount(ids).min()) <= train + val:
            raise BadInput(f"{name}: a class has too few images; it needs more than {train} + {val}")
        ranks = _rank_in_class(ids, SPLIT_SEED)
        splits = np.where(ranks < train, "train", np.where(ranks < train + val, "val", "test"))
    elif row.split is not None and (splits == "trainval").any():
        train, val, _ = row.split
        trainval = np.flatnonzero(splits == "trainval")
        count = val if len(trainval) == train + val else round(len(trainval) * val / (train + val))
        splits[trainval] = "train"
        splits[trainval[draw_exactly(ids[torch.from_numpy(trainval)], count, SPLIT_SEED).numpy()]] = "val"
    return splits


def draw_exactly(labels: Tensor, count: int, seed: int) -> Tensor:
    """Positions of `count` items, stratified by class; what rounding down leaves goes to the largest remainders.

    >>> drawn = draw_exactly(torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1]), 4, seed=0)
    >>> len(drawn), int((drawn < 6).sum())  # 2.67 and 1.33 of 4
    (4, 3)
    """
    exact_counts = torch.bincount(labels).double() * count / len(labels)
    quota = exact_counts.floor().long()
    remainder = count - int(quota.sum())
    quota[(exact_counts - quota).sort(descending=True, stable=True).indices[:remainder]] += 1
    return torch.from_numpy(np.flatnonzero(_rank_in_class(labels, seed) < quota[labels].numpy()))


def _rank_in_class(labels: Tensor, seed: int) -> np.ndarray:
    """The rank of each item in a random order of its class."""
    keys = torch.rand(len(labels), generator=torch.Generator().manual_seed(seed), dtype=torch.float64).numpy()
    order = np.lexsort((keys, labels.numpy()))
    sizes = torch.bincount(labels).numpy()
    ranks = np.empty(len(labels), dtype=np.int64)
    ranks[order] = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return ranks


# --- checking ---------------------------------------------------------------------------------------------------------


Counts = dict[str, tuple[int, str, bool]]  # of images or classes: how many there are, should be, and whether that is so


@dataclass(frozen=True)
class Check:
    """What a folder has, compared with what belongs there."""

    name: str
    folder: Path
    counts: Counts
    missing: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.missing and all(is_good for _, _, is_good in self.counts.values())

    @property
    def lines(self) -> tuple[str, ...]:
        counts = [
            f"  {what:<15} {found:>8,} of {wanted}{'' if is_good else '  <- differs'}"
            for what, (found, wanted, is_good) in self.counts.items()
        ]
        missing = f"  missing: {len(self.missing)} {', '.join(self.missing[:10])}"
        end = "complete" if self.ok else f"incomplete; see: supancl data check {self.name}"
        return (f"{self.name} in {self.folder}", *counts, missing, *(f"  note: {x}" for x in self.remarks), end)


def check_benchmark(name: str, root: Path | str) -> Check:
    """Count classes and images per split, and name missing files; nothing is decoded."""
    name = official_name(name)
    row, (folder, source, labels, missing) = BENCHMARKS[name], _read(name, root, 3)
    official, counts = np.array(OFFICIAL_SPLITS)[source.split_numbers], Counts()
    for use in row.uses:
        counts |= _count(row, use, assign_splits(name, row, official, labels, use), labels)
    return Check(name, folder, counts, tuple(missing), row.remarks)


def _count(row: Benchmark, use: Use, splits: np.ndarray, labels: np.ndarray) -> Counts:
    """Numbers of images and classes, and whether they are as they should be."""
    found, counts = len(set(labels.tolist())), Counts()
    if use == "few-shot":
        counts["few-shot images"] = (len(splits), f"{row.images:,}", len(splits) == row.images)
    for split, size in zip(SPLITS, () if use == "few-shot" else row.split or (), strict=False):
        sizes, wanted = Counter(labels[splits == split].tolist()), f"{size:,}"
        is_good = sizes.total() == size
        if row.class_sizes:  # of each class
            low, high = row.class_sizes.get(split, (0, 0))
            is_good = all(low <= sizes[label] <= high for label in row.class_order)
            wanted = f"{row.classes} x {low:,} to {high:,}"
        counts[f"{split} images"] = (sizes.total(), wanted, is_good)
    return counts | {"classes": (found, f"{row.classes:,}", found == row.classes)}


def download_instructions(name: str) -> str:
    """What to download, and how to lay it out below ROOT."""
    name = official_name(name)
    row = BENCHMARKS[name]
    lines = [f"{name}: {row.title}, {row.classes:,} classes, for {' and '.join(row.uses)}", *row.where.split("; ")]
    lines += [f"note: {remark}" for remark in row.remarks]
    return "\n".join([*lines, f"cite: {row.cite}", f"then: supancl data check {name} --root ROOT"])
