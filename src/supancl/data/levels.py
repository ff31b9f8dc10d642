"""A hierarchy of classes, such as animal and cat: data with one label per image, of a level or of the leaves."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from supancl.data.hierarchy import SEPARATOR
from supancl.data.splits import Data, Source, Split

if TYPE_CHECKING:
    import torch
else:
    from supancl.lazy import torch

D = TypeVar("D", Data, Source)
T = TypeVar("T")


class Level(NamedTuple):
    """Classes of a hierarchy of which an image has at most one: those of one level, or the leaves.

    `numbers` has for every class of the hierarchy its place in `classes`, or -1.
    """

    numbers: tuple[int, ...]
    classes: tuple[str, ...]

    def take_labels(self, split: Split) -> Split:
        """The split with the labels that are among these classes, numbered as in `classes`."""
        if split.pairs is None and not len(split):
            return split
        assert split.pairs is not None
        numbers = torch.tensor((*self.numbers, -1))  # the last is that of no class, -1
        return replace(split, labels=numbers[split.pairs[..., 0].long()].amax(1), pairs=None)

    def take(self, data: D) -> D:
        """The data with the labels that are among these classes."""
        return replace(data.map_splits(self.take_labels), classes=self.classes, levels=())


def list_levels(data: Data | Source) -> list[Level]:
    """The levels, the coarsest first; none if classes are no hierarchy."""
    names = list(zip(data.classes, data.levels, strict=False))  # without a hierarchy there are no levels
    return [_select(data, [name for name, level in names if level == number]) for number in sorted(set(data.levels))]


def find_leaves(data: Data | Source) -> Level:
    """The classes of a hierarchy that have no class below them."""
    parents = {name.rpartition(SEPARATOR)[0] for name in data.classes}
    return _select(data, [name for name in data.classes if name not in parents])


def take_each_level(data: Data | Source, take: Callable[[Level], T]) -> tuple[T, tuple[T | None, ...]]:
    """What `take` makes of the leaves, and of each level, the coarsest first; None for a level that is the leaves."""
    leaves = find_leaves(data)
    return take(leaves), tuple(None if level == leaves else take(level) for level in list_levels(data))


def _select(data: Data | Source, names: Collection[str]) -> Level:
    place = {name: i for i, name in enumerate(names)}
    return Level(tuple(place.get(name, -1) for name in data.classes), tuple(names))


def with_leaf_labels(data: D) -> D:
    """The data; of a hierarchy with one label per image, its leaf: none if it is labelled more coarsely."""
    return find_leaves(data).take(data) if data.levels else data


def with_given_labels(data: D) -> D:
    """The data; of a hierarchy with one label per image, its finest one, on whatever level that is."""
    if not data.levels:
        return data
    levels = torch.tensor((*data.levels, -1))  # the last is that of no class, -1

    def take_finest(split: Split) -> Split:
        if split.pairs is None:
            return split
        classes = split.pairs[..., 0].long()
        finest = levels[classes].argmax(1, keepdim=True)
        return replace(split, labels=classes.gather(1, finest)[:, 0], pairs=None)

    return replace(data.map_splits(take_finest), levels=())
