"""The labels of samples: up to L classes each, with weights. One class of weight 1 is the case without weights.

A step carries labels as one tensor, which micro-batches, ranks and captured steps index along the samples: (N,) for one
label each, -1 for none, or (N, L, 2) for pairs of class and weight in float32, padded with (-1, 0) at the end. float32
holds class numbers up to 2**24 exactly. `Labels.of` reads both; no class comes twice in a sample.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from supancl.errors import BadInput

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

UNITS = 2**36  # of the largest weight: ten million entries fit 63 bits, and a millionth of it has 16 bits


@dataclass(frozen=True)
class Labels:
    """Classes (N, L), -1 for padding at the end; and weights (N, L), 0 for padding."""

    classes: Tensor
    own_weights: Tensor | None = None  # None for one label of weight 1 each
    own_rarest: Tensor | None = None  # the class of each sample that the fewest samples of the whole source have

    @classmethod
    def of(cls, labels: Tensor | Labels) -> Labels:
        """From labels (N,), -1 for none, or pairs (N, L, 2)."""
        if isinstance(labels, Labels):
            return labels
        if labels.ndim == 3:
            return cls(labels[..., 0].long(), labels[..., 1])
        return cls(labels.long()[:, None])

    @property
    def tensor(self) -> Tensor:
        """What a step carries: labels (N,), or pairs (N, L, 2)."""
        if self.own_weights is None:
            return self.classes[:, 0]
        return torch.stack([self.classes.to(self.own_weights.dtype), self.own_weights], dim=-1)

    @property
    def pairs(self) -> Tensor | None:
        """Pairs (N, L, 2) of several or soft labels; None for one of weight 1 each."""
        return None if self.own_weights is None else self.tensor

    @property
    def has_one_each(self) -> bool:
        """Whether a sample has at most one label, of weight 1."""
        return self.own_weights is None

    @property
    def single(self) -> Tensor:
        """(N,): the label of each sample, -1 for none; refused where samples have several or soft labels."""
        self.check_single("these labels", "this")
        return self.classes[:, 0]

    def check_single(self, location: str, what: str) -> None:
        """Refuse several or soft labels, or those of a hierarchy's levels, where `what` takes one label per sample."""
        if self.own_weights is not None:
            problem = f"images have several or soft labels, or data.hierarchy, and {what} takes one label per image"
            raise BadInput(f"{location}: {problem}; give data with one label each")

    @property
    def weights(self) -> Tensor:
        """(N, L): the weight of each label, 0 for padding."""
        return (self.classes >= 0).to(torch.float32) if self.own_weights is None else self.own_weights

    @property
    def rarest(self) -> Tensor:
        """(N,): one class of each sample, the rarest; by it images are held out, hidden and balanced."""
        if self.own_weights is None:
            return self.classes[:, 0]
        return self._first_by(self.counts()) if self.own_rarest is None else self.own_rarest

    @property
    def is_labelled(self) -> Tensor:
        """(N,): True for samples with a label."""
        return self.classes[:, 0] >= 0 if self.own_weights is None else (self.classes >= 0).any(1)

    def __len__(self) -> int:
        return len(self.classes)

    def __getitem__(self, positions: Tensor | slice) -> Labels:
        """The labels of these samples."""
        weights, rarest = (None if part is None else part[positions] for part in (self.own_weights, self.own_rarest))
        return Labels(self.classes[positions], weights, rarest)

    def hidden(self, rows: Tensor) -> Labels:
        """The same labels, without any for the rows (N,) that are True."""
        weights, rarest = self.own_weights, self.own_rarest
        return Labels(
            self.classes.masked_fill(rows[:, None], -1),
            None if weights is None else weights.masked_fill(rows[:, None], 0.0),
            None if rarest is None else rarest.masked_fill(rows, -1),
        )

    def shares(self, dtype: torch.dtype) -> Tensor:
        """(N, L): weights that sum to 1 for each sample; zeros without a label."""
        weights = self.weights.to(dtype)
        total = weights.sum(1, keepdim=True)
        return weights / torch.where(total > 0, total, 1.0)

    def dense(self, classes: int, dtype: torch.dtype) -> Tensor:
        """(N, classes): the weights of each sample, 0 for classes that it does not have."""
        # one extra column, for padding
        rows = torch.zeros(len(self), classes + 1, dtype=dtype, device=self.classes.device)
        column = torch.where(self.classes >= 0, self.classes, classes)
        return rows.scatter_(1, column, self.weights.to(dtype))[:, :classes]

    def counts(self, classes: int = 1) -> Tensor:
        """(at least `classes`,): how many samples have each class."""
        return torch.bincount(self.classes[self.classes >= 0], minlength=classes)

    def entries(self) -> list[list[tuple[int, float]]]:
        """The class and the weight of every label of every sample."""
        rows = zip(self.classes.tolist(), self.weights.tolist(), strict=True)
        return [[(c, w) for c, w in zip(*row, strict=True) if c >= 0] for row in rows]

    def count_distinct(self) -> int:
        """How many different labels samples have. Several of one sample, with their weights, count as one."""
        rows = self.tensor[self.is_labelled].reshape(int(self.is_labelled.sum()), -1)
        return len(torch.unique(rows, dim=0)) if len(rows) else 0

    def among(self, numbers: Tensor) -> Labels:
        """One label each: the one class for which `numbers` (classes,) has a new number, not -1."""
        padded = torch.cat([numbers, numbers.new_full((1,), -1)])  # the last is that of no class, -1
        return Labels(padded[self.classes].amax(1, keepdim=True))

    def finest(self) -> Labels:
        """One label each: the class on the finest level on which a sample of a hierarchy has one."""
        last = ((self.classes >= 0).sum(1, keepdim=True) - 1).clamp(min=0)
        return Labels(self.classes.gather(1, last))

    def heaviest(self, counts: Tensor) -> Tensor:
        """(N,): of each sample's classes the one with the largest weight, of equals the rarest; -1 without a label."""
        is_heaviest = self.weights == self.weights.amax(1, keepdim=True)
        return Labels(torch.where(is_heaviest, self.classes, -1))._first_by(counts)

    def _first_by(self, counts: Tensor) -> Tensor:
        """(N,): of each sample's classes the one with the smallest count, the first of equals; -1 without a label."""
        has_class, total = self.classes >= 0, len(counts)
        key = counts[self.classes.clamp(min=0)] * total + self.classes
        first = torch.where(has_class, key, torch.iinfo(torch.long).max).amin(1) % max(total, 1)
        return torch.where(has_class.any(1), first, -1)

    def with_rarest(self, counts: Tensor) -> Labels:
        """The same labels, of which the rarest is decided by these counts."""
        return self if self.own_weights is None else replace(self, own_rarest=self._first_by(counts))


