"""How labels are written in files, and how names, weights and paths become `Labels`.

`pairs` (N, L, 2) in float32 hold class and weight of up to L labels per image, padded with (-1, 0) at the end. Where
every image of a source has at most one label, of weight 1, there are no weights.

With `data.hierarchy` class names are paths, such as animal/cat, and every prefix is a class of its own: animal on level
0, animal/cat on level 1. An image has one label per level of its path, each in a column.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import resources
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from supancl.core.labels import Labels
from supancl.data.spec import DataSpec
from supancl.errors import BadInput, NoLevels

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from supancl.data.splits import Data, Source, Split
else:
    from supancl.lazy import torch

SEPARATOR = ";"  # between the names of one image in a .csv
NO_LABEL = ("-1", "-1.0")  # a column with gaps turns -1 into -1.0
WITH_WEIGHT = re.compile(r"(.*):\s*([-+.,]*\d.*|)")  # what follows the last ':' is, or is meant as, a number
MAX_WEIGHT = 1e30  # float32 has room for sums of them
D = TypeVar("D", "Data", "Source")

LabelSet = Mapping[str, float]  # class name -> weight


def parse_label_set(text: str, location: str) -> dict[str, float]:
    """The classes and weights in a text; weights of the same class are added.

    >>> parse_label_set("cat; dog:0.7; cat", "labels.csv line 2")
    {'cat': 2.0, 'dog': 0.7}
    """
    labels: dict[str, float] = {}
    for part in filter(None, map(str.strip, text.split(SEPARATOR))):
        name, weight = part, 1.0
        if match := WITH_WEIGHT.fullmatch(part):
            name, weight = match[1].strip(), 0.0
            with suppress(ValueError):
                weight = float(match[2])
            if not name or not 0 < weight <= MAX_WEIGHT:
                raise BadInput(f"{location}: {part[:80]!r} is no class with a weight; write cat:0.7, or disk:2nd:1")
        labels[name] = labels.get(name, 0.0) + weight
    return labels


def check_count(count: int, max_labels: int, location: str) -> None:
    if count > max_labels:
        raise BadInput(f"{location}: {count} labels, more than data.max_labels = {max_labels}")


def labels_from_pairs(pairs: Tensor) -> Labels:
    """The labels of all images of a source; without weights if no image needs them."""
    is_label = pairs[..., 0] >= 0
    weights, most = pairs[..., 1][is_label], max(1, int(is_label.sum(1).max())) if len(pairs) else 1
    if most == 1 and bool((weights == 1).all()):
        return Labels(pairs[:, 0, :1].long())
    labels = Labels.of(pairs[:, :most])
    return labels.with_rarest(labels.counts())


def pairs_from_sets(label_sets: Sequence[LabelSet], classes: Sequence[str]) -> Tensor:
    """(len(label_sets), L, 2): the pairs of each set, by class number."""
    number = {name: i for i, name in enumerate(classes)}
    rows = [sorted((number[name], weight) for name, weight in labels.items()) for labels in label_sets]
    most = max(1, max(map(len, rows), default=1))
    padded = [[*row, *[(-1, 0.0)] * (most - len(row))] for row in rows]
    return torch.tensor(padded, dtype=torch.float32).reshape(-1, most, 2)


def pairs_from_matrix(weights: np.ndarray, location: str, first_row: int = 0) -> Tensor:
    """The pairs of weights (N, C), one column per class: 0 and 1, or any weights. A row of -1 is unlabelled."""
    is_labelled = ~(weights == -1).all(1)
    is_good = ((weights >= 0) & (weights <= MAX_WEIGHT)).all(1) & (weights > 0).any(1)  # NaN is neither
    if (is_wrong := ~is_good & is_labelled).any():
        row = int(np.argmax(is_wrong))
        raise BadInput(f"{location}, row {row + first_row}: {weights[row].tolist()[:20]} are no weights of classes")
    rows, columns = np.nonzero((weights > 0) & is_labelled[:, None])
    counts = np.bincount(rows, minlength=len(weights))
    most = int(counts.max(initial=1))
    pairs = np.zeros((len(weights), most, 2), np.float32)
    pairs[..., 0] = -1
    position = np.arange(len(rows)) - (np.cumsum(counts) - counts)[rows]
    pairs[rows, position, 0], pairs[rows, position, 1] = columns, weights[rows, columns]
    return torch.from_numpy(pairs)


def weight_matrix(labels: Labels, classes: int) -> np.ndarray:
    """The weights (N, C) that `pairs_from_matrix` reads."""
    weights = labels.dense(classes, torch.float32)
    return np.asarray(weights.masked_fill(~labels.is_labelled[:, None], -1))


def label_texts(labels: Labels, positions: Tensor, classes: Sequence[str], unlabelled: str = "") -> list[str]:
    """The label of each image as a .csv has it: 'cat', or 'cat;dog:0.7'."""
    rows = [[(classes[number], weight) for number, weight in row] for row in labels[positions].entries()]
    if labels.has_one_each:
        return [row[0][0] if row else unlabelled for row in rows]
    return [label_cell(row) or unlabelled for row in rows]


def label_cell(labels: Sequence[tuple[str, float]]) -> str:
    """The cell of a .csv that `parse_label_set` reads as these names and weights; no name has a ';'.

    A name that ends like a weight gets its own behind it. One label with a weight ends in ';', because weights are
    read only in a table in which some label has one.

    >>> label_cell([("cat", 1.0), ("dog", 0.5)]), label_cell([("disk:1", 1.0)])
    ('cat;dog:0.5', 'disk:1:1;')
    """
    # the shortest text for the same float32
    numbers = [np.format_float_positional(np.float32(weight), trim="-") for _, weight in labels]
    suffixes = [
        f":{number}" if number != "1" or WITH_WEIGHT.fullmatch(name) else ""
        for (name, _), number in zip(labels, numbers, strict=True)
    ]
    text = SEPARATOR.join(f"{name}{suffix}" for (name, _), suffix in zip(labels, suffixes, strict=True))
    return f"{text}{SEPARATOR}" if len(labels) == 1 and suffixes[0] else text


def describe_labels(labels: Labels) -> dict[str, float]:
    """The most and the mean number of labels of labelled images, and the range of weights; empty for one label each."""
    has_class = labels.classes >= 0
    if labels.has_one_each or not bool(has_class.any()):
        return {}
    counts, weights = has_class.sum(1), labels.weights[has_class]
    labelled = counts[counts > 0].double()
    return {
        "most": int(labelled.max()),
        "mean": round(float(labelled.mean()), 2),
        "least_weight": round(float(weights.min()), 6),
        "largest_weight": round(float(weights.max()), 6),
    }


# --- levels -----------------------------------------------------------------------------------------------------------


def add_levels(
    labels: Labels, classes: Sequence[str], spec: DataSpec
) -> tuple[Labels, tuple[str, ...], tuple[int, ...]]:
    """Labels on every level of `data.hierarchy`, the classes of all levels, sorted, and the level of each.

    Without a hierarchy they are the same, and no class has a level.
    """
    if spec.hierarchy == "none":
        if spec.level_weights:
            raise BadInput("data.level_weights: is for data.hierarchy, which is none; add data.hierarchy=paths")
        return labels, tuple(classes), ()
    if not labels.has_one_each:
        raise NoLevels(f"{spec.location}: data.hierarchy takes one class per image, and here are several; leave it out")
    paths = [name.split("/") for name in (cifar100_paths(classes) if spec.hierarchy == "cifar100" else classes)]
    depth = max(map(len, paths), default=0)
    if depth < 2:
        raise NoLevels(f"{spec.location}: no class name has a '/', such as animal/cat; leave data.hierarchy out")
    weights = spec.level_weights or (1.0,) * depth
    if len(weights) != depth:
        raise BadInput(f"{spec.location}: levels of its classes: {depth}, data.level_weights: {len(weights)}")
    prefixes = [["/".join(path[: level + 1]) for level in range(len(path))] for path in paths]
    sets: list[LabelSet] = [dict(zip(names, weights, strict=False)) for names in prefixes]
    levels = {name: level for names in prefixes for level, name in enumerate(names)}
    nodes = tuple(sorted(levels))
    every_class = labels_from_pairs(pairs_from_sets([*sets, {}], nodes))  # the last is that of none, -1
    labels = every_class[labels.single]
    return labels.with_rarest(labels.counts()), nodes, tuple(levels[name] for name in nodes)


def labels_among(labels: Labels, classes: Sequence[str], names: Sequence[str]) -> Labels:
    """The labels that are among these names, at most one per image, numbered as they are."""
    place = {name: i for i, name in enumerate(names)}
    return labels.among(torch.tensor([place.get(name, -1) for name in classes], dtype=torch.long))


def keep_classes(split: Split, classes: Sequence[str], names: Sequence[str]) -> Split:
    """The split with these labels alone."""
    return replace(split, all_labels=labels_among(split.all_labels, classes, names))


def list_levels(data: Data | Source) -> list[tuple[str, ...]]:
    """The classes of each level, the coarsest first; none if classes are no hierarchy."""
    names = list(zip(data.classes, data.levels, strict=False))  # without a hierarchy there are no levels
    return [tuple(name for name, level in names if level == number) for number in sorted(set(data.levels))]


def find_leaves(data: Data | Source) -> tuple[str, ...]:
    """The classes of a hierarchy that have no class below them."""
    parents = {name.rpartition("/")[0] for name in data.classes}
    return tuple(name for name in data.classes if name not in parents)


def with_leaf_labels(data: D) -> D:
    """The data; of a hierarchy with one label per image, its leaf: none if it is labelled more coarsely."""
    if not data.levels:
        return data
    leaves = find_leaves(data)
    kept = data.map_labels(lambda labels: labels_among(labels, data.classes, leaves))
    return replace(kept, classes=leaves, levels=())


def with_given_labels(data: D) -> D:
    """The data; of a hierarchy with one label per image, its finest one, on whatever level that is."""
    if not data.levels:
        return data
    return replace(data.map_labels(Labels.finest), levels=())


_LINES = resources.files("supancl.data.sources").joinpath("cifar100.txt").read_text(encoding="utf-8").splitlines()
# the 20 superclasses of CIFAR-100, with five classes each (https://www.cs.toronto.edu/~kriz/cifar.html)
SUPERCLASSES = {name: tuple(classes.split()) for name, classes in (line.split(": ") for line in _LINES)}
SUPERCLASS_OF = {name: superclass for superclass, names in SUPERCLASSES.items() for name in names}
CLASSES = tuple(sorted(SUPERCLASS_OF))  # in label order


def cifar100_paths(classes: Sequence[str]) -> list[str]:
    """SUPERCLASS/CLASS for each class; the numbers 0 to 99 are the classes in CIFAR-100's order.

    >>> cifar100_paths(["apple", "wolf"])
    ['fruit_and_vegetables/apple', 'large_carnivores/wolf']
    """
    by_number = {str(number): name for number, name in enumerate(CLASSES)}
    names = [by_number[name] for name in classes] if set(classes) == set(by_number) else classes
    if unknown := sorted(set(names) - set(CLASSES)):
        raise NoLevels(f"{unknown[0][:80]!r} is no class of CIFAR-100")
    return [f"{SUPERCLASS_OF[name]}/{name}" for name in names]
