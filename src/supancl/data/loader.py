"""In which order images come: a function of seed, epoch and position alone."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=2)  # it is asked for at every step of the epoch
def epoch_order(images: int, seed: int, epoch: int) -> Tensor:
    """A permutation of range(images); not to be changed in place."""
    generator = torch.Generator().manual_seed(seeded(seed, epoch))
    return torch.randperm(images, generator=generator)


def seeded(seed: int, *parts: int) -> int:
    """One seed from several numbers, so that (seed 0, epoch 1) and (seed 1, epoch 0) differ."""
    value = seed
    for part in parts:
        value = (value * 1_000_003 + part + 1) % 2**63
    return value