def check_classes(labels: Tensor, classes: int) -> None:
    """On a CPU, refuse labels of a step that a pool of so many classes was not made for."""
    # on a GPU this would wait for the device and break the compiled graph; indexing fails there anyway
    is_readable = labels.device.type == "cpu" and not torch.compiler.is_compiling() and labels.numel() > 0
    if is_readable and (largest := int((labels if labels.ndim == 1 else labels[..., 0]).max())) >= classes:
        raise ValueError(f"label {largest} in a pool made for {classes} classes")


def weight_of_class(classes: Tensor, others: Labels, dtype: torch.dtype) -> Tensor:
    """(len(classes), N): the weight of each class in each of the other samples."""
    result = torch.zeros(len(classes), len(others), dtype=dtype, device=others.classes.device)
    weights = others.weights.to(dtype)
    for column in range(others.classes.shape[1]):  # padding has weight 0, whatever it equals
        result += (classes[:, None] == others.classes[:, column]) * weights[:, column]
    return result


def mean_weights(labels: Labels, others: Labels, self_mask: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, N): weights of the others in each sample's supervised target; each row sums to 1.

    The target is the mean, by the sample's own weights, of the weighted means of its classes over the others, of whom
    it is one. Without a label it is the sample's own.
    """
    if labels.has_one_each:
        weight = (positive_weights(labels, others, dtype) | self_mask).to(dtype)
        return weight / weight.sum(1, keepdim=True)
    shares = labels.shares(dtype)
    result = torch.zeros(len(labels), len(others), dtype=dtype, device=shares.device)
    for column in range(shares.shape[1]):
        members = weight_of_class(labels.classes[:, column], others, dtype)
        total = members.sum(1, keepdim=True)
        result += shares[:, column, None] * (members / torch.where(total > 0, total, 1.0))
    return torch.where(labels.is_labelled[:, None], result, self_mask.to(dtype))


def overlap(labels: Labels, others: Labels, dtype: torch.dtype) -> Tensor:
    """(B, N): cosine similarity of the samples' vectors of class weights; 0 without a label."""
    weights = labels.weights.to(dtype)
    result = torch.zeros(len(labels), len(others), dtype=dtype, device=weights.device)
    for column in range(weights.shape[1]):
        result += weights[:, column, None] * weight_of_class(labels.classes[:, column], others, dtype)
    norms = [each.weights.to(dtype).square().sum(1).sqrt() for each in (labels, others)]
    lengths = norms[0][:, None] * norms[1]
    return result / torch.where(lengths > 0, lengths, 1.0)


def positive_weights(labels: Labels, others: Labels, dtype: torch.dtype) -> Tensor:
    """(B, N): which of the others are positives (bool); for several or soft labels, how much each counts."""
    if not labels.has_one_each or not others.has_one_each:
        return overlap(labels, others, dtype)
    mine = labels.single[:, None]
    return (mine == others.single[None, :]) & (mine >= 0)  # no label equals nothing, not even another one without


def draw_column(weights: Tensor, uniform: Tensor) -> Tensor:
    """For each uniform number (..., B, M) the position of a label of its sample, drawn by the weights (B, L)."""
    bounds = as_integers(weights).cumsum(1)
    column = ((uniform[..., None] * bounds[:, -1:, None]).long() >= bounds[:, None]).sum(-1)
    labels = (weights > 0).sum(1, keepdim=True)  # rounding must not draw padding
    return torch.minimum(column, (labels - 1).clamp(min=0))


def as_integers(weights: Tensor) -> Tensor:
    """Weights in units of a fraction of the largest: sums of integers are exact, and deterministic on a GPU too."""
    largest = weights.max().double()
    return (weights.double() * (UNITS / torch.where(largest > 0, largest, 1.0))).long()
