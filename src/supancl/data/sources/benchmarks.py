"""Benchmark data sets by name: open them, check that they are whole, say where to get them.

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
from supancl.errors import BadInput, counted, nearest

if TYPE_CHECKING:
    import torch
else:
    from supancl.lazy import torch

__all__ = [
    "ALIASES", "BENCHMARKS", "Benchmark", "Check", "CheckRow", "Place", "benchmark", "check_benchmark",
    "find_benchmark", "find_images", "in_class_order", "official_name", "present_benchmarks", "where_text",
]  # fmt: skip


def benchmark(name: str) -> Benchmark:
    """The row of that name."""
    return BENCHMARKS[official_name(name)]


def official_name(name: str) -> str:
    """The name in the table; `flowers` and `gtsrb`, say, have longer ones there."""
    name = ALIASES.get(name, name)
    if name not in BENCHMARKS:
        raise BadInput(f"no benchmark {name!r}{nearest(name, BENCHMARKS)} (one of your own: --plugin FILE)")
    return name


# --- finding ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """The data set's folder, and the reader of the layout it has there: of files or of arrays."""

    folder: Path
    files: FileReader | None = None
    arrays: ArrayReader | None = None


def find_benchmark(name: str, root: Path | str) -> Place:
    """Where the data set lies: in a folder of one of its names below ROOT, else in ROOT itself."""
    name, root = official_name(name), Path(root)
    row = BENCHMARKS[name]
    if not root.is_dir():
        raise BadInput(f"{name}: no folder {str(root)!r}; give the one with the data, see: supancl data where {name}")
    for folder in (*(root / below for below in row.folders), root):
        for mark in (*row.files, *row.arrays):
            if (folder / mark).is_dir() if mark.endswith("/") else (folder / mark).is_file():
                return Place(folder, row.files.get(mark), row.arrays.get(mark))
    marks = " or ".join((*row.files, *row.arrays))
    raise BadInput(
        f"{name}: not in {root} (looked for {marks} there and in {', '.join(row.folders)} below it); "
        f"see: supancl data where {name}"
    )


def present_benchmarks(root: Path | str, use: Use) -> tuple[str, ...]:
    """The data sets for that use that lie in ROOT, whole or not, in the order of the table."""

    def there(name: str) -> bool:
        try:
            return bool(find_benchmark(name, root))
        except BadInput:
            return False

    if not Path(root).is_dir():
        raise BadInput(f"no folder {str(root)!r}; give the one that holds the data sets' folders")
    return tuple(name for name, row in BENCHMARKS.items() if use in row.uses and there(name))


# --- opening ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Opening:
    """What is being opened, and how strict to be about it."""

    name: str
    row: Benchmark
    use: Use
    folder: Path
    partial: bool
    remarks: list[str]

    def object_to(self, fault: str) -> None:
        """Refuse the data, or remark that they are used all the same."""
        if not self.partial:
            raise BadInput(
                f"{self.name}: {fault} ({self.folder}); see: supancl data check {self.name} --root {self.folder}"
            )
        self.remarks.append(f"{self.name} is not whole, so figures on it compare with no published ones: {fault}")

    def final_splits(self, official: Sequence[str], labels: Sequence[str]) -> np.ndarray:
        """The split of each image, once their numbers are right."""
        final = assign_splits(self.name, self.row, np.array(official), np.array(labels), self.use)
        wrong = [check for check in _rows(self.row, self.use, final, labels) if not check.ok]
        if wrong:
            self.object_to(", ".join(f"{check.found:,} {check.what} where {check.wanted} belong" for check in wrong))
        return final


def find_images(
    name: str, root: Path | str, channels: int, use: Use | None = None, partial: bool = False
) -> Source | Listing:
    """The images of a data set with the splits of the paper; see `supancl.data.opening.open_benchmark`."""
    name = official_name(name)
    row, place = BENCHMARKS[name], find_benchmark(name, root)
    use = row.uses[0] if use is None else use
    if use not in row.uses:
        raise BadInput(f"{name} is for {' and '.join(row.uses)}, not for {use}; give it as a folder instead of by name")
    opening = _Opening(name, row, use, place.folder, partial, list(row.remarks))
    if place.arrays is not None:
        return _from_arrays(opening, place.arrays(place.folder, channels))
    assert place.files is not None
    entries = _present(opening, place.files(place.folder))
    final = opening.final_splits([split for split, _, _ in entries], [label for _, _, label in entries])
    filed = [(split, path, label) for split, (_, path, label) in zip(final.tolist(), entries, strict=True)]
    known_as = f"{name}@{place.folder.resolve()}"  # not the spec's name: a suite opens many data sets with one spec
    return Listing(filed, place.folder, tuple(opening.remarks), cache_name=known_as)


