"""From a classifier to labels with a confidence: what held-out images choose, and how well they are labelled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from supancl.evaluation.references import References
from supancl.probes.certainty import ClassScores, chance
from supancl.probes.classifiers import (
    THRESHOLD,
    Calibration,
    Classifier,
    fit_temperature,
    logits_in_chunks,
    mean_f1,
    rank_classes,
)
from supancl.probes.linear import stratified_folds
from supancl.stats import wilson_interval


class FittedClassifier(NamedTuple):
    """A classifier of features, its class names, the references to compare with, and words and numbers about it."""

    classifier: Classifier
    classes: tuple[str, ...]
    references: References
    summary: dict[str, Any]
    refit: Callable[[References], Classifier] | None = None  # the same classifier of other references


class PredictedLabels(NamedTuple):
    """The predicted labels of each image (images, L), padded with -1 where there are fewer, and their confidence."""

    labels: Tensor
    confidence: Tensor


Labeller = Callable[[Tensor], PredictedLabels]  # of features


def calibrate(fitted: FittedClassifier, most_labels: int) -> tuple[Labeller, dict[str, Any]]:
    """How to label images by their features, and how good that is on held-out ones.

    If the references have several labels per image, an image gets up to `most_labels`, else one.
    """
    several = 0 if fitted.references.features.pairs is None else most_labels
    check = _check_several(fitted, several) if several else _check(fitted)

    def label(values: Tensor) -> PredictedLabels:
        ranked = rank_classes(fitted.classifier, values, len(fitted.classes), several, check["temperature"])
        return PredictedLabels(ranked.labels, ranked.confidence)

    return label, check


def _check(fitted: FittedClassifier) -> dict[str, Any]:
    """The temperature of the confidence, fitted on unseen images, and how often those are predicted right."""
    number = {name: i for i, name in enumerate(fitted.classes)}
    numbers = torch.tensor([number.get(name, -1) for name in fitted.references.classes], dtype=torch.long)
    calibration = Calibration()
    for logits, labels in _unseen(fitted):
        calibration.add(logits, numbers[labels])
    check: dict[str, Any] = {"checked_on": 0, "accuracy": None, "accuracy_interval": None, "mean_confidence": None}
    if calibration.right:
        right = torch.cat(calibration.right)
        accuracy, *interval = wilson_interval(100 * float(right.double().mean()), len(right))
        check = {
            "checked_on": len(right),
            "accuracy": accuracy,
            "accuracy_interval": interval,
            "chance": chance(fitted.references.features.labels),
            "cross_validated": not len(fitted.references.held_out),
            "mean_confidence": calibration.mean_confidence,
        }
    return {**check, "temperature": calibration.temperature}


def _unseen(fitted: FittedClassifier) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits and classes of held-out images, or of each fifth of the references by a classifier of the others.

    A class with one reference cannot be tested.
    """
    held_out, references, classes = fitted.references.held_out, fitted.references.features, len(fitted.classes)
    if len(held_out):
        parts = [(fitted.classifier, held_out)]
    elif fitted.refit is not None:
        testable = references.take(torch.bincount(references.labels)[references.labels] > 1)
        fold = stratified_folds(testable.labels)
        parts = []
        for part in (fold == number for number in torch.unique(fold).tolist()):
            others = fitted.references._replace(features=testable.take(~part))
            parts.append((fitted.refit(others), testable.take(part)))
    else:
        parts = []
    for classifier, images in parts:
        start = 0
        for logits in logits_in_chunks(classifier, images.values, classes):
            yield logits, images.labels[start : start + len(logits)]
            start += len(logits)


def _check_several(fitted: FittedClassifier, most: int) -> dict[str, Any]:
    """The temperature of the probabilities, and mAP and F1 of held-out images."""
    classifier, classes, held_out = fitted.classifier, len(fitted.classes), fitted.references.held_out
    about: dict[str, Any] = {"temperature": 1.0, "label_threshold": THRESHOLD}
    if not len(held_out):
        keys = ("map", "map_interval", "f1", "f1_interval", "least_sure_right", "least_sure_right_interval")
        return dict.fromkeys((*keys, "mean_confidence")) | {"checked_on": 0, **about}
    targets, logits = held_out.targets(classes), classifier.logits(held_out.values)
    has_reference = fitted.references.features.targets(classes).any(0)
    temperature = fit_temperature(logits[:, has_reference], targets[:, has_reference])
    ranked = rank_classes(classifier, held_out.values, classes, most, temperature)
    f1, judged = mean_f1(ranked, targets), ClassScores(logits, targets)
    last = ranked.is_listed.sum(1, keepdim=True) - 1
    least_sure = targets.gather(1, ranked.numbers.gather(1, last))
    right, *interval = wilson_interval(100 * float(least_sure.double().mean()), judged.images)
    return {
        "checked_on": judged.images,
        "map": judged.value,
        "map_interval": list(judged.interval[1:]),
        "f1": f1[0],
        "f1_interval": list(f1[1:]),
        "least_sure_right": right,
        "least_sure_right_interval": interval,
        "mean_confidence": 100 * float(ranked.confidence.double().mean()),
        **about,
        "temperature": temperature,
    }
