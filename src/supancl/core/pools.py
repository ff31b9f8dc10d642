"""The target pool Q in its three designs: one queue, one queue per class, one prototype per class.

`push(targets, labels)` stores targets, `class_mean(labels, fallback)` returns z_sup of Eq. 2, `stored()` returns
everything for a contrastive loss. All state is in buffers, so it is saved and moved with the module. Nothing here
waits for the device: sizes are fixed and counters are tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supancl.core.specs import PoolSpec as PoolSpec  # its place before 0.2
from supancl.distributed import Ranks, RowRange
from supancl.errors import BadInput

EMPTY = -2  # label of an empty slot
UNLABELLED = -1  # label of a target without a label


class Stored(NamedTuple):
    """The content of a pool, slot by slot; `valid` is False for empty slots.

    `labels` are one per slot, or the pairs of label_weights.py.
    """

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
        """Store detached targets (B, D) with their labels (B,); -1 is unlabelled."""

    @abstractmethod
    def class_mean(
        self, labels: Tensor, fallback: Tensor, samples: int | None = None, row_range: RowRange | None = None
    ) -> Tensor:
        """For each label the mean of the stored targets of that class; `fallback` (..., B, D) if there is none.

        With `samples`, that many are drawn with replacement for each anchor, instead of using all. They are drawn for
        the whole batch, of which these labels are `row_range`, so that the draws do not depend on the ranks.
        """

    def all_means(self) -> tuple[Tensor, Tensor]:
        """(classes, D): the mean of each class, at least in float32; and (classes,): which classes are in the pool."""
        raise BadInput(
            f"{type(self).__name__} has no all_means, the means of all classes, which the loss 'semi' asks for; "
            "define it, or set pool.kind=queue"
        )

    @abstractmethod
    def stored(self) -> Stored:
        """All slots."""

    def coverage(self, classes: Sequence[int] | None = None) -> Tensor:
        """Fraction of these classes, or of all, with at least one stored target; nan if there are no classes."""
        has_target = self.counts > 0
        return (has_target if classes is None else has_target[self._class_indices(classes)]).double().mean()

    def _class_indices(self, classes: Sequence[int]) -> list[int]:
        """Indices of these classes in `counts`."""
        return list(classes)

    def staleness(self) -> Tensor:
        """Mean age of the stored targets, in pushes; nan if the pool does not record times."""
        if not hasattr(self, "clock") or not hasattr(self, "born"):
            return torch.tensor(torch.nan, dtype=torch.float64)
        valid = self.stored().valid
        ages = (self.clock - self.born[: len(valid)]).double() * valid
        return ages.sum() / valid.sum().clamp(min=1)


class _Rings(Pool):
    """Rings of equal length, each overwriting its oldest target; `Queue` is one ring, `ClassQueues` one per class.

    The mean over all positives must not cost more as the pool grows, so float64 sums per class are kept up to date:
    added on entry, subtracted on exit, set to zero when a class is empty. Counts are float64 too: they stay exact, and
    the compiler would implement index_add_ of integers by sorting (about ten kernels on a GPU).
    """

    targets: Tensor
    labels: Tensor
    pointers: Tensor
    sums: Tensor
    tally: Tensor

    def __init__(self, rings: int, size: int, width: int, classes: int) -> None:
        super().__init__()
        if size < 1:
            raise ValueError(f"a pool of {size} targets; give it at least 1")
        self.rings, self.size, self.classes = rings, size, classes
        slots = rings * size
        # one extra slot, for rows that are not stored: so shapes never change
        self.register_buffer("targets", torch.zeros(slots + 1, width))
        self.register_buffer("labels", torch.full((slots + 1,), EMPTY))
        self.register_buffer("born", torch.zeros(slots + 1, dtype=torch.long))
        self.register_buffer("pointers", torch.zeros(rings, dtype=torch.long))
        self.register_buffer("clock", torch.zeros((), dtype=torch.long))
        # one extra class, for targets without a label
        self.register_buffer("sums", torch.zeros(classes + 1, width, dtype=torch.float64))
        self.register_buffer("tally", torch.zeros(classes + 1, dtype=torch.float64))

    @property
    def counts(self) -> Tensor:
        return self.tally[:-1].long()

    @abstractmethod
    def _assign_slots(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The slot of each row, and which rows are stored at all; moves the pointers of the rings."""

    @torch.no_grad()
    def push(self, targets: Tensor, labels: Tensor) -> None:
        _check_labels(labels, self.classes)
        if targets.ndim != 2:
            raise ValueError(f"targets {tuple(targets.shape)}: push one view (B, width), such as targets[1]")
        labels = labels.long()
        targets = targets.detach().to(self.targets.dtype)
        slot, stored = self._assign_slots(labels)
        slot = torch.where(stored, slot, self.rings * self.size)
        labels = torch.where(stored, labels, EMPTY)  # the extra slot stays empty
        self.clock += 1
        self._update_sums(self.targets[slot], self.labels[slot], targets, labels)
        self.targets[slot] = targets
        self.labels[slot] = labels
        self.born[slot] = self.clock

    def _update_sums(self, removed: Tensor, removed_labels: Tensor, added: Tensor, added_labels: Tensor) -> None:
        """Update the sums and counts of the classes."""
        labels = torch.cat([removed_labels, added_labels])
        has_label = labels >= 0
        row = torch.where(has_label, labels, self.classes)
        change = has_label.to(self.tally.dtype)
        change[: len(removed)].neg_()
        self.tally.index_add_(0, row, change)
        self.sums.index_add_(0, row, torch.cat([-removed, added]).to(self.sums.dtype))
        # clear rounding errors of classes that became empty, and always the extra row
        self.sums.index_fill_(0, torch.where(self.tally[row] > 0, self.classes, row), 0.0)

    def class_mean(
        self, labels: Tensor, fallback: Tensor, samples: int | None = None, row_range: RowRange | None = None
    ) -> Tensor:
        _check_labels(labels, self.classes)
        row = torch.where(labels >= 0, labels, self.classes)
        count = self.tally[row]
        if samples is None:
            mean = self.sums[row] / count.clamp(min=1)[:, None]
        else:
            mean = self._sample_mean(row, count, samples, fallback.shape[:-1], row_range)
        return torch.where((count > 0)[:, None], mean.to(fallback.dtype), fallback)

    def all_means(self) -> tuple[Tensor, Tensor]:
        count = self.tally[:-1]
        return (self.sums[:-1] / count.clamp(min=1)[:, None]).to(self.targets.dtype), count > 0

    def _sample_mean(
        self, row: Tensor, count: Tensor, samples: int, shape: torch.Size, row_range: RowRange | None
    ) -> Tensor:
        """The mean of `samples` draws with replacement, for each anchor."""
        # sorted by label, each class is one range of slots, and a draw is an offset into it
        label, tally, count = self.labels[:-1], self.tally.long(), count.long()
        order = torch.where(label >= 0, label, self.classes).argsort(stable=True)
        first = tally.cumsum(0) - tally
        row_range = row_range or RowRange(0, len(row), len(row))
        uniform = row_range.select(torch.rand(*shape[:-1], row_range.total, samples, device=row.device), -2)
        draws = (uniform * count[:, None]).long()
        offset = torch.minimum(draws, (count - 1).clamp(min=0)[:, None])
        drawn_slots = order[(first[row][:, None] + offset).clamp(max=len(order) - 1)]
        return self.targets[drawn_slots].mean(-2)

    def stored(self) -> Stored:
        labels = self.labels[:-1]
        return Stored(self.targets[:-1], labels, labels != EMPTY)


