"""The order of images: a function of seed, epoch and position alone."""

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


@lru_cache(maxsize=2)  # called at every step of the epoch
def epoch_order(images: int, seed: int, epoch: int) -> Tensor:
    """A permutation of range(images). Cached: do not change it in place."""
    generator = torch.Generator().manual_seed(derive_seed(seed, epoch))
    return torch.randperm(images, generator=generator)


def balanced_order(labels: Tensor, seed: int, epoch: int) -> Tensor:
    """As many positions as there are labels, with every class equally often (to within one).

    A small class repeats its images, each once before any twice; a large class gives a random subset. Unlabelled
    images come once each.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, epoch))
    members, unlabelled = (labels >= 0).nonzero()[:, 0], (labels < 0).nonzero()[:, 0]
    classes, row = torch.unique(labels[members], return_inverse=True)
    if not len(classes):
        return torch.randperm(len(labels), generator=generator)
    count = torch.bincount(row)
    slots = torch.full_like(count, len(members) // len(classes))
    slots[torch.randperm(len(classes), generator=generator)[: len(members) % len(classes)]] += 1
    rounds = (slots + count - 1) // count  # how often a class repeats its images
    repeated, repeated_class = members.repeat_interleave(rounds[row]), row.repeat_interleave(rounds[row])
    starts = rounds[row].cumsum(0) - rounds[row]
    which_round = torch.arange(len(repeated)) - starts.repeat_interleave(rounds[row])
    shuffle = torch.randperm(len(repeated), generator=generator)
    # by class, then by round, in random order within a round
    group = (repeated_class * (int(rounds.max()) + 1) + which_round)[shuffle]
    order = shuffle[group.argsort(stable=True)]
    class_starts = (count * rounds).cumsum(0) - count * rounds
    rank_in_class = torch.arange(len(order)) - class_starts[repeated_class[order]]
    selected = torch.cat([repeated[order[rank_in_class < slots[repeated_class[order]]]], unlabelled])
    return selected[torch.randperm(len(selected), generator=generator)]


class Order:
    """The images of each step of a run: every epoch goes through all of them, or with `unlabelled=False` through those
    with a label, as often as it takes for as many positions."""

    def __init__(
        self, labels: Tensor, seed: int, batch_size: int, balanced: bool = False, unlabelled: bool = True
    ) -> None:
        self.images = len(labels)
        self.members = torch.arange(self.images) if unlabelled else (labels.cpu() >= 0).nonzero()[:, 0]
        self.labels, self.seed, self.batch_size, self.balanced = labels.cpu()[self.members], seed, batch_size, balanced
        self.steps_per_epoch = self.images // batch_size
        self.cached_orders: dict[int, Tensor] = {}

    def epoch(self, epoch: int) -> Tensor:
        cached = self.cached_orders
        if epoch not in cached:  # keep two: a feed prefetches the next epoch while this one ends
            passes = -(-self.images // len(self.members))
            order = torch.cat([self.members[self._pass(epoch * passes + number)] for number in range(passes)])
            self.cached_orders = cached = {**dict(list(cached.items())[-1:]), epoch: order[: self.images]}
        return cached[epoch]

    def _pass(self, number: int) -> Tensor:
        if self.balanced:
            return balanced_order(self.labels, self.seed, number)
        return epoch_order(len(self.members), self.seed, number)

    def positions(self, step: int) -> Tensor:
        epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
        return self.epoch(epoch)[step_in_epoch * self.batch_size : (step_in_epoch + 1) * self.batch_size]


def derive_seed(seed: int, *numbers: int) -> int:
    """One seed from several numbers, so that (seed 0, epoch 1) and (seed 1, epoch 0) differ."""
    value = seed
    for number in numbers:
        value = (value * 1_000_003 + number + 1) % 2**63
    return value


class WindowedOrder:
    """The order of images in shards, computed one window of shards at a time, so that a billion images fit.

    Positions number the images of all shards in turn, `counts` in each. An epoch shuffles the shards, takes `window`
    of them at a time and shuffles their images together, so a batch mixes images of that many shards.
    """

    def __init__(self, counts: Sequence[int], seed: int, batch_size: int, window: int) -> None:
        self.counts, self.seed, self.batch_size, self.window = torch.tensor(counts), seed, batch_size, window
        self.shard_starts = self.counts.cumsum(0) - self.counts
        self.images = int(self.counts.sum())
        self.steps_per_epoch = self.images // batch_size
        self.lock = threading.Lock()  # called from the feed's threads
        self.cached_layouts: dict[int, tuple[Tensor, Tensor]] = {}
        self.cached_windows: dict[tuple[int, int], Tensor] = {}

    def epoch(self, epoch: int) -> Tensor:
        """Empty: the order of a whole epoch is never computed; batches carry their labels."""
        return torch.empty(0, dtype=torch.long)

    def positions(self, step: int) -> Tensor:
        """The images of one step, which may span two windows."""
        epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
        begin, end = step_in_epoch * self.batch_size, (step_in_epoch + 1) * self.batch_size
        with self.lock:
            _, ends = self._layout(epoch)
            number = int(torch.searchsorted(ends, begin, right=True))
            pieces = []
            while begin < end:
                start = int(ends[number - 1]) if number else 0
                pieces.append(self._window(epoch, number)[begin - start : end - start])
                begin, number = begin + len(pieces[-1]), number + 1
        return torch.cat(pieces)

    def _layout(self, epoch: int) -> tuple[Tensor, Tensor]:
        """The epoch's order of shards, and where each window of them ends."""
        if epoch not in self.cached_layouts:
            order = torch.randperm(len(self.counts), generator=self._generator(epoch, 0))
            last = torch.arange(self.window - 1, len(order) + self.window - 1, self.window).clamp(max=len(order) - 1)
            layout = order, self.counts[order].cumsum(0)[last]
            self.cached_layouts = {**dict(list(self.cached_layouts.items())[-1:]), epoch: layout}
        return self.cached_layouts[epoch]

    def _window(self, epoch: int, number: int) -> Tensor:
        """The shuffled images of one window; the last few windows are cached."""
        if (epoch, number) not in self.cached_windows:
            shards = self._layout(epoch)[0][number * self.window : (number + 1) * self.window]
            counts = self.counts[shards]
            within = torch.arange(int(counts.sum())) - (counts.cumsum(0) - counts).repeat_interleave(counts)
            positions = self.shard_starts[shards].repeat_interleave(counts) + within
            shuffled = positions[torch.randperm(len(positions), generator=self._generator(epoch, number + 1))]
            self.cached_windows = {**dict(list(self.cached_windows.items())[-3:]), (epoch, number): shuffled}
        return self.cached_windows[epoch, number]

    def _generator(self, epoch: int, number: int) -> torch.Generator:
        return torch.Generator().manual_seed(derive_seed(self.seed, epoch, number))
