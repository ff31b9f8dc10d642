"""What features must satisfy before anything is fitted to them: each fault is one line with its place and a way out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from supancl.errors import BadInput, counted
from supancl.probes.features import Features

Rows = Tensor | np.ndarray  # (N, width), any floating type; an array may be a memory map, read by the chunk


class Labelled(Protocol):
    """Rows of features with their labels: `Features`, or anything else that has both."""

    @property
    def values(self) -> Rows: ...

    @property
    def labels(self) -> Tensor: ...


def chunk_of(values: Rows, start: int, stop: int, device: torch.device | str | None = None) -> Tensor:
    """Rows start to stop as float32: no more than these leave the disk or the half precision they are kept in."""
    part = values[start:stop]
    taken = part if isinstance(part, Tensor) else torch.from_numpy(np.array(part, dtype=np.float32))
    return taken.to(device=device, dtype=torch.float32)


def check_shape(name: str, features: Labelled) -> None:
    if features.values.ndim != 2:
        raise BadInput(f"{name} features have shape {tuple(features.values.shape)}: one row per image is needed")
    if len(features.values) != len(features.labels):
        raise BadInput(
            f"{name} features: {counted(len(features.values), 'row')} but {counted(len(features.labels), 'label')}"
        )


def check_finite(name: str, values: Tensor, offset: int = 0) -> None:
    """BadInput naming the first row that holds a NaN or an infinity; `offset` is the number of the first row given."""
    if bool(torch.isfinite(values.sum())):  # one pass; an overflow of the sum alone is sorted out below
        return
    faulty = (~torch.isfinite(values)).any(1).nonzero()
    if len(faulty):
        row = int(faulty[0])
        kind = "NaN" if bool(torch.isnan(values[row]).any()) else "an infinite value"
        raise BadInput(f"{name} features: row {offset + row} holds {kind}; embed the images again, or drop that one")


def check_features(name: str, features: Features) -> Features:
    """The labelled rows, after the shape and the numbers were looked at."""
    check_shape(name, features)
    check_finite(name, features.values)
    kept = features if bool((features.labels >= 0).all()) else features.labelled()
    if not len(kept.labels):
        raise BadInput(f"{name} features: no labelled image, so there is nothing to measure")
    return kept


def check_splits(**splits: Features) -> tuple[dict[str, Features], Tensor]:
    """The splits with their classes renumbered 0, 1, ... and the original labels; all must hold the same classes.

    The first split is the measure: a class that it has and another lacks, or the other way round, is bad input.
    """
    looked_at = {name: check_features(name, split) for name, split in splits.items()}
    first = next(iter(looked_at))
    classes = torch.unique(looked_at[first].labels)
    if len(classes) < 2:
        raise BadInput(f"{first} features: only class {int(classes[0])}; a classifier needs at least two classes")
    width = looked_at[first].values.shape[1]
    for name, split in looked_at.items():
        if split.values.shape[1] != width:
            raise BadInput(
                f"{name} features are {split.values.shape[1]} wide, {first} features {width}: "
                "embed both with the same encoder"
            )
        present = torch.unique(split.labels)
        lacking = classes[~torch.isin(classes, present)].tolist()
        strange = present[~torch.isin(present, classes)].tolist()
        if lacking:
            raise BadInput(
                f"{name} split: no image of {_named(lacking)}, which the {first} split has; "
                "add images of it, or leave the class out of every split"
            )
        if strange:
            raise BadInput(
                f"{name} split: {_named(strange)}, which the {first} split does not have; "
                "the label sets of the splits must be equal"
            )
    renumbered = {
        name: Features(split.values, torch.searchsorted(classes, split.labels)) for name, split in looked_at.items()
    }
    return renumbered, classes


def _named(classes: Sequence[int]) -> str:
    shown = ", ".join(map(str, classes[:5])) + (f" and {len(classes) - 5} more" if len(classes) > 5 else "")
    return f"class {shown}" if len(classes) == 1 else f"classes {shown}"
