"""Images with several labels: every class gets a score for every image, and mean average precision judges the scores.

A class is a label of an image if its weight is above 0. How large the weight is counts only in the votes of k-NN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from supancl.core.labels import Labels
from supancl.data.splits import Split
from supancl.errors import BadInput
from supancl.probes.features import Features, check_finite
from supancl.probes.goals import SeveralLabels
from supancl.probes.knn import Metric, count_votes, neighbours
from supancl.probes.linear import choose_ridge_images, fit_best_ridge
from supancl.probes.precision import bootstrap_precision, mean_average_precision
from supancl.probes.transfer import fit_on_validation
from supancl.stats import Interval, percentile_interval


class SeveralFeatures(NamedTuple):
    """Features of labelled images, their pairs (N, L, 2), and of each its rarest class, by which images are drawn."""

    values: Tensor
    pairs: Tensor
    labels: Tensor

    def targets(self, classes: int) -> Tensor:
        """(N, classes): whether the image has the class."""
        return Labels.of(self.pairs).dense(classes, torch.float32) > 0

    def with_targets(self, classes: int) -> Features:
        return Features(self.values, self.targets(classes))


def attach_labels(features: Features, split: Split) -> SeveralFeatures:
    """The features of the labelled images of a split with several labels, which `embed` has left out."""
    assert split.pairs is not None
    has_label = split.labels >= 0
    values = features.values[has_label.to(features.values.device)]
    return SeveralFeatures(values, split.pairs[has_label], split.labels[has_label])


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

    def minus(self, theirs: ClassScores) -> Interval:
        return percentile_interval(self.value - theirs.value, (self.draws - theirs.draws).numpy())

    def more_keys(self) -> dict[str, Any]:
        return {
            "map_11_point": mean_average_precision(self.scores, self.targets, "11-point"),
            "untested_classes": int((~self.targets.any(0)).sum()),
        }


def knn_scores(
    reference: SeveralFeatures,
    queries: SeveralFeatures,
    ks: Sequence[int],
    classes: int,
    temperature: float = 0.1,
    metric: Metric = "cosine",
    device: torch.device | str | None = None,
) -> dict[int, Tensor]:
    """By k, (queries, classes): the class's part of the votes of the k nearest references.

    A neighbour divides its vote among its classes by their weights. If `queries` is `reference`, none is its own
    neighbour.
    """
    alone = Features(reference.values, reference.labels)
    matches = neighbours(alone, queries.values, max(ks), metric, device=device, leave_one_out=queries is reference)
    votes = {k: count_votes(matches, reference.pairs, k, temperature, classes) for k in ks}
    return {k: equalize(vote / vote.sum(1, keepdim=True)).cpu() for k, vote in votes.items()}


def equalize(values: Tensor) -> Tensor:
    """Values rounded to 18 bits: parts of a vote that differ only by rounding must not rank images."""
    mantissa, exponent = torch.frexp(values)
    return torch.ldexp((mantissa * 2**18).round() / 2**18, exponent)


def linear_scores(
    train: SeveralFeatures,
    test: SeveralFeatures,
    choose: SeveralFeatures | Literal["halves"] | None,
    classes: int,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> tuple[Tensor, dict[str, Any]]:
    """(test images, classes): logits of a logistic regression per class, and how their common ridge was chosen.

    As `linear_probe`, with the ridge of the highest mean average precision. If each half of the test images chooses for
    the other, their logits may be of two ridges; both are log odds, so they are compared as they are.
    """
    check_widths(train, test, *((choose,) if isinstance(choose, SeveralFeatures) else ()))
    choosing = choose.with_targets(classes) if isinstance(choose, SeveralFeatures) else choose
    choice = choose_ridge_images(train.with_targets(classes), train.labels, test.labels, choosing, seed=seed)
    return fit_best_ridge(choice, test.with_targets(classes), SeveralLabels(), device=device)


def transfer_scores(
    train: SeveralFeatures,
    validation: SeveralFeatures,
    test: SeveralFeatures,
    classes: int,
    device: torch.device | str = "cpu",
) -> tuple[Tensor, dict[str, Any]]:
    """(test images, classes): logits of a logistic regression per class on raw features, chosen as in `transfer`."""
    check_widths(train, validation, test)
    splits = [split.with_targets(classes) for split in (train, validation, test)]
    return fit_on_validation(splits, SeveralLabels(), device=device)


def check_widths(*splits: SeveralFeatures) -> None:
    """Refuse features that are not finite, or of different encoders."""
    for split in splits:
        check_finite("several-label", split.values)
        if split.values.shape[1] != splits[0].values.shape[1]:
            raise BadInput(
                f"features are {split.values.shape[1]} and {splits[0].values.shape[1]} wide: embed all images with "
                "the same encoder"
            )
