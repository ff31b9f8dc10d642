"""The target pool Q in its three designs: one queue, one queue per class, one prototype per class.

`push(targets, labels)` stores targets, `class_mean(labels, fallback)` returns z_sup of Eq. 2, `stored()` returns
everything for a contrastive loss. Labels are tensors as steps carry them (labels.py): one label per sample, or several
or soft ones. All state is in buffers, so it is saved and moved with the module. Nothing here waits for the device:
sizes are fixed and counters are tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supancl.core.labels import Labels, as_integers, check_classes, draw_column, weight_of_class
from supancl.core.specs import PoolSpec as PoolSpec
from supancl.distributed import SINGLE_PROCESS, Ranks, RowRange
from supancl.errors import BadInput

EMPTY = -2  # label of an empty slot
UNLABELLED = -1  # label of a target without a label


class Stored(NamedTuple):
    """The content of a pool, slot by slot; `valid` is False for empty slots. `labels` are as a step carries them."""

    targets: Tensor
    labels: Tensor
    valid: Tensor


class Pool(nn.Module, ABC):
    """The interface of a pool. `clock` and `born` are for its staleness and are optional."""

    clock: Tensor  # how often `push` was called
    born: Tensor  # (slots,): the clock when a slot was last written

    @property
    @abstractmethod
    def counts(self) -> Tensor:
        """(classes,): how many targets of each class are stored."""

    @abstractmethod
    def push(self, targets: Tensor, labels: Tensor) -> None:
        """Store detached targets (B, D) with their labels."""

    @abstractmethod
    def class_mean(
        self, labels: Tensor, fallback: Tensor, samples: int | None = None, row_range: RowRange | None = None
    ) -> Tensor:
        """For each sample sum_c w_c (c is stored ? mean_c : fallback) / sum_c w_c; without a label the fallback.

        With `samples`, that many are drawn with replacement for each anchor of the whole batch, of which these labels
        are `row_range`, so that the draws do not depend on the ranks.
        """

    def all_means(self) -> tuple[Tensor, Tensor]:
        """(classes, D): the mean of each class, at least in float32; and (classes,): which classes are in the pool."""
        raise BadInput(f"{type(self).__name__} has no all_means, which the loss 'semi' needs; set pool.kind=queue")

    @abstractmethod
    def stored(self) -> Stored:
        """All slots."""

    def coverage(self, classes: Sequence[int] | None = None) -> Tensor:
        """Fraction of these classes, or of all, with at least one stored target; nan if there are no classes."""
        has_target = self.counts > 0
        return (has_target if classes is None else has_target[list(classes)]).double().mean()

    def staleness(self) -> Tensor:
        """Mean age of the stored targets, in pushes; nan if the pool does not record times."""
        if not hasattr(self, "clock") or not hasattr(self, "born"):
            return torch.tensor(torch.nan, dtype=torch.float64)
        valid = self.stored().valid
        ages = (self.clock - self.born[: len(valid)]).double() * valid
        return ages.sum() / valid.sum().clamp(min=1)


class Rings(Pool):
    """Rings of equal length, each overwriting its oldest target; `Queue` is one ring, `ClassQueues` one per class.

    The mean over all positives must not cost more as the pool grows, so float64 sums per class are kept up to date:
    added on entry, subtracted on exit, set to zero when a class is empty. Counts are float64 too: they stay exact, and
    the compiler would implement index_add_ of integers by sorting (about ten kernels on a GPU). A slot keeps the
    float32 weight that was added, so exactly that is subtracted again; which classes are held is decided by counts.
    """

    targets: Tensor  # (slots + 1, D); the extra slot is for rows that are not stored, so that shapes never change
    labels: Tensor  # (slots + 1, E), or (slots + 1,) for one label of weight 1
    weights: Tensor  # (slots + 1, E), of several or soft labels
    pointers: Tensor
    sums: Tensor  # (classes + 1, D); the extra class is for targets without a label
    mass: Tensor  # (classes + 1,): sums of the stored weights, of several or soft labels
    tally: Tensor  # (classes + 1,): how many entries each class has

    def __init__(self, rings: int, size: int, width: int, classes: int, pairs: int, entries: int) -> None:
        """`pairs` is the number of labels per sample, 0 for one of weight 1; `entries` are the labels of a slot."""
        super().__init__()
        self.rings, self.size, self.classes, self.has_weights = rings, size, classes, pairs > 0
        slots, labels = rings * size, (rings * size + 1, *[entries] * self.has_weights)
        self.register_buffer("targets", torch.zeros(slots + 1, width))
        self.register_buffer("labels", torch.full(labels, EMPTY))
        self.register_buffer("born", torch.zeros(slots + 1, dtype=torch.long))
        self.register_buffer("pointers", torch.zeros(rings, dtype=torch.long))
        self.register_buffer("clock", torch.zeros((), dtype=torch.long))
        self.register_buffer("sums", torch.zeros(classes + 1, width, dtype=torch.float64))
        self.register_buffer("tally", torch.zeros(classes + 1, dtype=torch.float64))
        if self.has_weights:
            self.register_buffer("weights", torch.zeros(labels))
            self.register_buffer("mass", torch.zeros(classes + 1, dtype=torch.float64))

    @property
    def counts(self) -> Tensor:
        return self.tally[:-1].long()

    def _row_of(self, classes: Tensor) -> Tensor:
        """The row of a class in the sums; the extra one for no class."""
        return torch.where(classes >= 0, classes, self.classes)

    @abstractmethod
    def _assign_slots(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The slot of each row with one of its labels, and which rows are stored; moves the pointers of the rings."""

    @torch.no_grad()
    def push(self, targets: Tensor, labels: Tensor) -> None:
        check_classes(labels, self.classes)
        targets = targets.detach().to(self.targets.dtype)
        if self.has_weights:
            read = Labels.of(labels)
            classes, weights = read.classes, read.weights
            if classes.shape[1] > self.labels.shape[1] == 1:  # a target with several labels is one of several queues
                targets = targets.repeat_interleave(classes.shape[1], dim=0)
                classes, weights = classes.reshape(-1, 1), weights.reshape(-1, 1)
            slot, keep = self._assign_slots(classes.amax(1))
        else:
            classes, weights = labels.long() if labels.ndim == 1 else Labels.of(labels).single, None
            slot, keep = self._assign_slots(classes)
        slot = torch.where(keep, slot, self.rings * self.size)
        classes = torch.where(keep if weights is None else keep[:, None], classes, EMPTY)  # the extra slot stays empty
        self.clock += 1
        self._move_sums(slot, targets, classes, weights)
        self.targets[slot] = targets
        self.labels[slot] = classes
        self.born[slot] = self.clock

    def _move_sums(self, slot: Tensor, targets: Tensor, classes: Tensor, weights: Tensor | None) -> None:
        """Update sums and counts of the classes for what leaves these slots and what enters them."""
        leaving, labels = self.targets[slot], torch.cat([self.labels[slot], classes])
        row, change = self._row_of(labels), (labels >= 0).to(self.tally.dtype)
        change[: len(slot)].neg_()
        if weights is None:
            self.tally.index_add_(0, row, change)
            self.sums.index_add_(0, row, torch.cat([-leaving, targets]).to(self.sums.dtype))
        else:
            moved = torch.cat([leaving, targets]).to(self.sums.dtype)
            weights = torch.where(classes >= 0, weights, 0.0).to(self.weights.dtype)
            signed = change * torch.cat([self.weights[slot], weights])
            for column in range(row.shape[1]):  # one at a time: no tensor of (2B, E, D)
                self.tally.index_add_(0, row[:, column], change[:, column])
                self.mass.index_add_(0, row[:, column], signed[:, column])
                self.sums.index_add_(0, row[:, column], signed[:, column, None] * moved)
            self.weights[slot] = weights
        # clear rounding errors of classes that became empty, and always the extra row
        emptied = torch.where(self.tally[row] > 0, self.classes, row).flatten()
        self.sums.index_fill_(0, emptied, 0.0)
        if weights is not None:
            self.mass.index_fill_(0, emptied, 0.0)

    def class_mean(
        self, labels: Tensor, fallback: Tensor, samples: int | None = None, row_range: RowRange | None = None
    ) -> Tensor:
        check_classes(labels, self.classes)
        if samples is not None:
            return self._mean_of_samples(Labels.of(labels), samples, fallback, row_range)
        if not self.has_weights:
            row = self._row_of(labels.long() if labels.ndim == 1 else Labels.of(labels).single)
            count = self.tally[row]
            mean = self.sums[row] / count.clamp(min=1)[:, None]
            return torch.where((count > 0)[:, None], mean.to(fallback.dtype), fallback)
        read = Labels.of(labels)
        row = self._row_of(read.classes)
        is_held, shares = self.tally[row] > 0, read.shares(self.sums.dtype)
        mass = torch.where(is_held, self.mass[row], 1.0)  # sums of classes without an entry are zero
        pooled = torch.zeros(len(row), self.sums.shape[1], dtype=self.sums.dtype, device=row.device)
        for column in range(row.shape[1]):
            pooled += shares[:, column, None] * (self.sums[row[:, column]] / mass[:, column, None])
        own = torch.where(is_held, 0.0, shares).sum(1) + (~read.is_labelled)
        return pooled.to(fallback.dtype) + own[:, None].to(fallback.dtype) * fallback

    def _mean_of_samples(self, labels: Labels, samples: int, fallback: Tensor, row_range: RowRange | None) -> Tensor:
        """The mean of draws with replacement; with weights of a class by the sample's, then an entry by theirs."""
        row = self._row_of(labels.classes)
        row_range = row_range or RowRange(0, len(row), len(row))
        shape = (*fallback.shape[:-2], row_range.total, samples)  # of all draws
        # sorted by class, each class is one range of entries, and a draw is an offset into it
        stored, count = self.labels[:-1].flatten(), self.tally.long()
        order = self._row_of(stored).argsort(stable=True)
        first = count.cumsum(0) - count
        if not self.has_weights:
            uniform = row_range.select(torch.rand(shape, device=row.device), -2)
            offset = torch.minimum((uniform * count[row]).long(), (count[row] - 1).clamp(min=0))
            drawn = self.targets[order[(first[row] + offset).clamp(max=len(order) - 1)]]
            return torch.where(count[row] > 0, drawn.mean(-2).to(fallback.dtype), fallback)
        cumulative = as_integers(self.weights[:-1].flatten()[order]).cumsum(0)
        last = (first + count - 1).clamp(min=0)
        before = torch.where(first > 0, cumulative[(first - 1).clamp(min=0)], 0)
        uniform = row_range.select(torch.rand((*shape, 2), device=row.device), -3).double()
        column = draw_column(labels.weights, uniform[..., 0])
        drawn_row = torch.take_along_dim(row.expand(*column.shape[:-1], -1), column, -1)
        mass = cumulative[last[drawn_row]] - before[drawn_row]
        position = torch.searchsorted(cumulative, before[drawn_row] + (uniform[..., 1] * mass).long(), right=True)
        position = torch.minimum(torch.maximum(position, first[drawn_row]), last[drawn_row])
        drawn = self.targets[order[position.clamp(max=len(order) - 1)] // self.labels.shape[1]]
        is_held = (count[drawn_row] > 0)[..., None]
        return torch.where(is_held, drawn.to(fallback.dtype), fallback[..., None, :]).mean(-2)

    def all_means(self) -> tuple[Tensor, Tensor]:
        is_held = self.tally[:-1] > 0
        mass = torch.where(is_held, (self.mass if self.has_weights else self.tally)[:-1], 1.0)
        return (self.sums[:-1] / mass[:, None]).to(self.targets.dtype), is_held

    def stored(self) -> Stored:
        labels = self.labels[:-1]
        if not self.has_weights:
            return Stored(self.targets[:-1], labels, labels != EMPTY)
        return Stored(self.targets[:-1], Labels(labels, self.weights[:-1]).tensor, labels[:, 0] != EMPTY)


class Queue(Rings):
    """The class-agnostic queue: the last `size` targets of any class, each with its up to `pairs` labels.

    `unlabelled=True` also stores targets without a label, as negatives for a contrastive loss.
    """

    def __init__(self, size: int, width: int, classes: int, unlabelled: bool = False, pairs: int = 0) -> None:
        super().__init__(1, size, width, classes, pairs, entries=max(1, pairs))
        self.unlabelled = unlabelled

    @torch.no_grad()
    def fill_randomly(self) -> None:
        """Fill every slot with a random unit vector, by torch's global generator: a negative for every anchor."""
        self.targets[:-1] = F.normalize(torch.randn_like(self.targets[:-1]), dim=1)
        self.labels[:-1] = UNLABELLED

    def _assign_slots(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        keep = torch.ones_like(labels, dtype=torch.bool) if self.unlabelled else labels >= 0
        total, rank = keep.sum(0, keepdim=True), keep.cumsum(0) - 1
        slot = (self.pointers + rank) % self.size
        self.pointers.add_(total).remainder_(self.size)
        return slot, _keep_newest(keep, total - rank, self.size)


class ClassQueues(Rings):
    """One queue of `size` targets per class, so that rare classes stay; one with several labels is in several."""

    def __init__(self, size: int, width: int, classes: int, pairs: int = 0) -> None:
        super().__init__(classes, size, width, classes, pairs, entries=1)

    def _assign_slots(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        ring, keep = labels.clamp(min=0), labels >= 0
        total = torch.zeros(self.rings, dtype=torch.float64, device=ring.device)
        total = total.index_add_(0, ring, keep.double()).long()
        order = torch.where(keep, ring, self.rings).argsort(stable=True)
        first = total.cumsum(0) - total
        rank = torch.empty_like(ring)  # the position of each kept row within its ring
        rank[order] = torch.arange(len(ring), device=ring.device) - first[ring[order]]
        slot = ring * self.size + (self.pointers[ring] + rank) % self.size
        self.pointers.add_(total).remainder_(self.size)
        return slot, _keep_newest(keep, total[ring] - rank, self.size)


class Prototypes(Pool):
    """One moving average per class (the "learnable" pool of Table 7): the first push initialises, then

    prototype <- rate * prototype + (1 - rate) * mean of the batch's targets of that class, once per push. With
    several `ranks`, each holds every world_size-th class: a look-up gathers the labels of the whole batch and sums over
    the ranks, and coverage and staleness are those of this rank's classes.
    """

    prototypes: Tensor  # (classes here + 1, D); the extra row is for what has no class here
    seen: Tensor

    def __init__(self, width: int, classes: int, rate: float = 0.9, ranks: Ranks = SINGLE_PROCESS) -> None:
        super().__init__()
        self.rate, self.classes, self.ranks = rate, classes, ranks
        self.classes_here = len(range(ranks.rank, classes, ranks.size))
        self.register_buffer("prototypes", torch.zeros(self.classes_here + 1, width))
        self.register_buffer("seen", torch.zeros(self.classes_here + 1, dtype=torch.bool))
        self.register_buffer("born", torch.zeros(self.classes_here + 1, dtype=torch.long))
        self.register_buffer("clock", torch.zeros((), dtype=torch.long))

    @property
    def counts(self) -> Tensor:
        return self.seen[:-1].long()

    def _row_of(self, classes: Tensor) -> Tensor:
        """The row of a class's prototype; the last row for no class, or one of another rank."""
        if self.ranks.size == 1:
            return torch.where(classes >= 0, classes, self.classes)
        is_here = (classes >= 0) & (classes % self.ranks.size == self.ranks.rank)
        return torch.where(is_here, classes // self.ranks.size, self.classes_here)

    @torch.no_grad()
    def push(self, targets: Tensor, labels: Tensor) -> None:
        check_classes(labels, self.classes)
        targets = targets.detach().to(self.prototypes.dtype)
        # only rows of the batch's classes are written, so the cost does not grow with the number of classes;
        # all samples of a class write the same value
        if labels.ndim == 1:
            classes, members = labels, (labels[:, None] == labels).to(targets.dtype)
        else:
            classes = Labels.of(labels).classes.flatten()
            members = weight_of_class(classes, Labels.of(labels), targets.dtype)  # (B * L, B)
        total = members.sum(1, keepdim=True)
        row, mean = self._row_of(classes), members @ targets / torch.where(total > 0, total, 1.0)
        self.clock += 1
        moved = torch.lerp(mean, self.prototypes[row], self.rate)
        self.prototypes[row] = torch.where(self.seen[row][:, None], moved, mean)
        self.born[row] = self.clock
        self.seen.index_fill_(0, row, True)
        self.seen[-1].fill_(False)

    def class_mean(
        self, labels: Tensor, fallback: Tensor, samples: int | None = None, row_range: RowRange | None = None
    ) -> Tensor:
        check_classes(labels, self.classes)
        if labels.ndim == 1 and self.ranks.size == 1:
            row = self._row_of(labels)
            return torch.where(self.seen[row][:, None], self.prototypes[row].to(fallback.dtype), fallback)
        row_range = row_range or RowRange(0, len(labels), len(labels))
        read = Labels.of(labels if row_range.is_whole_batch else self.ranks.gather(labels, row_range.total))
        row, shares = self._row_of(read.classes), read.shares(self.prototypes.dtype)
        is_here = row < self.classes_here
        is_held = self.seen[row] & is_here
        pooled = shares.new_zeros(len(row), self.prototypes.shape[1])
        for column in range(row.shape[1]):
            share = torch.where(is_held[:, column], shares[:, column], 0.0)
            pooled += share[:, None] * self.prototypes[row[:, column]]
        own = torch.where(is_here & ~is_held, shares, 0.0).sum(1, keepdim=True)
        rows = row_range.select(self.ranks.all_reduce(torch.cat([pooled, own], dim=1)))
        own = rows[:, -1:] + (~Labels.of(labels).is_labelled)[:, None]
        return rows[:, :-1].to(fallback.dtype) + own.to(fallback.dtype) * fallback

    def all_means(self) -> tuple[Tensor, Tensor]:
        if self.ranks.size == 1:
            return self.prototypes[:-1], self.seen[:-1]
        local_rows = torch.cat([self.prototypes, self.seen[:, None].to(self.prototypes.dtype)], dim=1)[:-1]
        all_rows = local_rows.new_zeros(self.classes, local_rows.shape[1])
        all_rows[self.ranks.rank :: self.ranks.size] = local_rows
        all_rows = self.ranks.all_reduce(all_rows)
        return all_rows[:, :-1], all_rows[:, -1] > 0

    def stored(self) -> Stored:
        labels = torch.arange(self.ranks.rank, self.classes, self.ranks.size, device=self.seen.device)
        return Stored(self.prototypes[:-1], labels, self.seen[:-1])

    def coverage(self, classes: Sequence[int] | None = None) -> Tensor:
        size, chosen = self.ranks.size, range(self.classes) if classes is None else classes
        return super().coverage([number // size for number in chosen if number % size == self.ranks.rank])

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """On rank 0 the state of all classes, as a single process has it. Every rank must call this."""
        state = super().state_dict(*args, **kwargs)
        if self.ranks.size == 1:
            return state
        return {name: value if value.ndim == 0 else self._gather_classes(value) for name, value in state.items()}

    def _gather_classes(self, rows: Tensor) -> Tensor:
        """The rows of all classes on rank 0; the local rows on other ranks, whose hosts may lack the memory."""
        padding = rows.new_zeros(-(-self.classes // self.ranks.size) - self.classes_here, *rows.shape[1:])
        shards = self.ranks.gather_on_rank0(torch.cat([rows[:-1], padding]))
        if not shards:
            return rows
        all_rows = torch.stack(shards, dim=1).flatten(0, 1)[: self.classes]
        return torch.cat([all_rows, rows[-1:].to(all_rows.device)])

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        shard = slice(self.ranks.rank, self.classes, self.ranks.size)
        local = {n: v if v.ndim == 0 else torch.cat([v[:-1][shard], v[-1:]]) for n, v in state_dict.items()}
        return super().load_state_dict(local, *args, **kwargs)


def _keep_newest(keep: Tensor, from_end: Tensor, size: int) -> Tensor:
    """Keep at most `size` rows per ring; `from_end` is a row's position from the end of its ring, from 1."""
    return keep if len(keep) <= size else keep & (from_end <= size)
