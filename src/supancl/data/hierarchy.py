"""Labels on several levels (`data.hierarchy`): class names that are paths, such as animal/cat.

Every prefix of a path is a class of its own: animal on level 0, animal/cat on level 1. An image has one label per level
of its path, with the weight of that level (`data.level_weights`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from supancl.data.label_pairs import ImageLabels, LabelSet, check_range, labels_from_pairs, pairs_from_sets
from supancl.data.sources.cifar100_superclasses import cifar100_paths
from supancl.data.splits import DataSpec, Source
from supancl.errors import BadInput, NoLevels

if TYPE_CHECKING:
    from torch import Tensor

SEPARATOR = "/"


class Hierarchy(NamedTuple):
    """The classes of all levels, sorted, and the level of each; and the pairs of every class of the source.

    `pairs` is (C + 1, L, 2): the last row is that of unlabelled images, whose label is -1.
    """

    classes: tuple[str, ...]
    levels: tuple[int, ...]
    pairs: Tensor

    def relabel(self, labels: Mapping[str, Tensor]) -> dict[str, ImageLabels]:
        """The labels of each split on all levels, from one label per image."""
        return labels_from_pairs({name: self.pairs[numbers] for name, numbers in labels.items()})


def apply_hierarchy(source: Source, spec: DataSpec) -> Source:
    """The source with one label per level; the same source without `data.hierarchy`, or if it has levels already."""
    if source.levels or not has_hierarchy(spec):
        return source
    for split in source.splits.values():
        if split.pairs is not None:
            raise NoLevels(
                f"{spec.location}: images have several or soft labels already, and data.hierarchy = {spec.hierarchy} "
                "takes one class per image; leave it out"
            )
    hierarchy = build_hierarchy(source.classes, spec)
    labels = hierarchy.relabel({name: split.labels for name, split in source.splits.items()})
    splits = {
        name: replace(split, labels=labels[name].labels, pairs=labels[name].pairs)
        for name, split in source.splits.items()
    }
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
    check_range(weights, "data.level_weights: level {}".format)
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
