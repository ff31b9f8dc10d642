"""How labels are written in files, and how names and weights become `Labels`.

`pairs` (N, L, 2) in float32 hold class and weight of up to L labels per image, padded with (-1, 0) at the end. Where
every image of a source has at most one label, of weight 1, there are no weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from supancl.core.labels import Labels
from supancl.errors import BadInput

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

SEPARATOR = ";"  # between the names of one image in a .csv
# of the largest weight of a source to its smallest: sums of weights in a pool have 16 digits, and pools many entries
MAX_RATIO = 1e6
MAX_WEIGHT = 1e30  # float32 has room for sums of them

LabelSet = Mapping[str, float]  # class name -> weight


def parse_label_set(text: str, location: str) -> dict[str, float]:
    """The classes and weights in a text; weights of the same class are added.

    >>> parse_label_set("cat; dog:0.7; cat", "labels.csv line 2")
    {'cat': 2.0, 'dog': 0.7}
    """
    labels: dict[str, float] = {}
    for part in filter(None, map(str.strip, text.split(SEPARATOR))):
        name, weight = _split_weight(part, location) if ends_like_weight(part) else (part, 1.0)
        labels[name] = labels.get(name, 0.0) + weight
    return labels


def ends_like_weight(part: str) -> bool:
    """Whether what follows the last ':' is a number, or can be meant as one: nothing, or a digit, after any sign.

    >>> [ends_like_weight(part) for part in ("dog:0.7", "dog:0,7", "dog:70%", "dog:", "dog:large", "dog")]
    [True, True, True, True, False, False]
    """
    _, colon, number = part.rpartition(":")
    start = number.strip().lstrip("+-.,")[:1]
    return bool(colon) and (not start or start.isdigit() or as_number(number) is not None)


def _split_weight(part: str, location: str) -> tuple[str, float]:
    """The class and the weight of a part that ends like a weight."""
    name, _, number = (text.strip() for text in part.rpartition(":"))
    weight = as_number(number)
    if weight is None:
        raise BadInput(
            f"{location}: {part[:80]!r} ends in a weight that is no number; write it as in cat:0.7, or, if it is part "
            "of the name, a weight behind it, as in disk:2nd:1"
        )
    if not name:
        raise BadInput(f"{location}: {part!r} has a weight but no class; write NAME:WEIGHT")
    if not 0 < weight <= MAX_WEIGHT:  # NaN is neither
        raise BadInput(
            f"{location}: {name!r} has weight {weight:g}; weights are above 0, up to {MAX_WEIGHT:g}; leave out classes "
            "that do not apply"
        )
    return name, weight


def as_number(text: str) -> float | None:
    """The number that a text is; None if it is none."""
    try:
        return float(text)
    except ValueError:
        return None


def check_count(count: int, max_labels: int, location: str) -> None:
    if count > max_labels:
        raise BadInput(
            f"{location}: {count} labels, more than data.max_labels = {max_labels}; keep those of the largest weights, "
            f"or use data.max_labels={count} (a step takes time and memory for each)"
        )


def join_names(names: Iterable[str]) -> str:
    """One text for several class names: what an image is listed with, and the key of its `LabelSet`.

    >>> join_names(["cat"]), join_names([]), join_names(["cat", "dog", "cat"]) == join_names(["dog", "cat"])
    ('cat', '', True)
    """
    return "\0".join(sorted(set(names)))


def set_of_names(text: str) -> LabelSet:
    """The names in a text of `join_names`, each with weight 1."""
    return dict.fromkeys(text.split("\0"), 1.0) if text else {}


def pairs_from_sets(label_sets: Sequence[LabelSet], classes: Sequence[str]) -> Tensor:
    """(len(label_sets), L, 2): the pairs of each set, by class number."""
    number = {name: i for i, name in enumerate(classes)}
    rows = [sorted((number[name], weight) for name, weight in labels.items()) for labels in label_sets]
    pairs = torch.zeros(len(rows), max(1, max(map(len, rows), default=1)), 2)
    pairs[..., 0] = -1
    for row, entries in enumerate(rows):
        if entries:
            pairs[row, : len(entries)] = torch.tensor(entries)
    return pairs


def pairs_from_matrix(
    weights: np.ndarray, max_labels: int, name_row: Callable[[int], str], column_names: Sequence[object]
) -> Tensor:
    """The pairs of weights (N, C), one column per class: 0 and 1, or any weights. A row of -1 is unlabelled.

    The names of rows and columns are for messages.
    """
    is_labelled = ~(weights == -1).all(1)
    is_wrong = ~((weights >= 0) & (weights <= MAX_WEIGHT)) & is_labelled[:, None]  # NaN is neither
    if is_wrong.any():
        row, column = np.argwhere(is_wrong)[0].tolist()
        raise BadInput(
            f"{name_row(row)}, column {column_names[column]!r} has weight {weights[row, column]:g}; weights are 0 or "
            f"above, up to {MAX_WEIGHT:g}, and -1 in the whole row of an unlabelled image"
        )
    rows, columns = np.nonzero((weights > 0) & is_labelled[:, None])
    counts = np.bincount(rows, minlength=len(weights))
    if (is_empty := (counts == 0) & is_labelled).any():
        raise BadInput(
            f"{name_row(int(np.argmax(is_empty)))} has only zeros; give the image a class, or write -1 in its whole "
            "row if it is unlabelled"
        )
    most = int(counts.max(initial=1))
    if most > 1:
        check_count(most, max_labels, name_row(int(np.argmax(counts))))
    pairs = np.zeros((len(weights), most, 2), np.float32)
    pairs[..., 0] = -1
    position = np.arange(len(rows)) - (np.cumsum(counts) - counts)[rows]
    pairs[rows, position, 0], pairs[rows, position, 1] = columns, weights[rows, columns]
    return torch.from_numpy(pairs)


def weight_matrix(labels: Labels, classes: int) -> np.ndarray:
    """The weights (N, C) that `pairs_from_matrix` reads."""
    weights = labels.dense(classes, torch.float32)
    weights[~labels.is_labelled] = -1
    matrix: np.ndarray = weights.numpy()
    return matrix


def labels_of_splits(splits: Mapping[str, Tensor]) -> dict[str, Labels]:
    """The labels of each split of a source, from its pairs. If no image needs weights, no split has them."""
    entries = torch.cat([pairs[pairs[..., 0] >= 0] for pairs in splits.values()])
    most, weights = max(pairs.shape[1] for pairs in splits.values()), entries[:, 1]
    if most == 1 and bool((weights == 1).all()):
        return {name: Labels(pairs[..., 0].long()) for name, pairs in splits.items()}
    if len(weights) and not 0 < float(weights.max()) <= min(MAX_RATIO * float(weights.min()), MAX_WEIGHT):
        raise BadInput(
            f"weights of labels are from {float(weights.min()):g} to {float(weights.max()):g}: in float32 they differ "
            f"by more than {MAX_RATIO:,.0f} times, or leave 0 to {MAX_WEIGHT:g}; leave out the smallest, or scale"
        )
    counts = torch.bincount(entries[:, 0].long(), minlength=1)
    padding = torch.tensor([-1.0, 0.0])
    padded = {
        name: torch.cat([pairs, padding.expand(len(pairs), most - pairs.shape[1], 2)], dim=1)
        for name, pairs in splits.items()
    }
    return {name: Labels.of(pairs).with_rarest(counts) for name, pairs in padded.items()}


def label_texts(labels: Labels, positions: Tensor, classes: Sequence[str], unlabelled: str) -> list[str]:
    """The label of each image, to be read by people: 'cat', or 'cat;dog:0.7'."""
    return [
        SEPARATOR.join(f"{classes[number]}{weight_suffix(weight)}" for number, weight in entries) or unlabelled
        for entries in labels[positions].entries()
    ]


def weight_suffix(weight: float) -> str:
    """What follows a name in a .csv: nothing for weight 1, else ':0.7'."""
    return "" if weight == 1 else f":{_shortest_text(weight)}"


def label_cell(labels: Sequence[tuple[str, float]]) -> str:
    """The cell of a .csv that `parse_label_set` reads as these names and weights; no name has a ';'.

    A name that ends like a weight gets its own behind it. One label with a weight ends in ';', because weights are
    read only in a table in which some label has one.

    >>> label_cell([("cat", 1.0), ("dog", 0.5)]), label_cell([("disk:1", 1.0)])
    ('cat;dog:0.5', 'disk:1:1;')
    """
    suffixes = [weight_suffix(weight) or ":1" * ends_like_weight(name) for name, weight in labels]
    text = SEPARATOR.join(f"{name}{suffix}" for (name, _), suffix in zip(labels, suffixes, strict=True))
    return f"{text}{SEPARATOR}" if len(labels) == 1 and suffixes[0] else text


def label_cells(labels: Labels, positions: Tensor, classes: Sequence[str]) -> list[str]:
    """The label of each image as a .csv has it; '' for none."""
    if labels.has_one_each:
        return label_texts(labels, positions, classes, "")
    entries = labels[positions].entries()
    return [label_cell([(classes[number], weight) for number, weight in row]) for row in entries]


def _shortest_text(weight: float) -> str:
    """The shortest text that reads back as the same float32."""
    return np.format_float_positional(np.float32(weight), trim="-")


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