def _present(opening: _Opening, listing: OfficialList) -> list[Entry]:
    """The entries whose files are there."""
    entries = _sorted(listing)
    lost = _missing(entries)
    missing = [*listing.absent, *(_below(opening.folder, path) for path in lost)]
    if missing:
        opening.object_to(f"{missing[0]}{f' and {len(missing) - 1} more' if len(missing) > 1 else ''} missing")
        entries = [entry for entry in entries if entry[1] not in lost]
    if not entries:
        raise BadInput(f"{opening.name}: no image of it in {opening.folder}; see: supancl data where {opening.name}")
    return entries


def _from_arrays(opening: _Opening, source: Source) -> Source:
    final = opening.final_splits(*_splits_and_labels(source))
    splits: dict[str, Split] = {}
    start = 0
    for split in source.splits.values():
        names = final[start : start + len(split)]
        start += len(split)
        for name in sorted(set(names.tolist())):
            splits[name] = split.take(torch.from_numpy(np.flatnonzero(names == name)))
    return replace(source, splits=splits, remarks=(*source.remarks, *opening.remarks))


def _splits_and_labels(source: Source) -> tuple[list[str], list[str]]:
    """Official split and class name of each image of an array source; without a label the name is empty."""
    official = [name for name, split in source.splits.items() for _ in range(len(split))]
    names = (*source.classes, "")  # -1 is the last
    return official, [names[label] for split in source.splits.values() for label in split.labels.tolist()]


def in_class_order(source: Source, name: str) -> Source:
    """Labels in the data set's own class order, where it has one."""
    row = benchmark(name)
    if not row.class_order:
        return source
    classes = tuple(name for name in row.class_order if name in source.classes)
    ids = torch.tensor([classes.index(name) for name in source.classes])
    splits = {name: split.relabelled(ids) for name, split in source.splits.items()}
    return replace(source, splits=splits, classes=classes)


def _sorted(listing: OfficialList) -> list[Entry]:
    """In the order of the file names, on which drawn splits depend; each file once."""
    entries = sorted(listing.entries, key=lambda entry: entry[1].as_posix())
    for one, other in pairwise(entries):
        if one[1] == other[1]:
            raise BadInput(
                f"{one[1]}: listed twice, for {one[0]} and for {other[0]}; these are not the official split "
                "files, so download and unpack them again"
            )
    return entries


def _missing(entries: list[Entry]) -> dict[Path, None]:
    """The listed files that are not there, in order."""
    return {path: None for _, path, _ in entries if not path.is_file()}


def _below(folder: Path, path: Path) -> str:
    return path.relative_to(folder).as_posix()


# --- checking ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckRow:
    """How many there are of something, and how many there should be."""

    what: str
    found: int
    wanted: str
    ok: bool


@dataclass(frozen=True)
class Check:
    """What is in a folder, set beside what belongs there."""

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
        for what, things in (("missing", self.missing), ("superfluous", self.superfluous)):
            lines += [f"  {what}: {thing}" for thing in things[:10]]
            lines += [f"  {what}: {len(things) - 10:,} more"] if len(things) > 10 else []
        lines += [f"  note: {remark}" for remark in self.remarks]
        return (*lines, "whole" if self.ok else f"not whole; see: supancl data where {self.name}")


