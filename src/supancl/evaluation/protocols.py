"""The protocols: each takes an encoder and a source of images, and returns a result that can be written as JSON."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.data.hierarchy import Level, take_each_level
from supancl.data.order import derive_seed, epoch_order
from supancl.data.splits import Split, fingerprint
from supancl.data.views.evaluation import View
from supancl.errors import BadInput
from supancl.evaluation.certainty import Fitted, certainty_keys, level_keys
from supancl.evaluation.class_checks import check_classes, warn_unknown
from supancl.evaluation.cross_validation import plan_cross_validation
from supancl.evaluation.encoder import EvaluatedEncoder, plain_crops
from supancl.evaluation.naming import data_label, default_metric
from supancl.evaluation.overlap import is_incomplete, warn_if_trained_on
from supancl.evaluation.recording import record_evaluation, record_result
from supancl.evaluation.ridge import rename_weights, ridge_choice, warn_chosen_on, warn_cut_off
from supancl.evaluation.sources import (
    EvaluationData,
    check_unchanged,
    open_evaluation_data,
    read_source,
    spec_for,
    three_splits,
)
from supancl.probes import SgdProbe, collapse, linear_probe, sgd_probe, transfer
from supancl.probes.certainty import Answers, ClassScores, Judgement
from supancl.probes.sgd import EpochOfBatches
from supancl.probes.transfer import TransferMetric

SPLITS = ("train", "val", "test")
TransferProblem = tuple[Sequence[Split], tuple[str, ...]]  # the three splits and their classes


@dataclass(frozen=True)
class SgdSettings:
    """The paper's linear probe, trained with SGD; the learning rate drops at 60% and 80% of the epochs."""

    epochs: int = 100
    lr: float = 30.0  # at a batch of 256
    batch_size: int = 256
    augmented: bool = False  # new random crops in every epoch


def evaluate_linear(
    evaluated: EvaluatedEncoder,
    source: str | None = None,
    sgd: SgdSettings | None = None,
    seed: int = 0,
    split: str = "held-out",
    view: View = "margin",
) -> dict[str, Any]:
    """Accuracy of a linear classifier fitted on training images: the convex probe, or `sgd`.

    Of images with several labels it is the mean average precision, and of a hierarchy the accuracy on each level.
    """
    augmented = sgd is not None and sgd.augmented
    if augmented and evaluated.encoder.spec.name == "linear":
        raise BadInput(f"{evaluated.location}: augmented crops images, but this encoder takes vectors; leave it out")
    since = time.perf_counter()
    evaluation = open_evaluation_data(evaluated, source, split, view, several_labels=sgd is None)
    _check_linear(evaluation, may_lack=sgd is None)  # a class of one image has none held out
    train = (evaluation.data.train,)
    warn_unknown(evaluated, evaluation.data.classes, evaluation.location, train, evaluation.images)
    cross_validation = None if sgd is not None else plan_cross_validation(evaluated, evaluation, view)
    cross_validate = None if cross_validation is None else partial(cross_validation.ask_linear, seed=seed)

    def fit(encoder: EvaluatedEncoder, evaluation: EvaluationData) -> Fitted:
        if sgd is not None:
            fitted = fit_sgd(encoder, evaluation, sgd, seed, view)
            return _linear_answers(evaluation, fitted.is_correct), fitted.to_json()
        return _fit_convex(encoder, evaluation, ridge_choice(evaluated, evaluation), seed, view)

    def ask_level(level: EvaluationData) -> Fitted:
        _check_linear(level, may_lack=sgd is None)
        return fit(evaluated, level)

    judged, outcome = fit(evaluated, evaluation)
    if sgd is None:
        warn_chosen_on(evaluated, evaluation.location, outcome)
        warn_cut_off(evaluated, evaluation.location, outcome)
        outcome = rename_weights(outcome)
    # new crops in every epoch would make baselines as slow as the probe itself
    ask = None if augmented else lambda encoder: fit(encoder, evaluation)[0]
    return record_evaluation(
        evaluated,
        evaluation,
        "linear",
        since,
        probe="lbfgs" if sgd is None else "sgd",
        augmented=augmented,
        seed=seed,
        view=view,
        queries=judged.images,
        tested_on=fingerprint(evaluation.images),
        **{judged.key: judged.value, **outcome},
        **level_keys(evaluated, (judged, outcome), evaluation.levels, ask_level),
        **certainty_keys(evaluated, judged, ask, cross_validate=cross_validate),
    )