class Queue(_Rings):
    """The class-agnostic queue: the last `size` targets of any class.

    `unlabelled=True` also stores targets without a label, as negatives for a contrastive loss.
    """

    def __init__(self, size: int, width: int, classes: int, unlabelled: bool = False) -> None:
        super().__init__(1, size, width, classes)
        self.unlabelled = unlabelled

    @torch.no_grad()
    def fill_randomly(self) -> None:
        """Fill every slot with a random unit vector without a label: a negative for every anchor.

        Uses torch's global generator, which a run seeds before its weights are initialised.
        """
        self.targets[:-1] = F.normalize(torch.randn_like(self.targets[:-1]), dim=1)
        self.labels[:-1] = UNLABELLED

    def _assign_slots(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        keep = torch.ones_like(labels, dtype=torch.bool) if self.unlabelled else labels >= 0
        total, rank = keep.sum(0, keepdim=True), keep.cumsum(0) - 1
        slot = (self.pointers + rank) % self.size
        self.pointers.add_(total).remainder_(self.size)
        return slot, _keep_newest(keep, total - rank, self.size)


class ClassQueues(_Rings):
    """One queue of `size` targets per class, so that frequent classes cannot displace rare ones."""

    def __init__(self, size: int, width: int, classes: int) -> None:
        super().__init__(classes, size, width, classes)

    def _assign_slots(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        ring, keep = labels.clamp(min=0), labels >= 0
        total, rank = _position_in_ring(ring, keep, self.rings)
        slot = ring * self.size + (self.pointers[ring] + rank) % self.size
        self.pointers.add_(total).remainder_(self.size)
        return slot, _keep_newest(keep, total[ring] - rank, self.size)


class Prototypes(Pool):
    """One moving average per class (the "learnable" pool of Table 7): the first push initialises, then

    prototype <- rate * prototype + (1 - rate) * mean of the batch's targets of that class, once per push.
    """

    prototypes: Tensor
    seen: Tensor

    def __init__(self, width: int, classes: int, rate: float = 0.9) -> None:
        super().__init__()
        self.rate, self.classes = rate, classes
        # one extra row, for unlabelled targets
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
        # only rows of the batch's classes are written, so the cost does not grow with the number of classes;
        # all samples of a class write the same value
        same = (labels[:, None] == labels[None, :]).to(targets.dtype)
        self._move(self._row_of(labels), same @ targets / same.sum(1, keepdim=True))

    def _move(self, row: Tensor, mean: Tensor) -> None:
        """Move these prototypes to these means of the batch."""
        self.clock += 1
        self.prototypes[row] = torch.where(
            self.seen[row][:, None], torch.lerp(mean, self.prototypes[row], self.rate), mean
        )
        self.born[row] = self.clock
        self.seen.index_fill_(0, row, True)
        self.seen[-1].fill_(False)

    def class_mean(
        self, labels: Tensor, fallback: Tensor, samples: int | None = None, row_range: RowRange | None = None
    ) -> Tensor:
        _check_labels(labels, self.classes)
        row = self._row_of(labels)
        return torch.where(self.seen[row][:, None], self.prototypes[row].to(fallback.dtype), fallback)

    def all_means(self) -> tuple[Tensor, Tensor]:
        return self.prototypes[:-1], self.seen[:-1]

    def _row_of(self, labels: Tensor) -> Tensor:
        """The row of a label's prototype; the last row for no label."""
        return torch.where(labels >= 0, labels, self.classes)

    def stored(self) -> Stored:
        labels = torch.arange(self.classes, device=self.seen.device)
        return Stored(self.prototypes[:-1], labels, self.seen[:-1])


class ShardedPrototypes(Prototypes):
    """Prototypes of many classes: each rank holds every world_size-th class; look-ups are all-reduced.

    A look-up gathers the labels of the whole batch and sums over the ranks: the rank that holds a class adds its
    prototype, the others add zeros. Coverage and staleness are those of this rank's classes.
    """

    def __init__(self, width: int, classes: int, rate: float, ranks: Ranks) -> None:
        super().__init__(width, len(range(ranks.rank, classes, ranks.size)), rate)
        self.local_classes, self.classes, self.ranks = self.classes, classes, ranks

    def _row_of(self, labels: Tensor) -> Tensor:
        is_local = (labels >= 0) & (labels % self.ranks.size == self.ranks.rank)
        return torch.where(is_local, labels // self.ranks.size, self.local_classes)

    def class_mean(
        self, labels: Tensor, fallback: Tensor, samples: int | None = None, row_range: RowRange | None = None
    ) -> Tensor:
        row_range = row_range or RowRange(0, len(labels), len(labels))
        _check_labels(labels, self.classes)
        row = self._row_of(labels if row_range.is_whole_batch else self.ranks.gather(labels, row_range.total))
        local_rows = torch.cat([self.prototypes[row], self.seen[row][:, None].to(self.prototypes.dtype)], dim=1)
        all_rows = self.ranks.all_reduce(torch.where(row[:, None] < self.local_classes, local_rows, 0.0))
        rows = row_range.select(all_rows)
        return torch.where(rows[:, -1:] > 0, rows[:, :-1].to(fallback.dtype), fallback)

    def all_means(self) -> tuple[Tensor, Tensor]:
        local_rows = torch.cat([self.prototypes, self.seen[:, None].to(self.prototypes.dtype)], dim=1)[:-1]
        all_rows = local_rows.new_zeros(self.classes, local_rows.shape[1])
        all_rows[self.ranks.rank :: self.ranks.size] = local_rows
        all_rows = self.ranks.all_reduce(all_rows)
        return all_rows[:, :-1], all_rows[:, -1] > 0

    def stored(self) -> Stored:
        labels = torch.arange(self.ranks.rank, self.classes, self.ranks.size, device=self.seen.device)
        return Stored(self.prototypes[:-1], labels, self.seen[:-1])

    def _class_indices(self, classes: Sequence[int]) -> list[int]:
        return [label // self.ranks.size for label in classes if label % self.ranks.size == self.ranks.rank]

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """On rank 0 the state of all classes, as a single process has it. Every rank must call this."""
        state = super().state_dict(*args, **kwargs)
        return {name: value if value.ndim == 0 else self._gather_classes(value) for name, value in state.items()}

    def _gather_classes(self, rows: Tensor) -> Tensor:
        """The rows of all classes on rank 0; the local rows on other ranks, whose hosts may lack the memory."""
        size, most = self.ranks.size, -(-self.classes // self.ranks.size)
        padding = rows.new_zeros(most - self.local_classes, *rows.shape[1:])
        shards = self.ranks.gather_on_rank0(torch.cat([rows[:-1], padding]))
        if not shards:
            return rows
        all_rows = shards[0].new_empty(self.classes + 1, *rows.shape[1:])
        for rank, shard in enumerate(shards):
            all_rows[rank : self.classes : size] = shard[: len(range(rank, self.classes, size))]
        all_rows[-1:] = rows[-1:]
        return all_rows

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        shard = slice(self.ranks.rank, self.classes, self.ranks.size)
        local_state = {
            name: value if value.ndim == 0 else torch.cat([value[:-1][shard], value[-1:]])
            for name, value in state_dict.items()
        }
        return super().load_state_dict(local_state, *args, **kwargs)


def _keep_newest(keep: Tensor, from_end: Tensor, size: int) -> Tensor:
    """Keep at most `size` rows per ring; `from_end` is a row's position from the end of its ring, from 1."""
    return keep if len(keep) <= size else keep & (from_end <= size)


def _position_in_ring(ring: Tensor, keep: Tensor, rings: int) -> tuple[Tensor, Tensor]:
    """How many kept rows each ring gets, and the position of each kept row within its ring."""
    total = torch.zeros(rings, dtype=torch.float64, device=ring.device).index_add_(0, ring, keep.double()).long()
    order = torch.where(keep, ring, rings).argsort(stable=True)
    first = total.cumsum(0) - total
    rank = torch.empty_like(ring)
    rank[order] = torch.arange(len(ring), device=ring.device) - first[ring[order]]
    return total, rank


def _check_labels(labels: Tensor, classes: int) -> None:
    if labels.is_floating_point():
        raise ValueError(f"labels of {labels.dtype}; give integers, such as labels.long()")
    # on a GPU this would wait for the device and break the compiled graph; indexing fails there anyway
    if labels.device.type != "cpu" or torch.compiler.is_compiling():
        return
    if labels.numel() and int(labels.max()) >= classes:
        raise ValueError(
            f"label {int(labels.max())} in a pool made for {classes} classes; labels are 0 to {classes - 1}, or -1"
        )
