"""Benchmark data sets by name: find them, check that they are complete, say where to get them.

>>> row = benchmark("pets")
>>> row.split, row.metric, row.uses
((2940, 740, 3669), 'per_class', ('transfer',))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from supancl.data.sources.benchmark_rows import ALIASES, BENCHMARKS, Benchmark, Use
from supancl.data.sources.benchmark_splits import assign_splits
from supancl.data.sources.cifar import ArrayReader
from supancl.data.sources.layouts import Entry, FileReader, OfficialList
from supancl.data.splits import Listing, Source, Split
from supancl.errors import BadInput, did_you_mean, plural

if TYPE_CHECKING:
    import torch
else:
    from supancl.lazy import torch

__all__ = [
    "ALIASES", "BENCHMARKS", "Benchmark", "BenchmarkLocation", "Check", "CheckRow", "apply_class_order", "benchmark",
    "check_benchmark", "download_instructions", "find_benchmark", "find_benchmarks", "list_benchmark", "official_name",
]  # fmt: skip


class Incomplete(str):
    """A remark that a benchmark lacks images, so that results cannot be compared with published ones."""


def benchmark(name: str) -> Benchmark:
    """The benchmark with this name or alias."""
    return BENCHMARKS[official_name(name)]


def official_name(name: str) -> str:
    """The name in BENCHMARKS; resolves aliases such as `flowers` and `gtsrb`."""
    name = ALIASES.get(name, name)
    if name not in BENCHMARKS:
        raise BadInput(f"no benchmark {name!r}{did_you_mean(name, BENCHMARKS)} (register your own in a --plugin FILE)")
    return name


# --- finding ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BenchmarkLocation:
    """The data set's folder, and the reader of its layout there: of files or of arrays."""

    folder: Path
    files: FileReader | None = None
    arrays: ArrayReader | None = None


def find_benchmark(name: str, root: Path | str) -> BenchmarkLocation:
    """Find the data set in one of its folders below ROOT, else in ROOT itself."""
    name, root = official_name(name), Path(root)
    row = BENCHMARKS[name]
    if not root.is_dir():
        raise BadInput(
            f"{name}: no folder {str(root)!r}; give the folder with the data, see: supancl data check {name}"
        )
    for folder in (*(root / subfolder for subfolder in row.folders), root):
        for marker in (*row.files, *row.arrays):
            if (folder / marker).is_dir() if marker.endswith("/") else (folder / marker).is_file():
                return BenchmarkLocation(folder, row.files.get(marker), row.arrays.get(marker))
    markers = " or ".join((*row.files, *row.arrays))
    raise BadInput(
        f"{name}: not in {root} (looked for {markers} there and in {', '.join(row.folders)} below it); "
        f"see: supancl data check {name}"
    )


def find_benchmarks(root: Path | str, use: Use) -> tuple[str, ...]:
    """The benchmarks for this use that lie in ROOT, complete or not, in the order of BENCHMARKS."""

    def is_present(name: str) -> bool:
        try:
            return bool(find_benchmark(name, root))
        except BadInput:
            return False

    if not Path(root).is_dir():
        raise BadInput(f"no folder {str(root)!r}; give the folder that has the data sets in it")
    return tuple(name for name, row in BENCHMARKS.items() if use in row.uses and is_present(name))


# --- opening ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _OpenBenchmark:
    """The benchmark being opened, and whether incomplete data are allowed."""

    name: str
    row: Benchmark
    use: Use
    folder: Path
    partial: bool
    remarks: list[str]

    def refuse_or_remark(self, problem: str) -> None:
        """Refuse the data, or with `partial` add a remark."""
        if not self.partial:
            raise BadInput(
                f"{self.name}: {problem} ({self.folder}); see: supancl data check {self.name} --root {self.folder}"
            )
        why = f"{self.name} is incomplete, so its results cannot be compared with published ones: {problem}"
        self.remarks.append(Incomplete(why))

    def final_splits(self, official: Sequence[str], labels: Sequence[str]) -> np.ndarray:
        """The split of each image, after checking the counts."""
        splits = assign_splits(self.name, self.row, np.array(official), np.array(labels), self.use)
        failed = [check for check in _check_rows(self.row, self.use, splits, labels) if not check.ok]
        if failed:
            self.refuse_or_remark(
                ", ".join(f"{check.found:,} {check.what} where {check.wanted} belong" for check in failed)
            )
        return splits