def _check_linear(evaluation: EvaluationData, may_lack: bool) -> None:
    """Check the classes of the images to fit and to test."""
    tested = "the held-out part" if evaluation.taken_from == "train" else evaluation.taken_from
    splits = {"train": evaluation.data.train, tested: evaluation.images}
    check_classes(evaluation.data.classes, evaluation.location, splits, may_lack)


def _linear_answers(evaluation: EvaluationData, is_correct: Tensor | None) -> Answers:
    assert is_correct is not None
    tested, train = evaluation.images.labels, evaluation.data.train.labels
    return Answers(is_correct, tested[tested >= 0], train[train >= 0])


def _fit_convex(
    evaluated: EvaluatedEncoder,
    evaluation: EvaluationData,
    ridge: tuple[Split | Literal["halves"] | None, Mapping[str, str]],
    seed: int,
    view: View,
) -> Fitted:
    """What the convex probe says, and how it was chosen; `ridge` is the `ridge_choice`."""
    choose, chosen_on = ridge
    test = evaluated.features(evaluation.images, view)
    choosing = evaluated.features(choose, view) if isinstance(choose, Split) else choose
    train, classes = evaluated.features(evaluation.data.train, view), len(evaluation.data.classes)
    fitted = linear_probe(train, test, choosing, seed=seed, device=evaluated.options.device, classes=classes)
    outcome = fitted.to_json() | (dict(chosen_on) if fitted.chosen_on != "none" else {})
    if fitted.targets.ndim == 2:
        del outcome["accuracy"]
        outcome["classes"] = len(evaluation.data.train.class_ids())
        return ClassScores(fitted.answers, fitted.targets), outcome
    return _linear_answers(evaluation, fitted.is_correct), outcome


def fit_sgd(
    evaluated: EvaluatedEncoder, evaluation: EvaluationData, sgd: SgdSettings, seed: int, view: View
) -> SgdProbe:
    """Train the paper's probe, on features that are computed once or on new crops in every epoch."""
    test = evaluated.features(evaluation.images, view)
    options: dict[str, Any] = {
        "epochs": sgd.epochs,
        "batch_size": sgd.batch_size,
        "lr": sgd.lr,
        "milestones": (round(0.6 * sgd.epochs), round(0.8 * sgd.epochs)),
        "seed": seed,
        "device": evaluated.options.device,
    }
    if sgd.augmented:
        train = augmented_epochs(evaluated, evaluation.data.train, sgd.batch_size, seed)
        return sgd_probe(train, test.labelled(), len(evaluation.data.classes), **options)
    return sgd_probe(evaluated.features(evaluation.data.train, view), test, **options)


