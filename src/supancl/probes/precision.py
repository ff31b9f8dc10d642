"""Average precision: how well scores rank the images of a class above the others, for images with several labels.

Its interval is that of a bootstrap over images. Draws are the same in every call on equally many images, so two
encoders that are judged on the same images are compared draw by draw.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

Area = Literal["area", "11-point"]
DRAWS = 1000  # of a bootstrap
DRAWS_AT_A_TIME = 100
DRAW_SEED = 0


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


def bootstrap_precision(scores: Tensor, targets: Tensor, draws: int = DRAWS) -> Tensor:
    """(draws,): the mean average precision ("area") of random draws of the images, as many as there are, in percent.

    An image may come several times. A class that a draw has no image of does not count in it.
    """
    is_positive = targets > 0
    classes = is_positive.any(0).nonzero()[:, 0].tolist()
    blocks = []
    for counts in draw_counts(len(scores), draws):
        counts = counts.to(scores.device)
        values = [drawn_precision(scores[:, number], is_positive[:, number], counts) for number in classes]
        blocks.append(100 * torch.stack(values).nanmean(0))
    return torch.cat(blocks).cpu()


def draw_counts(images: int, draws: int = DRAWS) -> Iterator[Tensor]:
    """(images, draws): how often each draw has each image, some draws at a time."""
    generator = torch.Generator().manual_seed(DRAW_SEED)
    for start in range(0, draws, DRAWS_AT_A_TIME):
        size = min(DRAWS_AT_A_TIME, draws - start)
        rows = torch.randint(images, (images, size), generator=generator)
        yield torch.zeros(images, size).scatter_add_(0, rows, torch.ones(images, size))


def drawn_precision(scores: Tensor, is_positive: Tensor, counts: Tensor) -> Tensor:
    """(draws,): `average_precision` ("area") where image i comes counts[i] times; NaN for a draw without a positive."""
    steps = torch.unique(-scores[is_positive])  # the best first; an image counts in all steps from its own on
    step = torch.searchsorted(steps, -scores)
    zeros = counts.new_zeros(len(steps) + 1, counts.shape[1])  # the last row: images below every positive one
    reached = zeros.index_add(0, step, counts)[:-1].double().cumsum(0)
    hits = zeros.index_add(0, step[is_positive], counts[is_positive])[:-1].double()
    hits_so_far = hits.cumsum(0)
    return (hits * hits_so_far / reached.clamp(min=1)).sum(0) / hits_so_far[-1]
