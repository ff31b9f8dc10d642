"""A list of images as columns: what millions of tuples, paths and names would need gigabytes for."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

SPLITS = ("train", "val", "test")


class PathColumn(Sequence[Path]):
    """Paths in a folder. Their texts are in one block of bytes; a Path is made when it is asked for."""

    def __init__(self, folder: Path, texts: bytes | bytearray, ends: np.ndarray) -> None:
        self.folder, self.texts, self.ends = folder, texts, ends
        self.prefix = str(folder / "_")[:-1]

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        return self.folder / self.text(index)

    def text(self, index: int) -> str:
        """The path as it was written."""
        position = range(len(self))[index]
        start = int(self.ends[position - 1]) if position else 0
        return self.texts[start : int(self.ends[position])].decode("utf-8", "surrogateescape")

    def name(self, index: int) -> str:
        """str() of the path, without making the path where its text needs no normalizing."""
        text = self.text(index)
        is_plain = "/." not in text and "//" not in text and text[0] not in "./" and text[-1] != "/"
        return self.prefix + text if is_plain and os.sep == "/" else str(self[index])

    def iter_written(self) -> Iterator[str]:
        """The folder and the path as it was written, of every path: as `os.path.join` joins them, not normalized."""
        start = 0
        for end in self.ends.data:  # one number at a time, not a list of millions
            text = self.texts[start:end].decode("utf-8", "surrogateescape")
            yield text if text[0] == "/" else self.prefix + text
            start = end


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
        return self.items.name(index) if isinstance(self.items, PathColumn) else str(self.items[index])

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

    class Builder:
        """Collects entries whose images are files in one folder."""

        def __init__(self, folder: Path) -> None:
            self.folder, self.texts, self.ends = folder, bytearray(), array("q")
            self.splits, self.labels, self.numbers = bytearray(), array("i"), dict[str, int]()

        def number_label(self, name: str) -> int:
            return self.numbers.setdefault(name, len(self.numbers))

        def add(self, split: int, text: str, label: int) -> None:
            """Add the image at path `text`, with the numbers of its split in SPLITS and of its label."""
            self.texts += text.encode("utf-8", "surrogateescape")
            self.ends.append(len(self.texts))
            self.splits.append(split)
            self.labels.append(label)

        def build(self) -> Columns:
            paths = PathColumn(self.folder, self.texts, np.frombuffer(self.ends, np.int64))
            splits, labels = np.frombuffer(self.splits, np.uint8), np.frombuffer(self.labels, np.int32)
            return Columns(paths, splits, labels, list(self.numbers))