def check_benchmark(name: str, root: Path | str) -> Check:
    """Count images per split and classes, and name the files that are listed and not there; nothing is decoded."""
    name = official_name(name)
    row, place = BENCHMARKS[name], find_benchmark(name, root)
    missing: list[str] = []
    if place.arrays is not None:
        official, labels = _splits_and_labels(place.arrays(place.folder, 3))
        there = np.ones(len(labels), dtype=bool)
    else:
        assert place.files is not None
        listing = place.files(place.folder)
        entries = _sorted(listing)
        lost = _missing(entries)
        missing = [*listing.absent, *(_below(place.folder, path) for path in lost)]
        there = np.array([path not in lost for _, path, _ in entries], dtype=bool)
        official, labels = [split for split, _, _ in entries], [label for _, _, label in entries]
    found = [label for label, here in zip(labels, there, strict=True) if here]
    superfluous = [*_surplus_classes(row, labels)]
    rows: list[CheckRow] = []
    for use in row.uses:
        final = (
            assign_splits(name, row, np.array(official), np.array(labels), use) if labels else np.array([], dtype=str)
        )
        rows += [one for one in _rows(row, use, final[there], found) if one not in rows]
        for split, label, count, (low, high) in _class_sizes(row, final[there], found):
            if 0 < count < low:  # a class without an image is missing as a whole
                missing.append(f"{split}/{label}/: {counted(low - count, 'image', form=',')} or more")
            elif count > high:
                superfluous.append(f"{split}/{label}/: {counted(count - high, 'image', form=',')}")
    return Check(name, place.folder, tuple(rows), tuple(missing), tuple(superfluous), row.remarks)


def _rows(row: Benchmark, use: Use, final: np.ndarray, labels: Sequence[str]) -> list[CheckRow]:
    counts = Counter(final.tolist())
    rows = []
    if use == "few-shot":
        rows.append(CheckRow("few-shot images", len(final), f"{row.images:,}", len(final) == row.images))
    elif row.class_sizes:
        unfit = {split for split, _, count, (low, high) in _class_sizes(row, final, labels) if not low <= count <= high}
        for split, (low, high) in row.class_sizes.items():
            wanted = f"{row.classes} x {low:,}" + (f" to {high:,}" if high > low else "")
            rows.append(CheckRow(f"{split} images", counts[split], wanted, split not in unfit))
    else:
        for split, size in zip(("train", "val", "test"), row.split or (), strict=True):
            rows.append(CheckRow(f"{split} images", counts[split], f"{size:,}", counts[split] == size))
    classes = len(set(labels))
    return [*rows, CheckRow("classes", classes, f"{row.classes:,}", classes == row.classes)]


def _class_sizes(
    row: Benchmark, final: np.ndarray, labels: Sequence[str]
) -> list[tuple[str, str, int, tuple[int, int]]]:
    """(split, class, images found, fewest and most wanted), where the row has such bounds."""
    counts = Counter(zip(final.tolist(), labels, strict=True))
    return [
        (split, label, counts[split, label], bounds)
        for split, bounds in row.class_sizes.items()
        for label in row.class_order
    ]


def _surplus_classes(row: Benchmark, labels: Sequence[str]) -> tuple[str, ...]:
    """Where there are too many classes, those with the fewest images: what crept in is mostly small."""
    counts = Counter(labels)
    smallest = sorted(counts.items(), key=lambda item: (item[1], item[0]))[: max(len(counts) - row.classes, 0)]
    return tuple(f"a class, perhaps {label!r} ({counted(count, 'image')})" for label, count in smallest)


# --- telling ----------------------------------------------------------------------------------------------------------


def where_text(name: str) -> str:
    """What to download, and how it has to lie below ROOT."""
    name = official_name(name)
    row = BENCHMARKS[name]
    lines = [f"{name}: {row.title}, {row.classes:,} classes", *_sizes(row), "", row.where, ""]
    lines += [f"note: {remark}" for remark in row.remarks]
    return "\n".join([*lines, f"cite: {row.cite}", f"then: supancl data check {name} --root ROOT"])


def _sizes(row: Benchmark) -> list[str]:
    lines = []
    if row.pretraining and row.split:
        lines.append("for pretraining: {:,} train, {:,} val images".format(*row.split))
    elif row.split:
        metric = "top-1 accuracy" if row.metric == "top1" else "mean per-class accuracy"
        lines.append("for transfer: {:,} train, {:,} val, {:,} test images; {}".format(*row.split, metric))
    if row.images:
        lines.append(f"for few-shot: {row.images:,} images")
    return lines
