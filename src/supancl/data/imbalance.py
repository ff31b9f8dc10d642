"""A long tail on purpose (`data.imbalance`): the first class keeps its images, the last one a fraction of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

SEED = 20244  # fixed, as for what is held out: every run has the same tail


def long_tail_sizes(sizes: list[int], ratio: float) -> list[int]:
    """How many images each class keeps: from the largest size down to a `ratio`-th of it, in equal factors.

    A class with fewer images keeps those that it has, and every class keeps at least one.

    >>> long_tail_sizes([100, 100, 100], 100.0), long_tail_sizes([100, 5, 100], 100.0)
    ([100, 10, 1], [100, 5, 1])
    """
    steps = max(len(sizes) - 1, 1)
    targets = [round(max(sizes, default=0) * ratio ** (-number / steps)) for number in range(len(sizes))]
    return [min(size, max(target, 1)) for size, target in zip(sizes, targets, strict=True)]


def draw_long_tail(labels: Tensor, ratio: float) -> Tensor:
    """Positions of the images that are kept, in order; all unlabelled ones are."""
    classes, counts = torch.unique(labels[labels >= 0], return_counts=True)
    generator = torch.Generator().manual_seed(SEED)
    positions = [(labels < 0).nonzero()[:, 0]]
    for number, size in zip(classes.tolist(), long_tail_sizes(counts.tolist(), ratio), strict=True):
        members = (labels == number).nonzero()[:, 0]
        positions.append(members[torch.randperm(len(members), generator=generator)[:size].to(members.device)])
    return torch.cat(positions).sort().values
