"""A hierarchy of classes, such as animal and cat: each of its levels is data with one label per image."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from supancl.data.splits import Data, Source, Split

if TYPE_CHECKING:
    import torch
else:
    from supancl.lazy import torch


class Level(NamedTuple):
    """One level of a hierarchy, 0 for the coarsest, with the level of every class and the class names of this one."""

    number: int
    levels: tuple[int, ...]
    classes: tuple[str, ...]

    def take_labels(self, split: Split) -> Split:
        """The split with the labels of this level, numbered as in `classes`."""
        if split.pairs is None and not len(split):
            return split
        numbers = torch.full((len(self.levels),), -1)
        is_here = torch.tensor(self.levels) == self.number
        numbers[is_here] = torch.arange(len(self.classes))
        return split.at_level(self.levels, self.number).relabelled(numbers)

    def take_data(self, data: Data) -> Data:
        """The data with the labels of this level."""
        test = None if data.test is None else self.take_labels(data.test)
        train, held_out = self.take_labels(data.train), self.take_labels(data.held_out)
        return replace(data, train=train, held_out=held_out, test=test, classes=self.classes, levels=())

    def take_source(self, source: Source) -> Source:
        """The source with the labels of this level."""
        splits = {name: self.take_labels(split) for name, split in source.splits.items()}
        return replace(source, splits=splits, classes=self.classes, levels=())


def list_levels(data: Data | Source) -> list[Level]:
    """The levels from the coarsest to the finest; none if classes are no hierarchy."""
    classes_of: dict[int, list[str]] = {}
    for name, number in zip(data.classes, data.levels, strict=False):  # without a hierarchy there are no levels
        classes_of.setdefault(number, []).append(name)
    return [Level(number, data.levels, tuple(classes_of[number])) for number in sorted(classes_of)]


def finest_data(data: Data) -> Data:
    """The data; of a hierarchy with the labels of its finest level."""
    levels = list_levels(data)
    return levels[-1].take_data(data) if levels else data


def finest_source(source: Source) -> Source:
    """The source; of a hierarchy with the labels of its finest level."""
    levels = list_levels(source)
    return levels[-1].take_source(source) if levels else source
