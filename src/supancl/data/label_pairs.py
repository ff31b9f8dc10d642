"""Several or soft labels per image: how they are written in files, checked, and put into one tensor.

`pairs` (N, L, 2) in float32 hold class and weight of up to L labels per image, padded with (-1, 0) at the end;
core/label_weights.py says what training does with them. Where every image has at most one label, of weight 1, there
are no pairs: such data are labels (N,), as if they had been written that way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

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


class LabelTable(NamedTuple):
    """Labels of a list of images that differ too much for a `LabelSet` each: class names, and pairs (labels, L, 2).

    `pairs` has a row for each name of a label in the list's columns (`Columns.label_names`).
    """

    classes: tuple[str, ...]
    pairs: Tensor

    def sets(self) -> list[LabelSet]:
        return [{self.classes[int(c)]: weight for c, weight in row if c >= 0} for row in self.pairs.tolist()]


class ImageLabels(NamedTuple):
    """One label per image (N,), -1 for none, and the pairs (N, L, 2) if there are several or soft ones.

    With pairs, the one label is the rarest of the image's classes: by it images are held out, hidden and balanced.
    """

    labels: Tensor
    pairs: Tensor | None = None


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


def check_range(weights: Sequence[float] | np.ndarray, name_weight: Callable[[int], str]) -> None:
    """Refuse weights (N,) that differ too much to be summed; `name_weight` says where one stands, for the message."""
    values = np.asarray(weights, np.float32)
    if not len(values) or 0 < values.max() <= min(MAX_RATIO * float(values.min()), MAX_WEIGHT):
        return
    least, largest = int(values.argmin()), int(values.argmax())
    raise BadInput(
        f"{name_weight(least)} has weight {values[least]:.3g} and {name_weight(largest)} {values[largest]:.3g}: in "
        f"float32 they differ by more than {MAX_RATIO:,.0f} times, or are 0 or above {MAX_WEIGHT:g}; leave out the "
        "smallest, or scale all"
    )


def check_range_of_sets(label_sets: Iterable[tuple[str, LabelSet]]) -> None:
    """The same for the weights of label sets, each with the place where it stands."""
    entries = [(place, name, weight) for place, labels in label_sets for name, weight in labels.items()]
    check_range([weight for _, _, weight in entries], lambda i: f"{entries[i][0]}: {entries[i][1]!r}")


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
    check_range(weights[rows, columns], lambda i: f"{name_row(int(rows[i]))}, column {column_names[int(columns[i])]!r}")
    most = int(counts.max(initial=1))
    if most > 1:
        check_count(most, max_labels, name_row(int(np.argmax(counts))))
    pairs = np.zeros((len(weights), most, 2), np.float32)
    pairs[..., 0] = -1
    position = np.arange(len(rows)) - (np.cumsum(counts) - counts)[rows]
    pairs[rows, position, 0], pairs[rows, position, 1] = columns, weights[rows, columns]
    return torch.from_numpy(pairs)


def weight_matrix(pairs: Tensor, classes: int) -> np.ndarray:
    """The weights (N, C) that `pairs_from_matrix` reads."""
    numbers = pairs[..., 0].long()
    weights = torch.zeros(len(pairs), classes).scatter_add_(1, numbers.clamp(min=0), pairs[..., 1])
    weights[(numbers < 0).all(1)] = -1
    matrix: np.ndarray = weights.numpy()
    return matrix


def labels_from_pairs(splits: Mapping[str, Tensor]) -> dict[str, ImageLabels]:
    """The labels of each split, from its pairs. If no image of any split needs pairs, none has them."""
    weights = torch.cat([pairs[..., 1][pairs[..., 0] >= 0] for pairs in splits.values()])
    most = max(pairs.shape[1] for pairs in splits.values())
    if most == 1 and bool((weights == 1).all()):
        return {name: ImageLabels(pairs[:, 0, 0].long()) for name, pairs in splits.items()}
    used = torch.cat([pairs[..., 0][pairs[..., 0] >= 0].long() for pairs in splits.values()])
    counts = torch.bincount(used, minlength=1)
    padded = {name: _pad_to(pairs, most) for name, pairs in splits.items()}
    return {name: ImageLabels(rarest_labels(pairs, counts), pairs) for name, pairs in padded.items()}


def _pad_to(pairs: Tensor, length: int) -> Tensor:
    padding = torch.tensor([-1.0, 0.0]).expand(len(pairs), length - pairs.shape[1], 2)
    return torch.cat([pairs, padding], dim=1)


def rarest_labels(pairs: Tensor, counts: Tensor) -> Tensor:
    """(N,): of each image's classes the one with the fewest images, the first of equals; -1 without a label."""
    classes = pairs[..., 0].long()
    has_class = classes >= 0
    key = counts[classes.clamp(min=0)] * len(counts) + classes
    rarest = torch.where(has_class, key, torch.iinfo(torch.long).max).amin(1) % len(counts)
    return torch.where(has_class.any(1), rarest, -1)


