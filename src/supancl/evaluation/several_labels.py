"""The linear classifiers of `linear` and `transfer` for images with several labels: mean average precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from supancl.config import to_json
from supancl.data.splits import Split
from supancl.data.views.evaluation import View
from supancl.evaluation.encoder import EvaluatedEncoder
from supancl.evaluation.sources import EvaluationData
from supancl.probes.several_labels import ClassScores, SeveralFeatures, attach_labels, linear_scores, transfer_scores


def several_features(evaluated: EvaluatedEncoder, split: Split, view: View) -> SeveralFeatures:
    """The features of the labelled images of a split, with all their labels."""
    return attach_labels(evaluated.features(split, view), split)


def fit_linear(
    evaluated: EvaluatedEncoder,
    evaluation: EvaluationData,
    choose: Split | Literal["halves"] | None,
    seed: int,
    view: View,
) -> tuple[ClassScores, dict[str, Any]]:
    """The scores of the tested images by a logistic regression per class, and how its ridge was chosen."""
    classes = len(evaluation.data.classes)
    test = several_features(evaluated, evaluation.images, view)
    choosing = several_features(evaluated, choose, view) if isinstance(choose, Split) else choose
    train = several_features(evaluated, evaluation.data.train, view)
    scores, about = linear_scores(train, test, choosing, classes, seed, evaluated.options.device)
    trained_classes = len(evaluation.data.train.class_ids())
    return ClassScores(scores, test.targets(classes)), to_json(about) | {"classes": trained_classes}


def fit_transfer(
    evaluated: EvaluatedEncoder, splits: Sequence[Split], classes: int, view: View
) -> tuple[ClassScores, dict[str, Any]]:
    """The scores of the test images by App. E's protocol with a logistic regression per class, and how it was chosen.

    `splits` are train, val and test.
    """
    train, validation, test = (several_features(evaluated, split, view) for split in splits)
    scores, about = transfer_scores(train, validation, test, classes, evaluated.options.device)
    return ClassScores(scores, test.targets(classes)), to_json(about) | {"classes": len(splits[0].class_ids())}
