"""Which classes the images of a source have: whether they fit together, and how messages name them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from supancl.data.splits import Split
from supancl.errors import BadInput, plural
from supancl.evaluation.encoder import EvaluatedEncoder
from supancl.probes.features import name_classes


def check_classes(
    classes: Sequence[str], location: str, splits: Mapping[str, Split], may_lack: bool = False
) -> None:  # fmt: skip
    """Check that all splits have the classes of the first one, at least two; with `may_lack` some may be missing.

    Splits of images with several labels may differ in their classes: each is asked about alone.
    """
    sets = {name: set(split.class_ids()) for name, split in splits.items()}
    first, expected = next(iter(sets.items()))
    for name, present in sets.items():
        if not present:
            raise BadInput(
                f"{location}: no labelled image in {name}; label some of them, or name labelled ones with data"
            )
    if len(expected) < 2:
        raise BadInput(
            f"{location}: only class {classes[next(iter(expected))]!r} in {first}; "
            "a classifier needs at least two classes"
        )
    if not splits[first].all_labels.has_one_each:
        return
    for name, present in sets.items():
        if expected - present and not may_lack:
            raise BadInput(
                f"{location}: no image of {quote_classes(classes, expected - present)} in {name}, which {first} has; "
                "add images of it, or leave the class out of every split"
            )
        if present - expected:
            raise BadInput(
                f"{location}: {quote_classes(classes, present - expected)} in {name} has no image in {first}; "
                "all splits must have the same classes"
            )


def warn_unknown(
    evaluated: EvaluatedEncoder, classes: Sequence[str], location: str, train: Sequence[Split], test: Split
) -> None:  # fmt: skip
    """Warn about test images whose class has no training image: they count as wrong, or are ranked by chance."""
    numbers = test.all_labels.classes.flatten()
    numbers = numbers[numbers >= 0]
    unknown = numbers[~torch.isin(numbers, torch.cat([split.all_labels.classes.flatten() for split in train]))]
    if not len(unknown):
        return
    names = quote_classes(classes, set(unknown.tolist()))
    count = plural(len(unknown), "test image counts", "test images count")
    effect = f"its {count} as wrong" if test.all_labels.has_one_each else "its average precision is that of chance"
    evaluated.reporter.warn(f"{location}: {names} has no training image; {effect}")


def quote_classes(classes: Sequence[str], labels: set[int]) -> str:
    """'class 'cat'', or 'classes 'cat', 'dog' and 3 more'."""
    return name_classes([repr(classes[label]) for label in sorted(labels)])