def heaviest_labels(pairs: Tensor, counts: Tensor) -> Tensor:
    """(N,): of each image's classes the one with the largest weight, of equals the rarest; -1 without a label."""
    weights = pairs[..., 1]
    is_heaviest = weights == weights.amax(1, keepdim=True)
    return rarest_labels(torch.where(is_heaviest[..., None], pairs, -1.0), counts)


def count_images(labels: ImageLabels, classes: int) -> tuple[list[int], int]:
    """How many images have each class, and how many have none."""
    entries = labels.labels if labels.pairs is None else labels.pairs[..., 0].long().flatten()
    counts: list[int] = torch.bincount(entries[entries >= 0], minlength=classes).tolist()
    return counts, int((labels.labels < 0).sum())


def label_texts(labels: ImageLabels, positions: Tensor, classes: Sequence[str], unlabelled: str) -> list[str]:
    """The label of each image, to be read by people: 'cat', or 'cat;dog:0.7'."""
    if labels.pairs is None:
        names = [*classes, unlabelled]  # -1 is the last one
        return [names[label] for label in labels.labels[positions].tolist()]
    return [
        SEPARATOR.join(f"{classes[number]}{weight_suffix(weight)}" for number, weight in entries) or unlabelled
        for entries in list_labels(labels.pairs[positions])
    ]


def list_labels(pairs: Tensor) -> list[list[tuple[int, float]]]:
    """The class and the weight of every label of every image."""
    return [[(int(number), weight) for number, weight in row if number >= 0] for row in pairs.tolist()]


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


def label_cells(labels: ImageLabels, positions: Tensor, classes: Sequence[str]) -> list[str]:
    """The label of each image as a .csv has it; '' for none."""
    if labels.pairs is None:
        return label_texts(labels, positions, classes, "")
    entries = list_labels(labels.pairs[positions])
    return [label_cell([(classes[number], weight) for number, weight in row]) for row in entries]


def _shortest_text(weight: float) -> str:
    """The shortest text that reads back as the same float32."""
    return np.format_float_positional(np.float32(weight), trim="-")


def describe_pairs(pairs: Tensor | None) -> dict[str, float]:
    """The most and the mean number of labels of labelled images, and the range of weights; empty without pairs."""
    if pairs is None:
        return {}
    has_class = pairs[..., 0] >= 0
    counts, weights = has_class.sum(1), pairs[..., 1][has_class]
    labelled = counts[counts > 0].double()
    if not len(labelled):
        return {}
    return {
        "most": int(labelled.max()),
        "mean": round(float(labelled.mean()), 2),
        "least_weight": round(float(weights.min()), 6),
        "largest_weight": round(float(weights.max()), 6),
    }


def check_one_label(pairs: Tensor | None, location: str, what: str, is_nested: bool = False) -> None:
    """Refuse several or soft labels, or those of a hierarchy's levels, where `what` needs one label per image."""
    if pairs is None:
        return
    reason, way_out = "its images have several or soft labels", "name data with one each"
    if is_nested:
        reason, way_out = "data.hierarchy gives an image a label on every level", "leave data.hierarchy out"
    raise BadInput(f"{location}: {reason}, and {what} takes one label per image; {way_out}")


def count_distinct(labels: ImageLabels) -> int:
    """How many different labels images have. Several of one image, with their weights, count as one.

    So do classes that always come together, such as the levels of one path.
    """
    if labels.pairs is None:
        return len(torch.unique(labels.labels[labels.labels >= 0]))
    rows = labels.pairs[labels.labels >= 0].flatten(1).contiguous().numpy()
    return len(np.unique(rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1])))))
