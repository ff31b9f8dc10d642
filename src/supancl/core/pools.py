"""The target pool Q in its three designs: one queue, one queue per class, one prototype per class.

`push(targets, labels)` stores, `class_mean(labels, fallback)` gives z_sup of Eq. 2, `stored()` gives
everything to a contrastive loss. All state is in buffers, so it is saved and moved with the module, and
nothing here waits for the device: sizes are fixed and counters are tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supancl.core.specs import PoolSpec as PoolSpec  # where it was
from supancl.distributed import Part, Ranks

EMPTY = -2  # the label of a slot that holds nothing
UNLABELLED = -1  # that of a target without a label


class Stored(NamedTuple):
    """What a pool holds, slot by slot; `valid` is False where a slot is still empty."""

    targets: Tensor
    labels: Tensor
    valid: Tensor


class Pool(nn.Module, ABC):
    """What the losses and the monitor know of a pool; the two times are for its staleness, and may be left out."""

    clock: Tensor  # how often `push` was called
    born: Tensor  # (slots,): the clock when a slot was last written

    @property
    @abstractmethod
    def counts(self) -> Tensor:
        """(classes,): how many targets of each class are held."""

    @abstractmethod
    def push(self, targets: Tensor, labels: Tensor) -> None:
        """Store detached targets (B, D) with their labels (B,); -1 is unlabelled."""

    @abstractmethod
    def class_mean(
        self, labels: Tensor, fallback: Tensor, samples: int | None = None, part: Part | None = None
    ) -> Tensor:
        """Per label the mean of the held targets of that class; `fallback` (..., B, D) where there is none.

        `samples` draws that many with replacement, anew for every anchor, instead of taking all: for every anchor of
        the batch that these labels are a `part` of, so that each gets the same wherever it is.
        """

    @abstractmethod
    def stored(self) -> Stored:
        """Everything held."""

    def coverage(self, classes: Sequence[int] | None = None) -> Tensor:
        """Share of these classes, or of all, of which at least one target is held; not a number of no class."""
        held = self.counts > 0
        return (held if classes is None else held[self._places(classes)]).double().mean()

    def _places(self, classes: Sequence[int]) -> list[int]:
        """Where `counts` has these classes."""
        return list(classes)

    def staleness(self) -> Tensor:
        """Mean age of the held targets, in pushes; not a number of a pool that keeps no times."""
        if not hasattr(self, "clock") or not hasattr(self, "born"):
            return torch.tensor(torch.nan, dtype=torch.float64)
        valid = self.stored().valid
        ages = (self.clock - self.born[: len(valid)]).double() * valid
        return ages.sum() / valid.sum().clamp(min=1)


class _Rings(Pool):
    """Rings of equal length, each overwriting its oldest target; `Queue` is one ring, `ClassQueues` one per class.

    The mean over all positives must not cost more as the pool grows, so sums per class run along in float64:
    added on entry, subtracted on exit, set to zero where none is left. Counts are float64 too: it holds them exactly,
    and the compiler knows no addition at an index of integers, for which it would sort (some ten kernels on a GPU).
    """

    targets: Tensor
    labels: Tensor
    pointers: Tensor
    sums: Tensor
    tally: Tensor

    def __init__(self, rings: int, size: int, width: int, classes: int) -> None:
        super().__init__()
        self.rings, self.size, self.classes = rings, size, classes
        slots = rings * size
        # one slot more than there are: rows that are not to be stored are written there, so that shapes never change
        self.register_buffer("targets", torch.zeros(slots + 1, width))
        self.register_buffer("labels", torch.full((slots + 1,), EMPTY))
        self.register_buffer("born", torch.zeros(slots + 1, dtype=torch.long))
        self.register_buffer("pointers", torch.zeros(rings, dtype=torch.long))
        self.register_buffer("clock", torch.zeros((), dtype=torch.long))
        # one class more, for targets without a label
        self.register_buffer("sums", torch.zeros(classes + 1, width, dtype=torch.float64))
        self.register_buffer("tally", torch.zeros(classes + 1, dtype=torch.float64))

    @property
    def counts(self) -> Tensor:
        return self.tally[:-1].long()

    @abstractmethod
    def _slots(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Where each row is to be stored, and which rows are stored at all; the rings' pointers move on."""

    @torch.no_grad()
    def push(self, targets: Tensor, labels: Tensor) -> None:
        _check_labels(labels, self.classes)
        targets = targets.detach().to(self.targets.dtype)
        slot, stored = self._slots(labels)
        slot = torch.where(stored, slot, self.rings * self.size)
        labels = torch.where(stored, labels, EMPTY)  # the slot that is none stays empty
        self.clock += 1
        self._account(self.targets[slot], self.labels[slot], targets, labels)
        self.targets[slot] = targets
        self.labels[slot] = labels
        self.born[slot] = self.clock

    def _account(self, left: Tensor, left_labels: Tensor, came: Tensor, came_labels: Tensor) -> None:
        """The sums and counts of the classes without what has left and with what came."""
        labels = torch.cat([left_labels, came_labels])
        known = labels >= 0
        row = torch.where(known, labels, self.classes)
        change = known.to(self.tally.dtype)
        change[: len(left)].neg_()
        self.tally.index_add_(0, row, change)
        self.sums.index_add_(0, row, torch.cat([-left, came]).to(self.sums.dtype))
        # what rounding left behind goes with the last target; the row of no class, which counts none, is always cleared
        self.sums.index_fill_(0, torch.where(self.tally[row] > 0, self.classes, row), 0.0)

    def class_mean(
        self, labels: Tensor, fallback: Tensor, samples: int | None = None, part: Part | None = None
    ) -> Tensor:
        _check_labels(labels, self.classes)
        row = torch.where(labels >= 0, labels, self.classes)
        count = self.tally[row]
        if samples is None:
            mean = self.sums[row] / count.clamp(min=1)[:, None]
        else:
            mean = self._sampled(row, count, samples, fallback.shape[:-1], part)
        return torch.where((count > 0)[:, None], mean.to(fallback.dtype), fallback)

    def _sampled(self, row: Tensor, count: Tensor, samples: int, shape: torch.Size, part: Part | None) -> Tensor:
        """The mean of `samples` draws with replacement, drawn anew for every anchor."""
        # sorting by label makes each class one run of slots, so that a draw is an offset into it
        label, tally, count = self.labels[:-1], self.tally.long(), count.long()
        order = torch.where(label >= 0, label, self.classes).argsort(stable=True)
        first = tally.cumsum(0) - tally
        part = part or Part(0, len(row), len(row))
        chance = part.of(torch.rand(*shape[:-1], part.total, samples, device=row.device), -2)
        draws = (chance * count[:, None]).long()
        offset = torch.minimum(draws, (count - 1).clamp(min=0)[:, None])
        chosen = order[(first[row][:, None] + offset).clamp(max=len(order) - 1)]
        return self.targets[chosen].mean(-2)

    def stored(self) -> Stored:
        labels = self.labels[:-1]
        return Stored(self.targets[:-1], labels, labels != EMPTY)