def list_benchmark(
    name: str, root: Path | str, channels: int, use: Use | None = None, partial: bool = False
) -> Source | Listing:
    """List a benchmark's images with the splits of the paper; see `supancl.data.opening.open_benchmark`."""
    name = official_name(name)
    row, location = BENCHMARKS[name], find_benchmark(name, root)
    use = row.uses[0] if use is None else use
    if use not in row.uses:
        raise BadInput(f"{name} is for {' and '.join(row.uses)}, not for {use}; give its folder instead of its name")
    benchmark = _OpenBenchmark(name, row, use, location.folder, partial, list(row.remarks))
    if location.arrays is not None:
        return _assign_array_splits(benchmark, location.arrays(location.folder, channels))
    assert location.files is not None
    entries = _existing_entries(benchmark, location.files(location.folder))
    splits = benchmark.final_splits([split for split, _, _ in entries], [label for _, _, label in entries])
    final_entries = [(split, path, label) for split, (_, path, label) in zip(splits.tolist(), entries, strict=True)]
    cache_name = f"{name}@{location.folder.resolve()}"  # not spec.source: a suite opens many data sets with one spec
    return Listing(final_entries, location.folder, tuple(benchmark.remarks), cache_name=cache_name)


def _existing_entries(benchmark: _OpenBenchmark, listing: OfficialList) -> list[Entry]:
    """The entries whose files exist."""
    entries = _sort_entries(listing)
    missing_paths = _missing_files(entries)
    missing = [*listing.missing, *(_relative_path(benchmark.folder, path) for path in missing_paths)]
    if missing:
        benchmark.refuse_or_remark(f"{missing[0]}{f' and {len(missing) - 1} more' if len(missing) > 1 else ''} missing")
        entries = [entry for entry in entries if entry[1] not in missing_paths]
    if not entries:
        raise BadInput(f"{benchmark.name}: no images in {benchmark.folder}; see: supancl data check {benchmark.name}")
    return entries


def _assign_array_splits(benchmark: _OpenBenchmark, source: Source) -> Source:
    final_splits = benchmark.final_splits(*_splits_and_labels(source))
    splits: dict[str, Split] = {}
    start = 0
    for split in source.splits.values():
        names = final_splits[start : start + len(split)]
        start += len(split)
        for name in sorted(set(names.tolist())):
            splits[name] = split.take(torch.from_numpy(np.flatnonzero(names == name)))
    return replace(source, splits=splits, remarks=(*source.remarks, *benchmark.remarks))


def _splits_and_labels(source: Source) -> tuple[list[str], list[str]]:
    """Official split and class name ('' if unlabelled) of each image of an array source."""
    official = [name for name, split in source.splits.items() for _ in range(len(split))]
    names = (*source.classes, "")  # -1 is the last
    return official, [names[label] for split in source.splits.values() for label in split.labels.tolist()]


def apply_class_order(source: Source, name: str) -> Source:
    """Relabel the source in the benchmark's class order, if it has one."""
    row = benchmark(name)
    if not row.class_order:
        return source
    classes = tuple(name for name in row.class_order if name in source.classes)
    ids = torch.tensor([classes.index(name) for name in source.classes])
    splits = {name: split.relabelled(ids) for name, split in source.splits.items()}
    return replace(source, splits=splits, classes=classes)


def _sort_entries(listing: OfficialList) -> list[Entry]:
    """Entries sorted by file name, which drawn splits depend on; a file listed twice is refused."""
    entries = sorted(listing.entries, key=lambda entry: entry[1].as_posix())
    for entry, following in pairwise(entries):
        if entry[1] == following[1]:
            raise BadInput(
                f"{entry[1]}: listed twice, for {entry[0]} and for {following[0]}; these are not the official split "
                "files; download and unpack them again"
            )
    return entries


def _missing_files(entries: list[Entry]) -> dict[Path, None]:
    """The listed files that do not exist, in order."""
    return {path: None for _, path, _ in entries if not path.is_file()}


def _relative_path(folder: Path, path: Path) -> str:
    return path.relative_to(folder).as_posix()


# --- checking ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckRow:
    """How many images or classes there are, and how many there should be."""

    what: str
    found: int
    wanted: str
    ok: bool


@dataclass(frozen=True)
class Check:
    """What a folder has, compared with what belongs there."""

    name: str
    folder: Path
    rows: tuple[CheckRow, ...]
    missing: tuple[str, ...] = ()
    superfluous: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.missing and all(row.ok for row in self.rows)

    @property
    def lines(self) -> tuple[str, ...]:
        lines = [f"{self.name} in {self.folder}"]
        for row in self.rows:
            lines.append(f"  {row.what:<15} {row.found:>8,} of {row.wanted}{'' if row.ok else '  <- differs'}")
        for kind, entries in (("missing", self.missing), ("superfluous", self.superfluous)):
            lines += [f"  {kind}: {entry}" for entry in entries[:10]]
            lines += [f"  {kind}: {len(entries) - 10:,} more"] if len(entries) > 10 else []
        lines += [f"  note: {remark}" for remark in self.remarks]
        return (*lines, "complete" if self.ok else f"incomplete; see: supancl data check {self.name}")


