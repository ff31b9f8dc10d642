"""The order of images: a function of seed, epoch and position alone."""

from __future__ import annotations

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
    """As many positions as there are labels, every class equally often (to within one), unlabelled images once each.

    A small class repeats its images, each once before any twice; a large class gives a random subset.
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


def windowed_order(counts: Tensor, seed: int, epoch: int, window: int) -> Tensor:
    """A permutation of the images of shards, `counts` in each: of the shards, then within each window of them."""

    def generator(number: int) -> torch.Generator:
        return torch.Generator().manual_seed(derive_seed(seed, epoch, number))

    starts = counts.cumsum(0) - counts
    windows = []
    for number, shards in enumerate(torch.randperm(len(counts), generator=generator(0)).split(window), start=1):
        sizes = counts[shards]
        within = torch.arange(int(sizes.sum())) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        positions = starts[shards].repeat_interleave(sizes) + within
        windows.append(positions[torch.randperm(len(positions), generator=generator(number))])
    return torch.cat(windows)


class Order:
    """The images of each step of a run: every epoch goes through all of them, or with `unlabelled=False` through those
    with a label, as often as it takes for as many positions. A stream goes through windows of shards, `counts` in each.
    """

    def __init__(
        self, labels: Tensor, seed: int, batch_size: int, balanced: bool = False, unlabelled: bool = True,
        counts: Tensor | None = None, window: int = 1,
    ) -> None:  # fmt: skip
        self.counts, self.window = counts, window
        self.images, takes_all = len(labels), unlabelled or counts is not None
        self.members = torch.arange(self.images) if takes_all else (labels.cpu() >= 0).nonzero()[:, 0]
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
        if self.counts is not None:
            return windowed_order(self.counts, self.seed, number, self.window)
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
