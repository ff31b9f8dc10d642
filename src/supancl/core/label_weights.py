"""Several or soft labels per sample: up to L pairs (class, weight), in one tensor (N, L, 2).

Design. `pairs[..., 0]` is the class, -1 for padding at the end; `pairs[..., 1]` its weight, above 0, or 0 for padding.
No class comes twice in a sample (data/label_pairs.py merges them). float32 holds class numbers up to 2**24 and the
weights exactly, so both are one tensor: steps, micro-batches, ranks and captured steps index it along the samples, as
they index labels (N,), and need not know which of the two they have.

Data with one label of weight 1 per sample keep labels (N,), and with them the code, the bits and the draws of losses
and pools for one label. Which of the two it is, is known when the run is built: losses ask `has_pairs`, a matter of
shapes; pools for pairs are other classes (core/weighted_pools.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch


def has_pairs(labels: Tensor) -> bool:
    """Whether these are pairs (N, L, 2), not labels (N,)."""
    return labels.ndim == 3


def split_pairs(pairs: Tensor) -> tuple[Tensor, Tensor]:
    """Classes (N, L), -1 for padding, and weights (N, L)."""
    return pairs[..., 0].long(), pairs[..., 1]


def has_label(labels: Tensor) -> Tensor:
    """(N,): True for samples with a label, of labels (N,) or pairs (N, L, 2)."""
    return (labels[..., 0] >= 0).any(1) if has_pairs(labels) else labels >= 0


def normalized_weights(weights: Tensor, dtype: torch.dtype) -> Tensor:
    """(N, L): weights that sum to 1 for each sample; zeros without a label."""
    weights = weights.to(dtype)
    total = weights.sum(1, keepdim=True)
    return weights / torch.where(total > 0, total, 1.0)


def weight_of_class(classes: Tensor, others: Tensor, dtype: torch.dtype) -> Tensor:
    """(len(classes), N): the weight of each class in each of the other samples, pairs (N, L, 2)."""
    result = torch.zeros(len(classes), len(others), dtype=dtype, device=others.device)
    other_classes, other_weights = split_pairs(others)
    for column in range(others.shape[1]):  # padding has weight 0, whatever it equals
        result += (classes[:, None] == other_classes[:, column]) * other_weights[:, column].to(dtype)
    return result


def mean_weights(pairs: Tensor, others: Tensor, self_mask: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, N): weights of the others in each sample's supervised target; each row sums to 1.

    The target is the mean, by the sample's own weights, of the weighted means of its classes over the others, of whom
    it is one. Without a label it is the sample's own.
    """
    classes, weights = split_pairs(pairs)
    normalized = normalized_weights(weights, dtype)
    result = torch.zeros(len(pairs), len(others), dtype=dtype, device=pairs.device)
    for column in range(pairs.shape[1]):
        members = weight_of_class(classes[:, column], others, dtype)
        total = members.sum(1, keepdim=True)
        result += normalized[:, column, None] * (members / torch.where(total > 0, total, 1.0))
    return torch.where(has_label(pairs)[:, None], result, self_mask.to(dtype))


def overlap(pairs: Tensor, others: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, N): cosine similarity of the samples' vectors of class weights; 0 without a label."""
    classes, weights = split_pairs(pairs)
    result = torch.zeros(len(pairs), len(others), dtype=dtype, device=pairs.device)
    for column in range(pairs.shape[1]):
        result += weights[:, column, None].to(dtype) * weight_of_class(classes[:, column], others, dtype)
    norms = [tensor[..., 1].to(dtype).square().sum(1).sqrt() for tensor in (pairs, others)]
    lengths = norms[0][:, None] * norms[1]
    return result / torch.where(lengths > 0, lengths, 1.0)


def class_weights(pairs: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """(N, classes): the weights of each sample as a dense row."""
    numbers, weights = split_pairs(pairs)
    # one extra column, for padding
    dense = torch.zeros(len(pairs), classes + 1, dtype=dtype, device=pairs.device)
    return dense.scatter_(1, torch.where(numbers >= 0, numbers, classes), weights.to(dtype))[:, :classes]


def same_class(labels: Tensor, others: Tensor) -> Tensor:
    """(len(labels), len(others)): True for equal labels; -1 (no label) equals nothing, not even another -1."""
    return (labels[:, None] == others[None, :]) & (labels >= 0)[:, None]


def positive_weights(labels: Tensor, others: Tensor, dtype: torch.dtype) -> Tensor:
    """(len(labels), len(others)): which of the others are positives; for pairs, how much each counts."""
    return overlap(labels, others, dtype) if has_pairs(labels) else same_class(labels, others)


def join_positives(self_mask: Tensor, positive: Tensor) -> Tensor:
    """The positives with each sample's own other view among them."""
    return self_mask | positive if positive.dtype == torch.bool else positive.masked_fill(self_mask, 1.0)
