"""Average precision: how well scores rank the images of a class above the others, for images with several labels."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Area = Literal["area", "11-point"]


def average_precision(scores: Tensor, is_positive: Tensor, kind: Area = "area") -> float:
    """Average precision of one class in [0, 1]; NaN without a positive image.

    "area" sums the precision at each positive image; equal scores are one step. "11-point" is that of VOC until 2009:
    the mean over the recalls 0, 0.1, ..., 1 of the best precision at that recall or a higher one.

    >>> average_precision(torch.tensor([0.9, 0.8, 0.1]), torch.tensor([True, False, True]))
    0.8333333333333333
    """
    positives = int(is_positive.sum())
    if not positives:
        return float("nan")
    order = scores.argsort(descending=True, stable=True)
    ordered = scores[order]
    hits = is_positive[order].double().cumsum(0)
    last_of_equal = torch.ones(len(ordered), dtype=torch.bool, device=scores.device)
    last_of_equal[:-1] = ordered[1:] != ordered[:-1]
    ranks = torch.arange(1, len(ordered) + 1, device=scores.device, dtype=torch.float64)
    recall, precision = hits[last_of_equal] / positives, (hits / ranks)[last_of_equal]
    if kind == "area":
        steps = torch.diff(recall, prepend=recall.new_zeros(1))
        return float((steps * precision).sum())
    best = [precision[recall >= level - 1e-12] for level in torch.linspace(0, 1, 11, dtype=torch.float64).tolist()]
    return float(torch.stack([block.max() if len(block) else precision.new_zeros(()) for block in best]).mean())


def mean_average_precision(scores: Tensor, targets: Tensor, kind: Area = "area") -> float:
    """Mean over classes in percent; scores and targets are (images, classes), a target above 0 is a label of the image.

    Classes without a positive image do not count; NaN if there is no other.
    """
    values = [average_precision(scores[:, number], targets[:, number] > 0, kind) for number in range(scores.shape[1])]
    measured = torch.tensor([value for value in values if value == value], dtype=torch.float64)
    return 100 * float(measured.mean()) if len(measured) else float("nan")
