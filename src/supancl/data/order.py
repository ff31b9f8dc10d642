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


def balanced_order(labels: Tensor, seed: int, epoch: int) -> Tensor:
    """As many positions as there are labels, every class equally often (to within one).

    A class with too few images gives each of them once before any of them twice; one with too many gives a random
    part of them. Unlabelled images come once each, as ever.
    """
    generator = torch.Generator().manual_seed(seeded(seed, epoch))
    members, unlabelled = (labels >= 0).nonzero()[:, 0], (labels < 0).nonzero()[:, 0]
    classes, row = torch.unique(labels[members], return_inverse=True)
    if not len(classes):
        return torch.randperm(len(labels), generator=generator)
    count = torch.bincount(row)
    slots = torch.full_like(count, len(members) // len(classes))
    slots[torch.randperm(len(classes), generator=generator)[: len(members) % len(classes)]] += 1
    rounds = (slots + count - 1) // count  # how often a class must go through its images
    chosen, of_class = members.repeat_interleave(rounds[row]), row.repeat_interleave(rounds[row])
    starts = rounds[row].cumsum(0) - rounds[row]
    which_round = torch.arange(len(chosen)) - starts.repeat_interleave(rounds[row])
    shuffled = torch.randperm(len(chosen), generator=generator)
    # by class, then by round, in random order within a round
    group = (of_class * (int(rounds.max()) + 1) + which_round)[shuffled]
    order = shuffled[group.argsort(stable=True)]
    first = (count * rounds).cumsum(0) - count * rounds
    place = torch.arange(len(order)) - first[of_class[order]]
    taken = torch.cat([chosen[order[place < slots[of_class[order]]]], unlabelled])
    return taken[torch.randperm(len(taken), generator=generator)]


class Order:
    """Which images each step of a run takes."""

    def __init__(self, labels: Tensor, seed: int, batch_size: int, balanced: bool = False) -> None:
        self.labels, self.seed, self.batch_size, self.balanced = labels.cpu(), seed, batch_size, balanced
        self.steps_per_epoch = len(labels) // batch_size
        self.kept: dict[int, Tensor] = {}

    def epoch(self, epoch: int) -> Tensor:
        if not self.balanced:
            return epoch_order(len(self.labels), self.seed, epoch)
        kept = self.kept
        if epoch not in kept:  # two of them: a feed already asks for the next epoch while this one ends
            self.kept = kept = {**dict(list(kept.items())[-1:]), epoch: balanced_order(self.labels, self.seed, epoch)}
        return kept[epoch]

    def positions(self, step: int) -> Tensor:
        epoch, at = divmod(step, self.steps_per_epoch)
        return self.epoch(epoch)[at * self.batch_size : (at + 1) * self.batch_size]


def seeded(seed: int, *parts: int) -> int:
    """One seed from several numbers, so that (seed 0, epoch 1) and (seed 1, epoch 0) differ."""
    value = seed
    for part in parts:
        value = (value * 1_000_003 + part + 1) % 2**63
    return value
