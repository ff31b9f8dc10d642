"""The keys of a result that say how much its accuracy means: interval, chance, cross-validation, baselines, verdict."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from supancl.errors import BadInput
from supancl.evaluate.baselines import Ask, compare_with_baselines, verdict
from supancl.evaluate.encoder import EvaluatedEncoder
from supancl.probes.certainty import Answers, accuracy_by_size, accuracy_interval, chance, weighted_accuracy
from supancl.probes.transfer import TransferMetric


def interval_keys(accuracy: float, answers: Answers, metric: TransferMetric = "top-1") -> dict[str, Any]:
    """The interval of an accuracy, its number of images, chance; and the accuracy of large and small classes."""
    interval = accuracy_interval(accuracy, answers.labels, metric)
    keys: dict[str, Any] = {
        "tested_images": len(answers.labels),
        "accuracy_interval": [interval.low, interval.high],
        "chance": chance(answers.references, metric),
    }
    if groups := accuracy_by_size(answers):
        keys |= {"balanced_accuracy": weighted_accuracy(answers, "mean-per-class"), "by_class_size": groups}
    return keys


def certainty_keys(
    evaluated: EvaluatedEncoder,
    answers: Answers,
    ask: Ask | None,
    metric: TransferMetric = "top-1",
    cross_validate: Ask | None = None,
    key: tuple[Hashable, ...] | None = None,
) -> dict[str, Any]:
    """Everything that says how much the accuracy of `answers` means.

    `ask` puts the same question to another encoder; None: there are no baselines. With `cross_validate`, its answers
    about more images are added, and the baselines are compared on those.
    """
    keys = interval_keys(weighted_accuracy(answers, metric), answers, metric)
    if cross_validate is not None:
        try:
            answers, ask, key = cross_validate(evaluated), cross_validate, None
            keys["cross_validated"] = {"accuracy": answers.accuracy, **interval_keys(answers.accuracy, answers)}
        except BadInput as error:
            evaluated.warn_once(f"{evaluated.location}: not cross-validated: {error}")
    if not evaluated.options.baselines:
        return keys
    keys["baselines"] = [] if ask is None else compare_with_baselines(evaluated, answers, ask, metric, key)
    accuracy = weighted_accuracy(answers, metric)
    interval = accuracy_interval(accuracy, answers.labels, metric)
    keys["verdict"] = verdict(len(answers.labels), interval, chance(answers.references, metric), keys["baselines"])
    return keys
