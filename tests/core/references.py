"""The losses and pools of the paper, written as loops from their definitions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from supancl.core.losses import Align, Contrast
from supancl.core.pools import ClassQueues, Pool, Prototypes, Queue

Held = list[tuple[Tensor, int]]
AGAINST = ("both-views", "pool", "other-view", "other-view+pool", "both-views+pool")
POSITIVES = ("own-view", "own-class")
POOLS = ("queue", "class-queues", "prototypes")


class ListQueue:
    """The last `size` targets, whatever their class."""

    def __init__(self, size: int, unlabelled: bool = False) -> None:
        self.entries: deque[tuple[Tensor, int]] = deque(maxlen=size)
        self.born: deque[int] = deque(maxlen=size)
        self.unlabelled, self.clock = unlabelled, 0

    def push(self, targets: Tensor, labels: Tensor) -> None:
        self.clock += 1
        for target, label in zip(targets, labels.tolist(), strict=True):
            if label >= 0 or self.unlabelled:
                self.entries.append((target.clone(), label))
                self.born.append(self.clock)

    def held(self) -> Held:
        return list(self.entries)

    def ages(self) -> list[int]:
        return [self.clock - born for born in self.born]


class ListClassQueues:
    """The last `size` targets of each class."""

    def __init__(self, size: int, classes: int) -> None:
        self.queues = [ListQueue(size) for _ in range(classes)]

    def push(self, targets: Tensor, labels: Tensor) -> None:
        for label, queue in enumerate(self.queues):
            queue.push(targets[labels == label], labels[labels == label])

    def held(self) -> Held:
        return [entry for queue in self.queues for entry in queue.held()]

    def ages(self) -> list[int]:
        return [age for queue in self.queues for age in queue.ages()]


class DictPrototypes:
    """One moving average for each class that was seen."""

    def __init__(self, rate: float) -> None:
        self.rate, self.clock = rate, 0
        self.prototypes: dict[int, Tensor] = {}
        self.born: dict[int, int] = {}

    def push(self, targets: Tensor, labels: Tensor) -> None:
        self.clock += 1
        for label in sorted(set(labels.tolist()) - {-1}):
            mean = targets[labels == label].mean(0)
            old = self.prototypes.get(label)
            self.prototypes[label] = mean if old is None else self.rate * old + (1 - self.rate) * mean
            self.born[label] = self.clock

    def held(self) -> Held:
        return [(self.prototypes[label], label) for label in sorted(self.prototypes)]

    def ages(self) -> list[int]:
        return [self.clock - self.born[label] for label in sorted(self.born)]


def pool_and_reference(
    kind: str, size: int, width: int, classes: int, unlabelled: bool = False, rate: float = 0.9
) -> tuple[Pool, Any]:
    """A pool in double precision and the same thing as Python lists."""
    if kind == "queue":
        return Queue(size, width, classes, unlabelled=unlabelled).double(), ListQueue(size, unlabelled)
    if kind == "class-queues":
        return ClassQueues(size, width, classes).double(), ListClassQueues(size, classes)
    return Prototypes(width, classes, rate).double(), DictPrototypes(rate)


def mean_of_class(held: Held, label: int) -> Tensor | None:
    """The mean of the held targets of a class; None where there is none."""
    mine = [target for target, other in held if other == label and label >= 0]
    return torch.stack(mine).mean(0) if mine else None


def mean_by_loop(held: Held, labels: Iterable[int], fallback: Tensor) -> Tensor:
    """class_mean as a loop over the labels of a batch (B,), for a fallback (..., B, D)."""
    result = fallback.clone()
    for i, label in enumerate(labels):
        mean = mean_of_class(held, int(label))
        if mean is not None:
            result[..., i, :] = mean
    return result


def align_by_definition(
    loss: Align,
    anchors: Tensor,
    targets: Tensor,
    labels: Tensor,
    held: Held | None,
    alphas: Sequence[float] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Eqs. 1-3 anchor by anchor: total, l_ssl, l_sup. `held` is None where there is no pool."""

    def distance(p: Tensor, z: Tensor) -> Tensor:
        return ((p - z) ** 2).sum() if loss.form == "squared" else -(p * z).sum()

    totals, ssls, sups = [], [], []
    for view, i in product(range(2), range(len(labels))):
        p, z = anchors[view, i], targets[1 - view, i]
        label = int(labels[i])
        if held is None:
            mine = [j for j in range(len(labels)) if j == i or (label >= 0 and int(labels[j]) == label)]
            z_sup: Tensor | None = torch.stack([targets[1 - view, j] for j in mine]).mean(0)
        else:
            z_sup = mean_of_class(held, label)
        alpha = loss.alpha if alphas is None else alphas[i]
        ssls.append(distance(p, z))
        sups.append(distance(p, z if z_sup is None else z_sup))
        totals.append(alpha * ssls[-1] + (1 - alpha) * sups[-1])
    return torch.stack(totals).mean(), torch.stack(ssls).mean(), torch.stack(sups).mean()


def contrast_by_definition(loss: Contrast, anchors: Tensor, targets: Tensor, labels: Tensor, held: Held) -> Tensor:
    """The equations of App. C anchor by anchor and candidate by candidate."""
    losses = []
    for view, i in product(range(2), range(len(labels))):
        label = int(labels[i])

        def positive(other: int, label: int = label) -> bool:
            return loss.positives == "own-class" and label >= 0 and label == other

        candidates = [(targets[1 - view, i], True)]
        for j in (j for j in range(len(labels)) if j != i):
            if loss.against != "pool":
                candidates.append((targets[1 - view, j], positive(int(labels[j]))))
            if loss.against.startswith("both-views"):
                candidates.append((targets[view, j], positive(int(labels[j]))))
        if loss.against.endswith("pool"):
            candidates += [(target, positive(other)) for target, other in held]
        exponentials = [torch.exp(anchors[view, i] @ target / loss.temperature) for target, _ in candidates]
        denominator = sum(exponentials)
        logs = [-torch.log(e / denominator) for e, (_, yes) in zip(exponentials, candidates, strict=True) if yes]
        losses.append(torch.stack(logs).mean())
    return torch.stack(losses).mean()