class Queue(_Rings):
    """The class-agnostic queue: the last `size` targets of whatever class. Any size and any batch fit.

    `unlabelled=True` stores targets without a label too: negatives for a contrastive loss.
    """

    def __init__(self, size: int, width: int, classes: int, unlabelled: bool = False) -> None:
        super().__init__(1, size, width, classes)
        self.unlabelled = unlabelled

    @torch.no_grad()
    def fill_randomly(self) -> None:
        """Fill every slot with a random unit vector without a label: a negative for all anchors, a positive for none.

        Drawn from torch's global generator, which a run seeds before its weights are drawn.
        """
        self.targets[:-1] = F.normalize(torch.randn_like(self.targets[:-1]), dim=1)
        self.labels[:-1] = UNLABELLED

    def _slots(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        keep = torch.ones_like(labels, dtype=torch.bool) if self.unlabelled else labels >= 0
        total, rank = keep.sum(0, keepdim=True), keep.cumsum(0) - 1
        slot = (self.pointers + rank) % self.size
        self.pointers.add_(total).remainder_(self.size)
        return slot, _last(keep, total - rank, self.size)


class ClassQueues(_Rings):
    """One queue of `size` targets for each class, so that no class is ever crowded out."""

    def __init__(self, size: int, width: int, classes: int) -> None:
        super().__init__(classes, size, width, classes)

    def _slots(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        ring, keep = labels.clamp(min=0), labels >= 0
        total, rank = _rank_within(ring, keep, self.rings)
        slot = ring * self.size + (self.pointers[ring] + rank) % self.size
        self.pointers.add_(total).remainder_(self.size)
        return slot, _last(keep, total[ring] - rank, self.size)


class Prototypes(Pool):
    """One moving average per class (the "learnable" pool of Table 7): first sight initialises, then

    prototype <- rate * prototype + (1 - rate) * mean of the batch's targets of that class, once per push.
    """

    prototypes: Tensor
    seen: Tensor

    def __init__(self, width: int, classes: int, rate: float = 0.9) -> None:
        super().__init__()
        self.rate, self.classes = rate, classes
        # one row more, where unlabelled targets are written
        self.register_buffer("prototypes", torch.zeros(classes + 1, width))
        self.register_buffer("seen", torch.zeros(classes + 1, dtype=torch.bool))
        self.register_buffer("born", torch.zeros(classes + 1, dtype=torch.long))
        self.register_buffer("clock", torch.zeros((), dtype=torch.long))

    @property
    def counts(self) -> Tensor:
        return self.seen[:-1].long()

    @torch.no_grad()
    def push(self, targets: Tensor, labels: Tensor) -> None:
        _check_labels(labels, self.classes)
        targets = targets.detach().to(self.prototypes.dtype)
        # only rows of the batch's classes are touched, so the cost does not grow with the number of classes;
        # samples of one class all write the same value
        same = (labels[:, None] == labels[None, :]).to(targets.dtype)
        mean = same @ targets / same.sum(1, keepdim=True)
        row = self._row_of(labels)
        self.clock += 1
        self.prototypes[row] = torch.where(
            self.seen[row][:, None], torch.lerp(mean, self.prototypes[row], self.rate), mean
        )
        self.born[row] = self.clock
        self.seen.index_fill_(0, row, True)
        self.seen[-1].fill_(False)

    def class_mean(
        self, labels: Tensor, fallback: Tensor, samples: int | None = None, part: Part | None = None
    ) -> Tensor:
        _check_labels(labels, self.classes)
        row = self._row_of(labels)
        return torch.where(self.seen[row][:, None], self.prototypes[row].to(fallback.dtype), fallback)

    def _row_of(self, labels: Tensor) -> Tensor:
        """Where a label's prototype is; the last row for what has none."""
        return torch.where(labels >= 0, labels, self.classes)

    def stored(self) -> Stored:
        labels = torch.arange(self.classes, device=self.seen.device)
        return Stored(self.prototypes[:-1], labels, self.seen[:-1])


class ShardedPrototypes(Prototypes):
    """Prototypes of very many classes: each rank holds those of every so manyth class, and tells the others.

    A look-up takes the labels of the whole batch and one sum over the ranks, to which the holder of a class brings
    its prototype and all others zeros. Coverage and staleness are those of the classes held here.
    """

    def __init__(self, width: int, classes: int, rate: float, ranks: Ranks) -> None:
        super().__init__(width, len(range(ranks.rank, classes, ranks.size)), rate)
        self.held, self.classes, self.ranks = self.classes, classes, ranks

    def _row_of(self, labels: Tensor) -> Tensor:
        mine = (labels >= 0) & (labels % self.ranks.size == self.ranks.rank)
        return torch.where(mine, labels // self.ranks.size, self.held)

    def class_mean(
        self, labels: Tensor, fallback: Tensor, samples: int | None = None, part: Part | None = None
    ) -> Tensor:
        part = part or Part(0, len(labels), len(labels))
        _check_labels(labels, self.classes)
        row = self._row_of(labels if part.whole else self.ranks.gather(labels, part.total))
        known = torch.cat([self.prototypes[row], self.seen[row][:, None].to(self.prototypes.dtype)], dim=1)
        known = part.of(self.ranks.summed(torch.where(row[:, None] < self.held, known, 0.0)))
        return torch.where(known[:, -1:] > 0, known[:, :-1].to(fallback.dtype), fallback)

    def stored(self) -> Stored:
        labels = torch.arange(self.ranks.rank, self.classes, self.ranks.size, device=self.seen.device)
        return Stored(self.prototypes[:-1], labels, self.seen[:-1])

    def _places(self, classes: Sequence[int]) -> list[int]:
        return [label // self.ranks.size for label in classes if label % self.ranks.size == self.ranks.rank]

    def state_dict(self, *args: Any, **named: Any) -> Any:
        """That of all classes, on the first rank: what one process would hold. Every rank must ask for it."""
        kept = super().state_dict(*args, **named)
        return {name: value if value.ndim == 0 else self._of_all(value) for name, value in kept.items()}

    def _of_all(self, rows: Tensor) -> Tensor:
        """Elsewhere than on the first rank its own rows: all of them would not fit the hosts of all ranks."""
        size, most = self.ranks.size, -(-self.classes // self.ranks.size)
        spare = rows.new_zeros(most - self.held, *rows.shape[1:])
        shards = self.ranks.to_first(torch.cat([rows[:-1], spare]))
        if not shards:
            return rows
        everyones = shards[0].new_empty(self.classes + 1, *rows.shape[1:])
        for rank, shard in enumerate(shards):
            everyones[rank : self.classes : size] = shard[: len(range(rank, self.classes, size))]
        everyones[-1:] = rows[-1:]
        return everyones

    def load_state_dict(self, state_dict: Any, *args: Any, **named: Any) -> Any:
        shard = slice(self.ranks.rank, self.classes, self.ranks.size)
        own = {
            name: value if value.ndim == 0 else torch.cat([value[:-1][shard], value[-1:]])
            for name, value in state_dict.items()
        }
        return super().load_state_dict(own, *args, **named)


def _last(keep: Tensor, behind: Tensor, size: int) -> Tensor:
    """Of more than a ring holds, the last ones stay; `behind` counts those of its ring from a row on, itself too."""
    return keep if len(keep) <= size else keep & (behind <= size)


def _rank_within(ring: Tensor, keep: Tensor, rings: int) -> tuple[Tensor, Tensor]:
    """How many kept rows each ring gets, and each kept row's place among those of its ring, in order."""
    total = torch.zeros(rings, dtype=torch.float64, device=ring.device).index_add_(0, ring, keep.double()).long()
    order = torch.where(keep, ring, rings).argsort(stable=True)
    first = total.cumsum(0) - total
    rank = torch.empty_like(ring)
    rank[order] = torch.arange(len(ring), device=ring.device) - first[ring[order]]
    return total, rank


def _check_labels(labels: Tensor, classes: int) -> None:
    # on a GPU this would wait for the device, and it would cut what is compiled in two; there an index fails by itself
    if labels.device.type != "cpu" or torch.compiler.is_compiling():
        return
    if labels.numel() and int(labels.max()) >= classes:
        raise ValueError(f"label {int(labels.max())} in a pool made for {classes} classes")
