"""In which order images come: a function of seed, epoch and position alone."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch


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
        self.recent: dict[int, Tensor] = {}

    def epoch(self, epoch: int) -> Tensor:
        if not self.balanced:
            return epoch_order(len(self.labels), self.seed, epoch)
        recent = self.recent
        if epoch not in recent:  # two of them: a feed already asks for the next epoch while this one ends
            made = balanced_order(self.labels, self.seed, epoch)
            self.recent = recent = {**dict(list(recent.items())[-1:]), epoch: made}
        return recent[epoch]

    def positions(self, step: int) -> Tensor:
        epoch, at = divmod(step, self.steps_per_epoch)
        return self.epoch(epoch)[at * self.batch_size : (at + 1) * self.batch_size]


def seeded(seed: int, *parts: int) -> int:
    """One seed from several numbers, so that (seed 0, epoch 1) and (seed 1, epoch 0) differ."""
    value = seed
    for part in parts:
        value = (value * 1_000_003 + part + 1) % 2**63
    return value


class WindowedOrder:
    """The order of images that lie in shards, worked out a window of shards at a time: a billion need no permutation.

    Positions count through the shards one after another, `counts` in each. An epoch shuffles the shards, takes
    `window` of them at a time and shuffles the images of those among each other; so a batch mixes that many shards.
    """

    def __init__(self, counts: Sequence[int], seed: int, batch_size: int, window: int) -> None:
        self.counts, self.seed, self.batch_size, self.window = torch.tensor(counts), seed, batch_size, window
        self.firsts = self.counts.cumsum(0) - self.counts
        self.images = int(self.counts.sum())
        self.steps_per_epoch = self.images // batch_size
        self.lock = threading.Lock()  # a feed asks from threads of its own
        self.layouts: dict[int, tuple[Tensor, Tensor]] = {}
        self.windows: dict[tuple[int, int], Tensor] = {}

    def epoch(self, epoch: int) -> Tensor:
        """Nothing: there is no order of a whole epoch to look things up in; batches bring their labels."""
        return torch.empty(0, dtype=torch.long)

    def positions(self, step: int) -> Tensor:
        """The images of one step; it may reach from one window into the next."""
        epoch, at = divmod(step, self.steps_per_epoch)
        begin, end = at * self.batch_size, (at + 1) * self.batch_size
        with self.lock:
            _, ends = self._layout(epoch)
            number = int(torch.searchsorted(ends, begin, right=True))
            parts = []
            while begin < end:
                start = int(ends[number - 1]) if number else 0
                parts.append(self._window(epoch, number)[begin - start : end - start])
                begin, number = begin + len(parts[-1]), number + 1
        return torch.cat(parts)

    def _layout(self, epoch: int) -> tuple[Tensor, Tensor]:
        """The epoch's order of shards, and where each window of them ends."""
        if epoch not in self.layouts:
            order = torch.randperm(len(self.counts), generator=self._generator(epoch, 0))
            last = torch.arange(self.window - 1, len(order) + self.window - 1, self.window).clamp(max=len(order) - 1)
            made = order, self.counts[order].cumsum(0)[last]
            self.layouts = {**dict(list(self.layouts.items())[-1:]), epoch: made}
        return self.layouts[epoch]

    def _window(self, epoch: int, number: int) -> Tensor:
        """The images of one window, shuffled; the last few windows are kept."""
        if (epoch, number) not in self.windows:
            chosen = self._layout(epoch)[0][number * self.window : (number + 1) * self.window]
            counts = self.counts[chosen]
            within = torch.arange(int(counts.sum())) - (counts.cumsum(0) - counts).repeat_interleave(counts)
            every = self.firsts[chosen].repeat_interleave(counts) + within
            shuffled = every[torch.randperm(len(every), generator=self._generator(epoch, number + 1))]
            self.windows = {**dict(list(self.windows.items())[-3:]), (epoch, number): shuffled}
        return self.windows[epoch, number]

    def _generator(self, epoch: int, part: int) -> torch.Generator:
        return torch.Generator().manual_seed(seeded(self.seed, epoch, part))
