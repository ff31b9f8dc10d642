"""What an encoder said about tested images: accuracy or average precision, interval, chance, paired differences.

For images with several labels, average precision says how well scores rank the images of a class above the others. Its
interval is that of a bootstrap over images. Draws are the same in every call on equally many images, so two encoders
that are tested on the same images are compared draw by draw.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from supancl.errors import BadInput
from supancl.probes.features import Features
from supancl.stats import Interval, paired_accuracy_interval, percentile_interval, wilson_interval

TransferMetric = Literal["top-1", "mean-per-class"]
Area = Literal["area", "11-point"]
UNEVEN = 2  # classes are unbalanced if the largest has more than this many times the images of the smallest
GROUPS = {"head": 101, "middle": 20, "tail": 1}  # training images of a class, at least
DRAWS = 1000  # of a bootstrap
DRAWS_AT_A_TIME = 100


@dataclass(frozen=True, eq=False)
class Answers:
    """Which of the tested images an encoder classified correctly, their classes, and those of the references."""

    is_correct: Tensor
    labels: Tensor
    references: Tensor
    metric: TransferMetric = "top-1"
    key = "accuracy"  # the figure's name in a result

    @property
    def images(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> int:
        """How many classes the references have."""
        return len(torch.unique(self.references[self.references >= 0]))

    @property
    def value(self) -> float:
        return self.weighted(self.metric)

    def weighted(self, metric: TransferMetric) -> float:
        """Accuracy in percent by a metric."""
        return 100 * float((image_weights(self.labels, metric) * self.is_correct.double()).mean())

    @property
    def interval(self) -> Interval:
        """Wilson's. A mean over classes of different sizes counts as one over fewer images: those of a sample of equal
        weights that has the same variance.
        """
        weights, count = image_weights(self.labels, self.metric), len(self.labels)
        return wilson_interval(self.value, count**2 / float(weights.square().sum()) if count else 0)

    @property
    def chance(self) -> float:
        return chance(self.references, self.metric)

    def minus(self, theirs: Any) -> Interval:
        """The difference in points from another encoder on the same images, with its paired interval."""
        weights = image_weights(self.labels, self.metric).tolist()
        return paired_accuracy_interval(self.is_correct.tolist(), theirs.is_correct.tolist(), weights)

    def more_keys(self) -> dict[str, Any]:
        """The accuracy of large and small classes, if their sizes differ."""
        groups = accuracy_by_size(self)
        return {"balanced_accuracy": self.weighted("mean-per-class"), "by_class_size": groups} if groups else {}


@dataclass(frozen=True, eq=False)
class ClassScores:
    """The scores (images, classes) that an encoder gives the tested images, and which classes they have."""

    scores: Tensor
    targets: Tensor
    key = "map"

    @property
    def images(self) -> int:
        return len(self.scores)

    @property
    def classes(self) -> int:
        return self.targets.shape[1]

    @cached_property
    def value(self) -> float:
        return mean_average_precision(self.scores, self.targets)

    @cached_property
    def draws(self) -> Tensor:
        """The value over draws of the images, always the same draws."""
        return bootstrap_precision(self.scores, self.targets)

    @property
    def interval(self) -> Interval:
        return percentile_interval(self.value, self.draws.numpy())

    @property
    def chance(self) -> float:
        """The mean fraction of images that have a class: about what random scores have."""
        prevalence = self.targets.double().mean(0)
        return 100 * float(prevalence[prevalence > 0].mean())

    def minus(self, theirs: Any) -> Interval:
        return percentile_interval(self.value - theirs.value, (self.draws - theirs.draws).numpy())

    def more_keys(self) -> dict[str, Any]:
        return {
            "map_11_point": mean_average_precision(self.scores, self.targets, "11-point"),
            "untested_classes": int((~self.targets.any(0)).sum()),
        }


Measured = Answers | ClassScores


def measure(
    said: Tensor, tested: Features, references: Tensor, classes: int = 0, metric: TransferMetric = "top-1"
) -> Measured:
    """The figure of answers about labelled images: their classes, or for several labels scores of every class."""
    if tested.pairs is not None:
        return ClassScores(said, tested.targets(classes).cpu())
    labels = tested.labels.cpu()
    return Answers(said == labels, labels, references.cpu(), metric)


def join(parts: Sequence[Any]) -> Answers:
    """Answers about different images, whose references were one another, as one."""
    is_correct, labels = (torch.cat([getattr(part, name) for part in parts]) for name in ("is_correct", "labels"))
    return Answers(is_correct, labels, torch.cat([parts[0].references, parts[0].labels]))


# --- accuracy ---------------------------------------------------------------------------------------------------------


def accuracy(predictions: Tensor, labels: Tensor, metric: TransferMetric = "top-1") -> float:
    """Accuracy in percent: over all images, or the mean of the classes' accuracies.

    >>> predictions, labels = torch.tensor([0, 0, 0, 0]), torch.tensor([0, 0, 0, 1])
    >>> accuracy(predictions, labels), accuracy(predictions, labels, "mean-per-class")
    (75.0, 50.0)
    """
    if metric == "top-1":
        return 100 * float((predictions == labels).double().mean())
    if metric != "mean-per-class":
        raise BadInput(f"metric = {metric!r}: must be top-1 or mean-per-class")
    _, row = torch.unique(labels, return_inverse=True)
    return 100 * float((torch.bincount(row, (predictions == labels).double()) / torch.bincount(row)).mean())


def image_weights(labels: Tensor, metric: TransferMetric = "top-1") -> Tensor:
    """How much each image counts, 1 on average: equally, or with `mean-per-class` every class equally.

    >>> image_weights(torch.tensor([0, 0, 0, 1]), "mean-per-class")
    tensor([0.6667, 0.6667, 0.6667, 2.0000], dtype=torch.float64)
    """
    if metric == "top-1":
        return torch.ones(len(labels), dtype=torch.float64)
    _, row, sizes = torch.unique(labels, return_inverse=True, return_counts=True)
    weights: Tensor = len(labels) / (len(sizes) * sizes.double()[row])
    return weights


def accuracy_by_size(answers: Answers) -> dict[str, dict[str, float]]:
    """Mean accuracy over the classes with many, some and few training images (over 100, 20 to 100, under 20).

    Empty if classes are about equally large. Classes without a tested image do not count.

    >>> references = torch.tensor([0] * 150 + [1] * 10)
    >>> accuracy_by_size(Answers(torch.tensor([True, True, False]), torch.tensor([0, 1, 1]), references))
    {'head': {'classes': 1, 'accuracy': 100.0}, 'tail': {'classes': 1, 'accuracy': 50.0}}
    """
    classes, sizes = torch.unique(answers.references[answers.references >= 0], return_counts=True)
    if not len(sizes) or int(sizes.max()) <= UNEVEN * int(sizes.min()):
        return {}
    groups: dict[str, dict[str, float]] = {}
    above = int(sizes.max()) + 1
    for name, least in GROUPS.items():
        accuracies = [
            100 * float(answers.is_correct[tested].double().mean())
            for number in classes[(sizes >= least) & (sizes < above)].tolist()
            if (tested := answers.labels == number).any()
        ]
        if accuracies:
            groups[name] = {"classes": len(accuracies), "accuracy": sum(accuracies) / len(accuracies)}
        above = least
    return groups


def chance(references: Tensor, metric: TransferMetric = "top-1") -> float:
    """Accuracy in percent of an answer that ignores the image: always the most frequent class of the references.

    >>> chance(torch.tensor([0, 0, 0, 1])), chance(torch.tensor([0, 0, 0, 1]), "mean-per-class")
    (75.0, 50.0)
    """
    sizes = torch.bincount(references[references >= 0])
    sizes = sizes[sizes > 0]
    return 100 / len(sizes) if metric == "mean-per-class" else 100 * float(sizes.max()) / float(sizes.sum())


# --- average precision ------------------------------------------------------------------------------------------------


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
    generator = torch.Generator().manual_seed(0)
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
