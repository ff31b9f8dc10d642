"""Files that a source lists more than once: rows of a table, names in VOC's lists, images of joined sources."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from supancl.data.columns import SPLITS, Columns, TablePaths
from supancl.errors import plural


class FileHash:
    """Turns a path into a number: the same for every path to a file through folders or links to them."""

    def __init__(self) -> None:
        self.folders: dict[str, str] = {}  # a folder as written -> without links; resolving every file takes too long

    def __call__(self, path: str) -> int:
        folder, slash, name = path.rpartition("/")
        resolved = self.folders.get(folder)
        if resolved is None:
            resolved = self.folders[folder] = os.path.realpath(folder or slash or ".")
        return hash(f"{resolved}/{name}")


def hash_files(paths: Sequence[str]) -> np.ndarray:
    """The number of each file (int64); two files have the same one by chance in 1 of 10^19 pairs."""
    return np.fromiter(map(FileHash(), paths), np.int64, len(paths))


def _hash_items(items: Sequence[Any]) -> np.ndarray:
    """The same for any images: members of tars are equal by their shard and name, images in memory never."""
    file_hash = FileHash()
    if isinstance(items, TablePaths):
        return np.fromiter(map(file_hash, items.iter_written()), np.int64, len(items))
    hashes = (file_hash(str(item)) if isinstance(item, Path) else hash(item) for item in items)
    return np.fromiter(hashes, np.int64, len(items))


def repeated_file_remarks(listed_in: str, entries: Columns) -> tuple[str, ...]:
    """A remark on files that are listed more than once, and on those of them that are in two splits."""
    hashes = _hash_items(entries.items)
    order = np.argsort(hashes, kind="stable")
    ascending = hashes[order]
    starts = np.flatnonzero(np.concatenate([[True], ascending[1:] != ascending[:-1]]))  # of each file's rows
    if len(starts) == len(order):
        return ()
    del ascending
    first_rows, splits = order[starts], entries.splits[order]
    first_splits, last_splits = np.minimum.reduceat(splits, starts), np.maximum.reduceat(splits, starts)
    repeated = first_rows[np.diff(starts, append=len(order)) > 1]
    remark = (
        f"{listed_in}: {plural(len(repeated), 'file is', 'files are')} listed more than once, such as "
        f"{entries.items[int(repeated.min())]}"
    )
    divided = np.flatnonzero(first_splits != last_splits)
    if len(divided):
        example = divided[first_rows[divided].argmin()]
        remark += (
            f"; {plural(len(divided), 'file is', 'files are')} in two splits, such as "
            f"{entries.items[int(first_rows[example])]} in {SPLITS[first_splits[example]]} and "
            f"{SPLITS[last_splits[example]]}"
        )
    return (f"{remark}; a file that is both trained on and held out makes evaluation meaningless",)
