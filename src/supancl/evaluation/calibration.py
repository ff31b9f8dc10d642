"""From a classifier to labels with a confidence: what held-out images choose, and how well they are labelled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from supancl.evaluation.references import References
from supancl.probes import Features
from supancl.probes.certainty import chance
from supancl.probes.classifiers import Classifier, classify, fit_temperature
from supancl.probes.linear import stratified_folds
from supancl.probes.several_classifiers import THRESHOLD, fit_several_temperature, mean_f1, rank_classes
from supancl.probes.several_labels import ClassScores
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
    return _calibrate_one(fitted) if fitted.references.pairs is None else _calibrate_several(fitted, most_labels)


def _calibrate_one(fitted: FittedClassifier) -> tuple[Labeller, dict[str, Any]]:
    """The temperature of the confidence, fitted on unseen images, and how often those are predicted right."""
    held_out = fitted.references.held_out
    logits, labels = torch.empty(0), held_out.labels
    if len(labels):
        logits = fitted.classifier.logits(held_out.values)
    elif fitted.refit is not None:
        logits, labels = _cross_validate(fitted.references, fitted.refit)
    number = {name: i for i, name in enumerate(fitted.classes)}
    numbers = torch.tensor([number.get(name, -1) for name in fitted.references.classes], dtype=torch.long)
    temperature = 1.0
    check: dict[str, Any] = {"checked_on": 0, "accuracy": None, "accuracy_interval": None, "mean_confidence": None}
    if len(labels):
        labels = numbers[labels]
        temperature = fit_temperature(logits, labels)
        confidence, predicted = (logits / temperature).softmax(1).max(1)
        accuracy, *interval = wilson_interval(100 * float((predicted == labels).double().mean()), len(labels))
        check = {
            "checked_on": len(labels),
            "accuracy": accuracy,
            "accuracy_interval": interval,
            "chance": chance(fitted.references.features.labels),
            "cross_validated": not len(held_out.labels),
            "mean_confidence": 100 * float(confidence.double().mean()),
        }

    def label(values: Tensor) -> PredictedLabels:
        predicted = classify(fitted.classifier, values, temperature)
        return PredictedLabels(predicted.labels[:, None], predicted.confidence)

    return label, {**check, "temperature": temperature}


def _cross_validate(references: References, fit: Callable[[References], Classifier]) -> tuple[Tensor, Tensor]:
    """Logits of each fifth of the references by a classifier of the others, and their classes.

    A class with one reference cannot be tested.
    """
    values, labels = references.features
    is_testable = torch.bincount(labels)[labels] > 1
    values, labels = values[is_testable], labels[is_testable]
    fold, logits = stratified_folds(labels), torch.empty(len(labels), len(references.classes))
    for part in (fold == number for number in torch.unique(fold).tolist()):
        others = references._replace(features=Features(values[~part], labels[~part]))
        logits[part] = fit(others).logits(values[part])
    return logits, labels


def _calibrate_several(fitted: FittedClassifier, most_labels: int) -> tuple[Labeller, dict[str, Any]]:
    """The temperature of the probabilities, and mAP and F1 of held-out images."""
    classifier, classes = fitted.classifier, len(fitted.classes)
    temperature = 1.0
    references, held_out = fitted.references.several
    check: dict[str, Any] = dict.fromkeys(("map", "map_interval", "f1", "f1_interval"))
    check |= dict.fromkeys(("least_sure_right", "least_sure_right_interval", "mean_confidence"))
    check["checked_on"] = 0
    if len(held_out.labels):
        targets, logits = held_out.targets(classes), classifier.logits(held_out.values)
        has_reference = references.targets(classes).any(0)
        temperature = fit_several_temperature(logits[:, has_reference], targets[:, has_reference])
        ranked = rank_classes(classifier, held_out.values, classes, most_labels, temperature)
        f1, judged = mean_f1(ranked, targets), ClassScores(logits, targets)
        last = ranked.is_listed.sum(1, keepdim=True) - 1
        least_sure = targets.gather(1, ranked.numbers.gather(1, last))
        right, *interval = wilson_interval(100 * float(least_sure.double().mean()), judged.images)
        check = {
            "checked_on": judged.images,
            "map": judged.value,
            "map_interval": list(judged.interval[1:]),
            "f1": f1[0],
            "f1_interval": list(f1[1:]),
            "least_sure_right": right,
            "least_sure_right_interval": interval,
            "mean_confidence": 100 * float(ranked.confidence.double().mean()),
        }

    def label(values: Tensor) -> PredictedLabels:
        ranked = rank_classes(classifier, values, classes, most_labels, temperature)
        return PredictedLabels(ranked.labels, ranked.confidence)

    return label, {**check, "temperature": temperature, "label_threshold": THRESHOLD}
