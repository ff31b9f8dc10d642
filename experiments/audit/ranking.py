"""How well a score ranks wrong labels above right ones."""

from __future__ import annotations

import torch
from torch import Tensor


def roc_area(score: Tensor, is_wrong: Tensor) -> float:
    """The probability that a wrong label has a higher score than a right one; ties count half.

    >>> roc_area(torch.tensor([3.0, 2.0, 1.0, 0.0]), torch.tensor([True, False, True, False]))
    0.75
    """
    _, place, counts = torch.unique(score.double(), return_inverse=True, return_counts=True)
    rank = counts.cumsum(0) - (counts.double() - 1) / 2  # mean rank of equal scores, from 1
    wrong = int(is_wrong.sum())
    return float((rank[place][is_wrong].sum() - wrong * (wrong + 1) / 2) / (wrong * (len(score) - wrong)))