def augmented_epochs(evaluated: EvaluatedEncoder, train: Split, batch_size: int, seed: int) -> EpochOfBatches:
    """Features of new random crops and flips in every epoch (no colour changes, as in MoCo's linear evaluation)."""
    encoder, options = evaluated.encoder.eval(), evaluated.options
    labelled = train.labelled()
    views = plain_crops(evaluated, (0.08, 1.0))

    def epoch_of(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator(options.device).manual_seed(derive_seed(seed, epoch, 3))
        for positions in epoch_order(len(labelled), seed, epoch).split(batch_size):
            batch = labelled.batch(positions).to(options.device)
            with torch.inference_mode():
                view = views(batch, encoder.mean, encoder.std, generator, views=1)[0]
                values = encoder.features(view, options.layer).float()
                values = F.normalize(values, dim=1) if options.normalize else values
            yield values.clone(), labelled.labels[positions].to(options.device)

    return epoch_of


def evaluate_variance(
    evaluated: EvaluatedEncoder, source: str | None = None, split: str = "held-out", view: View = "margin"
) -> dict[str, Any]:
    """S_W, S_T, effective rank and neural collapse of normalised features; `split` is held-out, test or train."""
    since = time.perf_counter()
    evaluation = open_evaluation_data(evaluated, source, split, view)
    _check_two_classes(evaluation)
    features = evaluated.features(evaluation.images, view)
    device = evaluated.options.device
    # in double precision, which Apple's GPUs do not have
    outcome = collapse(features, device=device if device.type == "cuda" else None).to_json()
    names = [evaluation.data.classes[label] for label in outcome.pop("classes")]
    outcome["spread"] = dict(zip(names, outcome["spread"], strict=True))
    images = len(features.labelled().labels)
    return record_evaluation(
        evaluated, evaluation, "variance", since, normalize=True, view=view, images=images, **outcome
    )


def _check_two_classes(evaluation: EvaluationData) -> None:
    present = evaluation.images.class_ids()
    if len(present) < 2:
        only = f"only class {evaluation.data.classes[present[0]]!r}" if present else "no labelled image"
        raise BadInput(f"{evaluation.location}: {only} among the images to measure; measures between classes need two")


def evaluate_transfer(
    evaluated: EvaluatedEncoder,
    source: str,
    metric: TransferMetric | None = None,
    view: View = "whole",
    name: str | None = None,
) -> dict[str, Any]:
    """App. E on a source; `name` is the name of the result if the source's is not unique.

    Of images with several labels the result is the mean average precision, and of a hierarchy the accuracy on each
    level.
    """
    since, name = time.perf_counter(), name or data_label(source)
    spec = spec_for(evaluated, source)
    data = read_source(evaluated, spec, view, "transfer", several_labels=True)
    check_unchanged(evaluated, source, data)
    problem: TransferProblem = (three_splits(data, spec), data.classes)
    by_level: Sequence[TransferProblem | None] = ()
    if data.levels:
        problem, by_level = take_each_level(data, partial(_at_level, problem[0]))
    splits, _ = problem
    if metric is not None and not splits[2].all_labels.has_one_each:
        raise BadInput(f"metric {metric}: {source} has several labels per image, which mAP judges; leave it out")
    kind = metric or default_metric(source)
    fit = partial(_fit_transfer, view=view, metric=kind, location=source)
    judged, outcome = fit(evaluated, problem)
    warn_unknown(evaluated, problem[1], source, splits[:2], splits[2])
    outcome = rename_weights(outcome)
    key = ("transfer", kind, view, fingerprint(*splits))
    certainty = certainty_keys(evaluated, judged, lambda encoder: fit(encoder, problem)[0], key=key)
    levels = level_keys(evaluated, (judged, outcome), by_level, lambda level: fit(evaluated, level))
    warn_cut_off(evaluated, name, outcome)
    drawn_from = next(data.splits[split] for split in ("test", "val", "train") if split in data.splits)
    overlaps = warn_if_trained_on(evaluated, source, "test" if "test" in data.splits else "val", [drawn_from])
    return record_result(
        evaluated,
        f"transfer-{name}",
        since,
        protocol="transfer",
        data=name,
        source=source,
        view=view,
        remarks=list(data.remarks),
        partial=is_incomplete(source, data.remarks, data.skipped),
        overlaps_training=overlaps,
        tested_on=fingerprint(splits[2]),
        **{judged.key: judged.value} | outcome,
        **levels,
        **certainty,
    )


def _at_level(splits: Sequence[Split], level: Level) -> TransferProblem:
    return tuple(map(level.take_labels, splits)), level.classes


def _fit_transfer(
    evaluated: EvaluatedEncoder,
    problem: TransferProblem,
    view: View,
    metric: TransferMetric,
    location: str,
) -> tuple[Judgement, dict[str, Any]]:
    """What the classifier says about the test images, and how it was chosen."""
    splits, classes = problem
    check_classes(classes, location, dict(zip(SPLITS, splits, strict=True)))
    train, validation, test = (evaluated.features(split, view) for split in splits)
    fitted = transfer(train, validation, test, metric, device=evaluated.options.device, classes=len(classes))
    outcome = fitted.to_json()
    if fitted.targets.ndim == 2:
        del outcome["accuracy"], outcome["metric"]
        outcome["classes"] = len(splits[0].class_ids())
        return ClassScores(fitted.answers, fitted.targets), outcome
    fit_labels = torch.cat([split.labels for split in splits[:2]])
    return Answers(fitted.is_correct, splits[2].labels[splits[2].labels >= 0], fit_labels, metric), outcome
