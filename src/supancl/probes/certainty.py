"""How much a figure says: its interval, chance, and its difference from another encoder on the same images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from supancl.probes.features import Features
from supancl.probes.precision import bootstrap_precision, mean_average_precision
from supancl.probes.transfer import TransferMetric
from supancl.stats import Interval, paired_accuracy_interval, percentile_interval, wilson_interval

UNEVEN = 2  # classes are unbalanced if the largest has more than this many times the images of the smallest
GROUPS = {"head": 101, "middle": 20, "tail": 1}  # training images of a class, at least


class Answers(NamedTuple):
    """Which of the tested images an encoder classified correctly, their classes, and those of the references."""

    is_correct: Tensor
    labels: Tensor
    references: Tensor
    metric: TransferMetric = "top-1"

    @property
    def key(self) -> str:
        """The figure's name in a result."""
        return "accuracy"

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

    @property
    def key(self) -> str:
        return "map"

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


Judgement = Answers | ClassScores  # what an encoder said about the tested images, measured by one figure in percent


def judge(
    said: Tensor, tested: Features, references: Tensor, classes: int = 0, metric: TransferMetric = "top-1"
) -> Judgement:
    """The figure of answers about labelled images: their classes, or for several labels scores of every class."""
    if tested.pairs is not None:
        return ClassScores(said, tested.targets(classes))
    return Answers(said == tested.labels, tested.labels, references, metric)


def join(judgements: Sequence[Any]) -> Answers:
    """Answers about different images, whose references were one another, as one."""
    is_correct, labels = (torch.cat([part[number] for part in judgements]) for number in (0, 1))
    return Answers(is_correct, labels, torch.cat([judgements[0].references, judgements[0].labels]))


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
