"""A list of images as columns: what millions of tuples, paths and names would need gigabytes for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

SPLITS = ("train", "val", "test")


class TablePaths(Sequence[Path]):
    """Paths in a folder, as a column of a table has them: `values`, or those of these `rows`."""

    def __init__(self, folder: Path, values: pa.Array, rows: np.ndarray | None = None) -> None:
        self.folder, self.values, self.rows = folder, values, rows
        self.prefix = str(folder / "_")[:-1]

    def __len__(self) -> int:
        return len(self.values) if self.rows is None else len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        return self.folder / self.text(index)

    def text(self, index: int) -> str:
        """The path as it was written."""
        return str(self.values[int(index if self.rows is None else self.rows[index])])

    def name(self, index: int) -> str:
        """str() of the path, without making the path where its text needs no normalizing."""
        text = self.text(index)
        is_plain = "/." not in text and "//" not in text and text[0] not in "./" and text[-1] != "/"
        return self.prefix + text if is_plain and os.sep == "/" else str(self[index])

    def find_empty(self) -> int | None:
        """The first row without a path."""
        from pyarrow import compute

        is_empty = compute.equal(self.values, "").to_numpy(zero_copy_only=False)
        is_empty = is_empty if self.rows is None else is_empty[self.rows]
        return int(is_empty.argmax()) if is_empty.any() else None

    def iter_written(self) -> Iterator[str]:
        """The folder and the path as it was written, of every path: as `os.path.join` joins them, not normalized."""
        for index in range(len(self)):
            text = self.text(index)
            yield text if text[0] == "/" else self.prefix + text


class TakenItems(Sequence[Any]):
    """Some items of a sequence, by their positions."""

    def __init__(self, items: Sequence[Any], positions: np.ndarray) -> None:
        self.items, self.positions = items, positions

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self.items[position] for position in self.positions[index].tolist()]
        return self.items[int(self.positions[index])]


class ItemNames(Sequence[str]):
    """The names of items for messages, made when they are asked for."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return list(map(str, self.items[index]))
        return self.items.name(index) if isinstance(self.items, TablePaths) else str(self.items[index])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


class Columns(Sequence[tuple[str, Any, str]]):
    """Entries (split, image, class name) as a column each; split and class are numbers with names."""

    def __init__(
        self, items: Sequence[Any], splits: np.ndarray, labels: np.ndarray, label_names: Sequence[str]
    ) -> None:
        self.items, self.splits, self.labels, self.label_names = items, splits, labels, label_names

    def __len__(self) -> int:
        return len(self.splits)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        return SPLITS[self.splits[index]], self.items[index], self.label_names[self.labels[index]]

    @staticmethod
    def from_entries(entries: Sequence[tuple[str, Any, str]]) -> Columns:
        """The same entries as columns; they are returned unchanged if they are columns already."""
        if isinstance(entries, Columns):
            return entries
        numbers: dict[str, int] = {}
        labels = np.array([numbers.setdefault(label, len(numbers)) for _, _, label in entries], np.int32)
        splits = np.array([SPLITS.index(split) for split, _, _ in entries], np.uint8)
        return Columns([item for _, item, _ in entries], splits, labels, list(numbers))

    def has_split(self, name: str) -> bool:
        return bool((self.splits == SPLITS.index(name)).any())

    def positions_of(self, name: str) -> np.ndarray:
        """Where the images of a split are."""
        return np.flatnonzero(self.splits == SPLITS.index(name))

    def take(self, positions: np.ndarray) -> Columns:
        items = TakenItems(self.items, positions)
        return Columns(items, self.splits[positions], self.labels[positions], self.label_names)

    def used_names(self) -> set[str]:
        """The names of classes that have an image; '' is no class."""
        return {self.label_names[number] for number in np.unique(self.labels).tolist()} - {""}

    def class_numbers(self, classes: Sequence[str]) -> np.ndarray:
        """The number of each image's class in `classes`; -1 if it is unlabelled."""
        numbers = {name: number for number, name in enumerate(classes)} | {"": -1}
        used = np.unique(self.labels).tolist()
        table = np.full(len(self.label_names), -1, np.int64)
        table[used] = [numbers[self.label_names[number]] for number in used]
        class_numbers: np.ndarray = table[self.labels]
        return class_numbers
