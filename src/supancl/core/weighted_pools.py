"""Target pools for several or soft labels per sample: `labels` are pairs (B, L, 2), see label_weights.py.

The supervised target is sum_c w_c (held_c ? mean_c : own) / sum_c w_c: the fallback of Eq. 2, class by class. Means are
weighted by the weights of what is stored. What is held, cleared and counted is decided by an exact number of entries
per class, because sums leave rounding errors behind. A slot keeps the float32 weight that was added, so exactly that is
subtracted again: its product with a float32 target is exact in float64.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from supancl.core.label_weights import has_label, normalized_weights, split_pairs, weight_of_class
from supancl.core.pools import (
    EMPTY,
    ClassQueues,
    Pool,
    Prototypes,
    Queue,
    ShardedPrototypes,
    Stored,
    _check_labels,
    _Rings,
)
from supancl.core.specs import PoolSpec
from supancl.distributed import SINGLE_PROCESS, Ranks, RowRange

UNITS = 2**36  # of the largest weight: ten million entries fit 63 bits, and a millionth of it has 16 bits


@dataclass(frozen=True)
class WeightedPoolSpec(PoolSpec):
    """The same pool for samples with up to `pairs` labels."""

    pairs: int = 1

    @classmethod
    def of(cls, spec: PoolSpec, pairs: int) -> WeightedPoolSpec:
        return cls(**{field.name: getattr(spec, field.name) for field in fields(spec)}, pairs=pairs)

    def build(self, width: int, classes: int, unlabelled: bool = False, ranks: Ranks = SINGLE_PROCESS) -> Pool | None:
        if self.kind == "none":
            return None
        if self.kind == "queue":
            queue = WeightedQueue(self.size, width, classes, self.pairs, unlabelled)
            if self.start == "random":
                queue.fill_randomly()
            return queue
        if self.kind == "class-queues":
            return WeightedClassQueues(self.size, width, classes)
        if self.sharded and ranks.size > 1:
            return WeightedShardedPrototypes(width, classes, self.rate, ranks)
        return WeightedPrototypes(width, classes, self.rate)


class _WeightedRings(_Rings):
    """Rings whose slots keep several labels, `labels` (slots + 1, E), each with its weight."""

    weights: Tensor  # (slots + 1, E): of the labels
    mass: Tensor  # (classes + 1,): sums of the stored weights

    def _keep_weights(self, per_slot: int) -> None:
        slots = len(self.targets)
        self.register_buffer("labels", torch.full((slots, per_slot), EMPTY))
        self.register_buffer("weights", torch.zeros(slots, per_slot, dtype=torch.float32))
        self.register_buffer("mass", torch.zeros(self.classes + 1, dtype=torch.float64))

    def _entries(self, targets: Tensor, classes: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What is stored in one slot each: targets (n, D), classes (n, E), weights (n, E)."""
        return targets, classes, weights

    @torch.no_grad()
    def push(self, targets: Tensor, labels: Tensor) -> None:
        classes, weights = split_pairs(labels)
        _check_labels(classes, self.classes)
        targets, classes, weights = self._entries(targets.detach().to(self.targets.dtype), classes, weights)
        slot, stored = self._assign_slots(classes.amax(1))
        slot = torch.where(stored, slot, self.rings * self.size)
        classes = torch.where(stored[:, None], classes, EMPTY)  # the extra slot stays empty
        weights = torch.where(classes >= 0, weights, 0.0).to(self.weights.dtype)
        self.clock += 1
        self._replace_in_sums(slot, targets, classes, weights)
        self.targets[slot] = targets
        self.labels[slot] = classes
        self.weights[slot] = weights
        self.born[slot] = self.clock

    def _replace_in_sums(self, slot: Tensor, targets: Tensor, classes: Tensor, weights: Tensor) -> None:
        """Update sums, weights and counts of the classes for what leaves these slots and what enters them."""
        moved = torch.cat([self.targets[slot], targets]).to(self.sums.dtype)
        labels, moved_weights = torch.cat([self.labels[slot], classes]), torch.cat([self.weights[slot], weights])
        has_class = labels >= 0
        row = torch.where(has_class, labels, self.classes)
        change = has_class.to(self.tally.dtype)
        change[: len(slot)].neg_()
        signed = change * moved_weights
        for column in range(labels.shape[1]):  # one at a time: no tensor of (2B, E, D)
            self.tally.index_add_(0, row[:, column], change[:, column])
            self.mass.index_add_(0, row[:, column], signed[:, column])
            self.sums.index_add_(0, row[:, column], signed[:, column, None] * moved)
        # clear rounding errors of classes that became empty, and always the extra row
        emptied = torch.where(self.tally[row] > 0, self.classes, row).flatten()
        self.sums.index_fill_(0, emptied, 0.0)
        self.mass.index_fill_(0, emptied, 0.0)

    def class_mean(
        self, labels: Tensor, fallback: Tensor, samples: int | None = None, row_range: RowRange | None = None
    ) -> Tensor:
        classes, weights = split_pairs(labels)
        _check_labels(classes, self.classes)
        row = torch.where(classes >= 0, classes, self.classes)
        if samples is not None:
            return self._mean_of_samples(row, weights, samples, fallback, row_range)
        held, normalized = self.tally[row] > 0, normalized_weights(weights, self.sums.dtype)
        mass = torch.where(held, self.mass[row], 1.0)  # sums of classes without an entry are zero
        pooled = torch.zeros(len(row), self.sums.shape[1], dtype=self.sums.dtype, device=row.device)
        for column in range(row.shape[1]):
            pooled += normalized[:, column, None] * (self.sums[row[:, column]] / mass[:, column, None])
        own = torch.where(held, 0.0, normalized).sum(1) + (~has_label(labels))
        return pooled.to(fallback.dtype) + own[:, None].to(fallback.dtype) * fallback

    def all_means(self) -> tuple[Tensor, Tensor]:
        is_held = self.tally[:-1] > 0
        mass = torch.where(is_held, self.mass[:-1], 1.0)
        return (self.sums[:-1] / mass[:, None]).to(self.targets.dtype), is_held

    def _mean_of_samples(
        self, row: Tensor, weights: Tensor, samples: int, fallback: Tensor, row_range: RowRange | None
    ) -> Tensor:
        """The mean of `samples` draws for each anchor: a class by the sample's weights, then one of its entries by
        theirs; the fallback where the class has none."""
        # sorted by class, each class is one range of entries, and cumulative weights say where in it a draw falls
        labels = self.labels[:-1].flatten()
        order = torch.where(labels >= 0, labels, self.classes).argsort(stable=True)
        cumulative = _as_integers(self.weights[:-1].flatten()[order]).cumsum(0)
        count = self.tally.long()
        first = count.cumsum(0) - count
        last = (first + count - 1).clamp(min=0)
        before = torch.where(first > 0, cumulative[(first - 1).clamp(min=0)], 0)
        row_range = row_range or RowRange(0, len(row), len(row))
        shape = (*fallback.shape[:-2], row_range.total, samples, 2)
        uniform = row_range.select(torch.rand(shape, device=row.device), -3).double()
        column = _draw_column(weights, uniform[..., 0])
        sampled_row = torch.take_along_dim(row.expand(*column.shape[:-1], -1), column, -1)
        mass = cumulative[last[sampled_row]] - before[sampled_row]
        position = torch.searchsorted(cumulative, before[sampled_row] + (uniform[..., 1] * mass).long(), right=True)
        position = torch.minimum(torch.maximum(position, first[sampled_row]), last[sampled_row])
        sampled = self.targets[order[position.clamp(max=len(order) - 1)] // self.labels.shape[1]]
        held = (count[sampled_row] > 0)[..., None]
        return torch.where(held, sampled.to(fallback.dtype), fallback[..., None, :]).mean(-2)

    def stored(self) -> Stored:
        labels = self.labels[:-1]
        pairs = torch.stack([labels.to(self.weights.dtype), self.weights[:-1]], dim=-1)
        return Stored(self.targets[:-1], pairs, labels[:, 0] != EMPTY)


def _draw_column(weights: Tensor, uniform: Tensor) -> Tensor:
    """For each uniform number (..., B, M) the position of a label of its sample, drawn by the weights (B, L)."""
    bounds = _as_integers(weights).cumsum(1)
    column = ((uniform[..., None] * bounds[:, -1:, None]).long() >= bounds[:, None]).sum(-1)
    labels = (weights > 0).sum(1, keepdim=True)  # rounding must not draw padding
    return torch.minimum(column, (labels - 1).clamp(min=0))


def _as_integers(weights: Tensor) -> Tensor:
    """Weights in units of a fraction of the largest: sums of integers are exact, and deterministic on a GPU too."""
    largest = weights.max().double()
    return (weights.double() * (UNITS / torch.where(largest > 0, largest, 1.0))).long()


class WeightedQueue(_WeightedRings, Queue):
    """The last `size` targets of any class, each with its up to `pairs` labels."""

    def __init__(self, size: int, width: int, classes: int, pairs: int, unlabelled: bool = False) -> None:
        Queue.__init__(self, size, width, classes, unlabelled)
        self._keep_weights(pairs)


class WeightedClassQueues(_WeightedRings, ClassQueues):
    """One queue per class; a target with several labels is an entry of several queues."""

    def __init__(self, size: int, width: int, classes: int) -> None:
        ClassQueues.__init__(self, size, width, classes)
        self._keep_weights(1)

    def _entries(self, targets: Tensor, classes: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        entries = targets.repeat_interleave(classes.shape[1], dim=0)
        return entries, classes.reshape(-1, 1), weights.reshape(-1, 1)


class WeightedPrototypes(Prototypes):
    """One moving average per class, which moves to the batch's weighted mean of that class."""

    @torch.no_grad()
    def push(self, targets: Tensor, labels: Tensor) -> None:
        classes = split_pairs(labels)[0].flatten()
        _check_labels(classes, self.classes)
        targets = targets.detach().to(self.prototypes.dtype)
        members = weight_of_class(classes, labels, targets.dtype)  # (B * L, B)
        total = members.sum(1, keepdim=True)
        self._move(self._row_of(classes), members @ targets / torch.where(total > 0, total, 1.0))

    def class_mean(
        self, labels: Tensor, fallback: Tensor, samples: int | None = None, row_range: RowRange | None = None
    ) -> Tensor:
        row_range = row_range or RowRange(0, len(labels), len(labels))
        _check_labels(split_pairs(labels)[0], self.classes)
        classes, weights = split_pairs(self._all_labels(labels, row_range))
        row, normalized = self._row_of(classes), normalized_weights(weights, self.prototypes.dtype)
        is_here = row < len(self.seen) - 1
        held = self.seen[row] & is_here
        pooled = torch.zeros(len(row), self.prototypes.shape[1], dtype=normalized.dtype, device=row.device)
        for column in range(row.shape[1]):
            scale = torch.where(held[:, column], normalized[:, column], 0.0)
            pooled += scale[:, None] * self.prototypes[row[:, column]]
        own = torch.where(is_here & ~held, normalized, 0.0).sum(1, keepdim=True)
        rows = self._select_rows(torch.cat([pooled, own], dim=1), row_range)
        own = rows[:, -1:] + (~has_label(labels))[:, None]
        return rows[:, :-1].to(fallback.dtype) + own.to(fallback.dtype) * fallback

    def _all_labels(self, labels: Tensor, row_range: RowRange) -> Tensor:
        """The labels to look up: those of the anchors."""
        return labels

    def _select_rows(self, rows: Tensor, row_range: RowRange) -> Tensor:
        """The rows of the anchors."""
        return rows

    def stored(self) -> Stored:
        targets, labels, valid = super().stored()
        pairs = torch.stack([labels.float(), torch.ones_like(labels, dtype=torch.float32)], dim=-1)
        return Stored(targets, pairs[:, None], valid)


class WeightedShardedPrototypes(WeightedPrototypes, ShardedPrototypes):
    """Each rank holds every world_size-th class and adds what its classes give to the targets of the whole batch."""

    def _all_labels(self, labels: Tensor, row_range: RowRange) -> Tensor:
        return labels if row_range.is_whole_batch else self.ranks.gather(labels, row_range.total)

    def _select_rows(self, rows: Tensor, row_range: RowRange) -> Tensor:
        return row_range.select(self.ranks.all_reduce(rows))
