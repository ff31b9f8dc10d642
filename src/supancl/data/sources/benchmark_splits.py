"""Splits that the published data lack: drawn with a fixed seed, in exactly the paper's sizes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from supancl.data.preparing import SPLIT_SEED
from supancl.data.sources.benchmark_rows import Benchmark, Use
from supancl.errors import BadInput, plural

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch


def assign_splits(name: str, row: Benchmark, official: np.ndarray, labels: np.ndarray, use: Use) -> np.ndarray:
    """The split of each image: the official one, except that trainval (or everything, if there is none) is divided.

    Few-shot has a single split with every image, called train as in any source with a single split.
    """
    if use == "few-shot":
        return np.full(len(official), "train")
    splits = official.astype("<U8")
    ids = torch.from_numpy(np.unique(labels, return_inverse=True)[1])
    if row.per_class is not None:
        train, val = row.per_class
        smallest, count = min(Counter(labels.tolist()).items(), key=lambda item: item[1])
        if count <= train + val:
            raise BadInput(
                f"{name}: class {smallest!r} has {plural(count, 'image')}; {train} + {val} of each class "
                f"are for train and val and the others for test, so at least {train + val + 1} are needed"
            )
        ranks = _rank_in_class(ids, SPLIT_SEED)
        splits = np.where(ranks < train, "train", np.where(ranks < train + val, "val", "test"))
    elif row.split is not None and (splits == "trainval").any():
        train, val, _ = row.split
        trainval = np.flatnonzero(splits == "trainval")
        count = val if len(trainval) == train + val else round(len(trainval) * val / (train + val))
        splits[trainval] = "train"
        splits[trainval[draw_exactly(ids[torch.from_numpy(trainval)], count, SPLIT_SEED).numpy()]] = "val"
    return splits


def draw_exactly(labels: Tensor, count: int, seed: int) -> Tensor:
    """Positions of `count` items, stratified by class; what rounding down leaves goes to the largest remainders.

    >>> drawn = draw_exactly(torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1]), 4, seed=0)
    >>> len(drawn), int((drawn < 6).sum())  # 2.67 and 1.33 of 4
    (4, 3)
    """
    exact_counts = torch.bincount(labels).double() * count / len(labels)
    quota = exact_counts.floor().long()
    remainder = count - int(quota.sum())
    quota[(exact_counts - quota).sort(descending=True, stable=True).indices[:remainder]] += 1
    return torch.from_numpy(np.flatnonzero(_rank_in_class(labels, seed) < quota[labels].numpy()))


def _rank_in_class(labels: Tensor, seed: int) -> np.ndarray:
    """The rank of each item in a random order of its class."""
    keys = torch.rand(len(labels), generator=torch.Generator().manual_seed(seed), dtype=torch.float64).numpy()
    order = np.lexsort((keys, labels.numpy()))
    sizes = torch.bincount(labels).numpy()
    ranks = np.empty(len(labels), dtype=np.int64)
    ranks[order] = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return ranks
