"""Files that are in two splits of a source: rows of a table, folders that are links, images of joined sources."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from supancl.data.columns import Columns, TablePaths


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
    """A remark on files that are in two splits."""
    if len(np.unique(entries.splits)) < 2:
        return ()
    hashes = _hash_items(entries.items)
    order = np.argsort(hashes, kind="stable")
    ascending, splits = hashes[order], entries.splits[order]
    starts = np.flatnonzero(np.concatenate([[True], ascending[1:] != ascending[:-1]]))  # of each file's rows
    divided = order[starts[np.minimum.reduceat(splits, starts) != np.maximum.reduceat(splits, starts)]]
    if not len(divided):
        return ()
    return (f"{listed_in}: files in two splits: {len(divided)}, such as {entries.items[int(divided.min())]}",)
