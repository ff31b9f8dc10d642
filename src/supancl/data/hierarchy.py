"""Labels on several levels (`data.hierarchy`): class names that are paths, such as animal/cat.

Every prefix of a path is a class of its own: animal on level 0, animal/cat on level 1. An image has one label per level
of its path, with the weight of that level (`data.level_weights`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from supancl.core.labels import Labels
from supancl.data.labels import LabelSet, labels_of_splits, pairs_from_sets
from supancl.data.sources.cifar import cifar100_paths
from supancl.data.splits import Data, DataSpec, Source, Split
from supancl.errors import BadInput, NoLevels

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

SEPARATOR = "/"
D = TypeVar("D", Data, Source)
T = TypeVar("T")


class Hierarchy(NamedTuple):
    """The classes of all levels, sorted, and the level of each; and the pairs of every class of the source.

    `pairs` is (C + 1, L, 2): the last row is that of unlabelled images, whose label is -1.
    """

    classes: tuple[str, ...]
    levels: tuple[int, ...]
    pairs: Tensor

    def relabel(self, labels: Mapping[str, Tensor]) -> dict[str, Labels]:
        """The labels of each split on all levels, from one label per image."""
        return labels_of_splits({name: self.pairs[numbers] for name, numbers in labels.items()})


def apply_hierarchy(source: Source, spec: DataSpec) -> Source:
    """The source with one label per level; the same source without `data.hierarchy`, or if it has levels already."""
    if source.levels or not has_hierarchy(spec):
        return source
    if not all(split.all_labels.has_one_each for split in source.splits.values()):
        raise NoLevels(
            f"{spec.location}: images have several or soft labels already, and data.hierarchy = {spec.hierarchy} "
            "takes one class per image; leave it out"
        )
    hierarchy = build_hierarchy(source.classes, spec)
    labels = hierarchy.relabel({name: split.labels for name, split in source.splits.items()})
    splits = {name: replace(split, all_labels=labels[name]) for name, split in source.splits.items()}
    return replace(source, splits=splits, classes=hierarchy.classes, levels=hierarchy.levels)


def has_hierarchy(spec: DataSpec) -> bool:
    """Whether labels are on several levels; weights of levels without any are refused."""
    if spec.hierarchy == "none" and spec.level_weights:
        raise BadInput(
            f"data.level_weights = {list(spec.level_weights)}: is for data.hierarchy, which is none; add "
            "data.hierarchy=paths, or leave the weights out"
        )
    return spec.hierarchy != "none"


def build_hierarchy(classes: Sequence[str], spec: DataSpec) -> Hierarchy:
    """The levels of these class names, by `data.hierarchy`."""
    names = cifar100_paths(classes, spec.location) if spec.hierarchy == "cifar100" else classes
    for name in names:
        _check_path(name, spec.location)
    weights = _level_weights(max((level_of(name) + 1 for name in names), default=0), spec)
    sets: list[LabelSet] = [dict(zip(list_prefixes(name), weights, strict=False)) for name in names]
    nodes = tuple(sorted({node for labels in sets for node in labels}))
    _check_names(nodes, spec.location)
    return Hierarchy(nodes, tuple(map(level_of, nodes)), pairs_from_sets([*sets, {}], nodes))


def list_prefixes(name: str) -> list[str]:
    """The classes that a path names, the coarsest first.

    >>> list_prefixes("animal/cat")
    ['animal', 'animal/cat']
    """
    path = name.split(SEPARATOR)
    return [SEPARATOR.join(path[: level + 1]) for level in range(len(path))]


def level_of(name: str) -> int:
    """The level of a class: 0 for the coarsest.

    >>> level_of("animal"), level_of("animal/cat")
    (0, 1)
    """
    return name.count(SEPARATOR)


def _check_path(name: str, location: str) -> None:
    if any(not folder or folder != folder.strip() for folder in name.split(SEPARATOR)):
        raise BadInput(
            f"{location}: class {name[:80]!r} is no path: a part of it is empty or has spaces around it; write names "
            "such as animal/cat"
        )


def _level_weights(levels: int, spec: DataSpec) -> tuple[float, ...]:
    """The weight of each level, after checking how many there are."""
    if levels < 2:
        raise NoLevels(
            f"{spec.location}: no class name has a '/', so data.hierarchy = {spec.hierarchy} finds no levels; name "
            "classes such as animal/cat, put their folders into animal/, or leave it out"
        )
    if levels > spec.max_labels:
        raise BadInput(
            f"{spec.location}: {levels} levels, more than data.max_labels = {spec.max_labels}; use "
            f"data.max_labels={levels} (a step takes time and memory for each)"
        )
    weights = spec.level_weights or (1.0,) * levels
    if len(weights) != levels:
        raise BadInput(
            f"data.level_weights = {list(weights)}: the classes of {spec.location} have {levels} levels; give one "
            "weight per level, the coarsest first"
        )
    return weights


def _check_names(nodes: Sequence[str], location: str) -> None:
    """Refuse a name on two levels: cat and animal/cat are more often the same class than two."""
    first: dict[str, str] = {}
    for node in nodes:
        name = node.rpartition(SEPARATOR)[2]
        other = first.setdefault(name, node)
        if level_of(other) != level_of(node):
            raise BadInput(
                f"{location}: {name!r} is on two levels, as {other!r} and as {node!r}; rename one of them, or put both "
                "into one"
            )


# --- data with one label per image, of a level or of the leaves -------------------------------------------------------


class Level(NamedTuple):
    """Classes of a hierarchy of which an image has at most one: those of one level, or the leaves.

    `numbers` has for every class of the hierarchy its place in `classes`, or -1.
    """

    numbers: tuple[int, ...]
    classes: tuple[str, ...]

    def take_labels(self, split: Split) -> Split:
        """The split with the labels that are among these classes, numbered as in `classes`."""
        return replace(split, all_labels=split.all_labels.among(torch.tensor(self.numbers, dtype=torch.long)))

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
    finest = data.map_splits(lambda split: replace(split, all_labels=split.all_labels.finest()))
    return replace(finest, levels=())
