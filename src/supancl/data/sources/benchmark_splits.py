"""Splits that the published data do not have: drawn once, with a fixed seed, in exactly the paper's sizes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from supancl.data.sources.benchmark_rows import Benchmark, Use
from supancl.data.splits import SPLIT_SEED
from supancl.errors import BadInput, counted

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch


def assign_splits(name: str, row: Benchmark, official: np.ndarray, labels: np.ndarray, use: Use) -> np.ndarray:
    """The split of each image: the official one, but trainval (or everything, without an official split) is divided.

    Few-shot has one split with every image in it, called train as in any source with a single split.
    """
    if use == "few-shot":
        return np.full(len(official), "train")
    final = official.astype("<U8")
    ids = torch.from_numpy(np.unique(labels, return_inverse=True)[1])
    if row.per_class is not None:
        train, val = row.per_class
        smallest, count = min(Counter(labels.tolist()).items(), key=lambda item: item[1])
        if count <= train + val:
            raise BadInput(
                f"{name}: class {smallest!r} has {counted(count, 'image')}; {train} + {val} of each class "
                f"are for train and val and the rest for test, so at least {train + val + 1} are needed"
            )
        places = _places(ids, SPLIT_SEED)
        final = np.where(places < train, "train", np.where(places < train + val, "val", "test"))
    elif row.split is not None and (final == "trainval").any():
        train, val, _ = row.split
        both = np.flatnonzero(final == "trainval")
        count = val if len(both) == train + val else round(len(both) * val / (train + val))
        final[both] = "train"
        final[both[draw_exactly(ids[torch.from_numpy(both)], count, SPLIT_SEED).numpy()]] = "val"
    return final


def draw_exactly(labels: Tensor, count: int, seed: int) -> Tensor:
    """Positions of `count` items, each class with its share; what rounding down leaves goes to the largest remainders.

    >>> drawn = draw_exactly(torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1]), 4, seed=0)
    >>> len(drawn), int((drawn < 6).sum())  # 2.67 and 1.33 of 4
    (4, 3)
    """
    shares = torch.bincount(labels).double() * count / len(labels)
    quota = shares.floor().long()
    rest = count - int(quota.sum())
    quota[(shares - quota).sort(descending=True, stable=True).indices[:rest]] += 1
    return torch.from_numpy(np.flatnonzero(_places(labels, seed) < quota[labels].numpy()))


def _places(labels: Tensor, seed: int) -> np.ndarray:
    """The place of each item in a random order of its class."""
    keys = torch.rand(len(labels), generator=torch.Generator().manual_seed(seed), dtype=torch.float64).numpy()
    order = np.lexsort((keys, labels.numpy()))
    sizes = torch.bincount(labels).numpy()
    places = np.empty(len(labels), dtype=np.int64)
    places[order] = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return places