def check_benchmark(name: str, root: Path | str) -> Check:
    """Count classes and images per split, and name missing files; nothing is decoded."""
    name = official_name(name)
    row, location = BENCHMARKS[name], find_benchmark(name, root)
    missing: list[str] = []
    if location.arrays is not None:
        official, labels = _splits_and_labels(location.arrays(location.folder, 3))
        exists = np.ones(len(labels), dtype=bool)
    else:
        assert location.files is not None
        listing = location.files(location.folder)
        entries = _sort_entries(listing)
        missing_paths = _missing_files(entries)
        missing = [*listing.missing, *(_relative_path(location.folder, path) for path in missing_paths)]
        exists = np.array([path not in missing_paths for _, path, _ in entries], dtype=bool)
        official, labels = [split for split, _, _ in entries], [label for _, _, label in entries]
    existing_labels = [label for label, present in zip(labels, exists, strict=True) if present]
    superfluous = [*_surplus_classes(row, labels)]
    rows: list[CheckRow] = []
    for use in row.uses:
        splits = (
            assign_splits(name, row, np.array(official), np.array(labels), use) if labels else np.array([], dtype=str)
        )
        rows += [
            check_row for check_row in _check_rows(row, use, splits[exists], existing_labels) if check_row not in rows
        ]
        for split, label, count, (low, high) in _class_sizes(row, splits[exists], existing_labels):
            if 0 < count < low:  # a class without images is reported as missing
                missing.append(f"{split}/{label}/: {plural(low - count, 'image', number_format=',')} or more")
            elif count > high:
                superfluous.append(f"{split}/{label}/: {plural(count - high, 'image', number_format=',')}")
    return Check(name, location.folder, tuple(rows), tuple(missing), tuple(superfluous), row.remarks)


def _check_rows(row: Benchmark, use: Use, splits: np.ndarray, labels: Sequence[str]) -> list[CheckRow]:
    counts = Counter(splits.tolist())
    rows = []
    if use == "few-shot":
        rows.append(CheckRow("few-shot images", len(splits), f"{row.images:,}", len(splits) == row.images))
    elif row.class_sizes:
        failing = {
            split for split, _, count, (low, high) in _class_sizes(row, splits, labels) if not low <= count <= high
        }
        for split, (low, high) in row.class_sizes.items():
            expected = f"{row.classes} x {low:,}" + (f" to {high:,}" if high > low else "")
            rows.append(CheckRow(f"{split} images", counts[split], expected, split not in failing))
    else:
        for split, size in zip(("train", "val", "test"), row.split or (), strict=True):
            rows.append(CheckRow(f"{split} images", counts[split], f"{size:,}", counts[split] == size))
    classes = len(set(labels))
    return [*rows, CheckRow("classes", classes, f"{row.classes:,}", classes == row.classes)]


def _class_sizes(
    row: Benchmark, splits: np.ndarray, labels: Sequence[str]
) -> list[tuple[str, str, int, tuple[int, int]]]:
    """(split, class, number of images, (fewest, most) expected), if the benchmark has such bounds."""
    counts = Counter(zip(splits.tolist(), labels, strict=True))
    return [
        (split, label, counts[split, label], bounds)
        for split, bounds in row.class_sizes.items()
        for label in row.class_order
    ]


def _surplus_classes(row: Benchmark, labels: Sequence[str]) -> tuple[str, ...]:
    """If there are too many classes, those with the fewest images: strays are mostly small."""
    counts = Counter(labels)
    smallest = sorted(counts.items(), key=lambda item: (item[1], item[0]))[: max(len(counts) - row.classes, 0)]
    return tuple(f"a class, perhaps {label!r} ({plural(count, 'image')})" for label, count in smallest)


# --- where to get them ------------------------------------------------------------------------------------------------


def download_instructions(name: str) -> str:
    """What to download, and how to lay it out below ROOT."""
    name = official_name(name)
    row = BENCHMARKS[name]
    lines = [f"{name}: {row.title}, {row.classes:,} classes", *_size_lines(row), "", row.where, ""]
    lines += [f"note: {remark}" for remark in row.remarks]
    return "\n".join([*lines, f"cite: {row.cite}", f"then: supancl data check {name} --root ROOT"])


def _size_lines(row: Benchmark) -> list[str]:
    lines = []
    if row.pretraining and row.split:
        lines.append("for pretraining: {:,} train, {:,} val images".format(*row.split))
    elif row.split:
        metric = "top-1 accuracy" if row.metric == "top1" else "mean per-class accuracy"
        lines.append("for transfer: {:,} train, {:,} val, {:,} test images; {}".format(*row.split, metric))
    if row.images:
        lines.append(f"for few-shot: {row.images:,} images")
    return lines
