"""The protocols: each takes an encoder and a source of images, and returns a result that can be written as JSON."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.data.opening import absolute_source
from supancl.data.order import derive_seed, epoch_order
from supancl.data.splits import Split, fingerprint
from supancl.data.views.evaluation import View
from supancl.errors import BadInput, plural
from supancl.evaluate.certainty import certainty_keys
from supancl.evaluate.cross_validation import plan_cross_validation
from supancl.evaluate.encoder import EvaluatedEncoder, plain_crops
from supancl.evaluate.feature_cache import VERSION
from supancl.evaluate.naming import data_label, default_metric
from supancl.evaluate.sources import (
    EvaluationData,
    check_same_classes,
    check_unchanged,
    is_incomplete,
    is_run_source,
    open_evaluation_data,
    read_source,
    resolve_source,
    shares_images,
    spec_for,
    three_splits,
    warn_if_trained_on,
)
from supancl.probes import LinearProbe, SgdProbe, Transfer, collapse, linear_probe, sgd_probe, transfer
from supancl.probes.certainty import Answers
from supancl.probes.sgd import EpochOfBatches
from supancl.probes.transfer import TransferMetric
from supancl.weights.provenance import commit, hardware, versions

SPLITS = ("train", "val", "test")
TRAINED_IMAGES = "trained images"


def record_result(evaluated: EvaluatedEncoder, base: str, since: float, source: str, **result: Any) -> dict[str, Any]:
    """Add the conditions to a result and save it in the run folder as `base` and its non-default settings."""
    record = {
        "base": base,
        "source": absolute_source(source),
        "encoder": evaluated.location,
        "label": evaluated.label,
        "weights": evaluated.weights,
        "features_version": VERSION,
        "layer": evaluated.options.layer,
        "normalize": evaluated.options.normalize,
        **evaluated.projector_key,
        **result,
        "seconds": round(time.perf_counter() - since, 2),
        "hardware": hardware(evaluated.options.device),
        "versions": versions(),
        "commit": commit(),
    }
    evaluated.save_result(base, record)
    return record


def result_base_name(protocol: str, evaluated: EvaluatedEncoder, source: str | None) -> str:
    """`knn` for the data as the run used them, `knn-pets` for other data, or for more of the run's data."""
    run_data = evaluated.recipe.data if evaluated.recipe is not None and is_run_source(evaluated, source) else None
    is_whole_source = run_data is not None and run_data.is_whole
    return protocol if source is None or is_whole_source else f"{protocol}-{data_label(source)}"


def record_evaluation(
    evaluated: EvaluatedEncoder, evaluation: EvaluationData, protocol: str, since: float, **result: Any
) -> dict[str, Any]:
    """`record_result` of a protocol on one source: adds which images were tested, and whether results compare."""
    source = resolve_source(evaluated, evaluation.source)
    return record_result(
        evaluated,
        result_base_name(protocol, evaluated, evaluation.source),
        since,
        source,
        protocol=protocol,
        data=source,
        split=evaluation.split,
        judged=evaluation.taken_from,
        held_out_from=evaluation.data.summary["held_out_from"],
        skipped=len(evaluation.data.skipped),
        remarks=list(evaluation.data.remarks),
        partial=is_incomplete(source, evaluation.data.remarks, evaluation.data.skipped),
        overlaps_training=warn_if_trained_on(evaluated, evaluation.source, evaluation.taken_from),
        **result,
    )


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
    """Accuracy of a linear classifier fitted on training images: the convex probe, or `sgd`."""
    augmented = sgd is not None and sgd.augmented
    if augmented and evaluated.encoder.spec.name == "linear":
        raise BadInput(f"{evaluated.location}: --augmented crops images, but this encoder takes vectors; leave it out")
    since = time.perf_counter()
    evaluation = open_evaluation_data(evaluated, source, split, view)
    splits = {"train": evaluation.data.train.labels, describe_images(evaluation.taken_from): evaluation.images.labels}
    check_same_classes(
        evaluation.data.classes, evaluation.location, splits, may_lack=sgd is None
    )  # a class of one image has none held out
    cross_validation = None if sgd is not None else plan_cross_validation(evaluated, evaluation, view)
    cross_validate = None if cross_validation is None else partial(cross_validation.ask_linear, seed=seed)

    def fit(encoder: EvaluatedEncoder) -> LinearProbe | SgdProbe:
        if sgd is not None:
            return fit_sgd(encoder, evaluation, sgd, seed, view)
        return fit_ridge(encoder, evaluation, ridge_choice(evaluated, evaluation)[0], seed, view)

    def ask(encoder: EvaluatedEncoder) -> Answers:
        return _linear_answers(evaluation, fit(encoder).is_correct)

    fitted = fit(evaluated)
    outcome = describe_fit(evaluated, evaluation, fitted)
    answers = _linear_answers(evaluation, fitted.is_correct)
    # new crops in every epoch would make baselines as slow as the probe itself
    return record_evaluation(
        evaluated,
        evaluation,
        "linear",
        since,
        probe="lbfgs" if sgd is None else "sgd",
        augmented=augmented,
        seed=seed,
        view=view,
        queries=evaluation.images.num_labelled,
        tested_on=fingerprint(evaluation.images),
        **outcome,
        **certainty_keys(evaluated, answers, None if augmented else ask, cross_validate=cross_validate),
    )


def _linear_answers(evaluation: EvaluationData, is_correct: Tensor | None) -> Answers:
    assert is_correct is not None
    tested, train = evaluation.images.labels, evaluation.data.train.labels
    return Answers(is_correct, tested[tested >= 0], train[train >= 0])


def fit_ridge(
    evaluated: EvaluatedEncoder,
    evaluation: EvaluationData,
    choose: Split | Literal["halves"] | None,
    seed: int,
    view: View,
) -> LinearProbe:
    """Fit the convex probe; `choose` are the images that choose its ridge (`ridge_choice`)."""
    check_ridge_choice(evaluation.location, choose, evaluation.data.train, evaluation.images)
    test = evaluated.features(evaluation.images, view)
    choosing = evaluated.features(choose, view) if isinstance(choose, Split) else choose
    train = evaluated.features(evaluation.data.train, view)
    return linear_probe(train, test, choosing, seed=seed, device=evaluated.options.device)


def describe_fit(
    evaluated: EvaluatedEncoder, evaluation: EvaluationData, fitted: LinearProbe | SgdProbe
) -> dict[str, Any]:
    """The result of a probe, with warnings on how the convex one was chosen and solved."""
    if isinstance(fitted, SgdProbe):
        return fitted.to_json()
    outcome = rename_weights(fitted.to_json() | ridge_choice(evaluated, evaluation)[1])
    warn_chosen_on(evaluated, evaluation.location, outcome)
    warn_cut_off(evaluated, evaluation.location, outcome)
    return outcome


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


def ridge_choice(
    evaluated: EvaluatedEncoder, evaluation: EvaluationData
) -> tuple[Split | Literal["halves"] | None, dict[str, str]]:
    """Which images choose the ridge of `linear_probe`, and a `chosen_on` for the result if the probe cannot know it.

    For the run's own data it is the images that pretraining held out; if these are also tested, each half chooses for
    the other. A test split never chooses. For other data, or if nothing was held out, a fraction of train chooses.
    """
    data = evaluation.data
    if not shares_images(evaluated, evaluation.source):
        return None, {}
    if (
        is_run_source(evaluated, evaluation.source)
        and data.summary["held_out_from"] != "test"
        and data.held_out.num_labelled
    ):
        return (data.held_out if evaluation.taken_from == "test" else "halves"), {}
    return None, {"chosen_on": TRAINED_IMAGES}


def check_ridge_choice(location: str, choose: Split | str | None, train: Split, images: Split) -> None:
    """Check that a ridge can be chosen, before computing features."""
    if choose is None and int(torch.bincount(train.labels[train.labels >= 0]).max()) < 2:
        raise BadInput(f"{location}: every class has 1 training image, so none is left to choose the ridge; add images")
    if choose == "halves" and images.num_labelled < 2:
        raise BadInput(
            f"{location}: {plural(images.num_labelled, 'labelled image')} to test; each half chooses the ridge for "
            "the other, so add images, or hold out more with data.holdout"
        )


def warn_chosen_on(evaluated: EvaluatedEncoder, location: str, outcome: Mapping[str, Any]) -> None:
    if outcome["chosen_on"] == TRAINED_IMAGES:
        evaluated.reporter.warn(
            f"{location}: the ridge was chosen on images that the encoder was trained on, so it may be "
            "too weak; to choose it on others, pretrain with --set data.holdout=0.1 and evaluate "
            "the run on its own data with --split test"
        )


def rename_weights(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Rename `weights` of the ridge to `tried`: in every result `weights` is the encoder's checksum."""
    return {"tried" if key == "weights" else key: value for key, value in outcome.items()}


def warn_cut_off(evaluated: EvaluatedEncoder, location: str, outcome: Mapping[str, Any]) -> None:
    """Warn of a classifier that did not reach its optimum: its predictions may differ."""
    if outcome["cut_off"]:
        unit = "" if evaluated.options.normalize else "; normalised features (--normalize) are often easier to fit"
        evaluated.reporter.warn(
            f"{location}: the final classifier did not reach its optimum (residual "
            f"{outcome['residual']:.2g}), so its accuracy may differ{unit}"
        )


def describe_images(taken_from: str) -> str:
    """What messages call the tested images."""
    return "the held-out part" if taken_from == "train" else taken_from


def augmented_epochs(evaluated: EvaluatedEncoder, train: Split, batch_size: int, seed: int) -> EpochOfBatches:
    """Features of new random crops and flips in every epoch (no colour changes, as in MoCo's linear evaluation)."""
    encoder, options = evaluated.encoder.eval(), evaluated.options
    labelled = train.take((train.labels >= 0).nonzero()[:, 0])
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
    outcome = collapse(features).to_json()
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
    """App. E on a source; `name` is the name of the result if the source's is not unique."""
    since, name = time.perf_counter(), name or data_label(source)
    spec = spec_for(evaluated, source)
    data = read_source(evaluated, spec, view, "transfer")
    check_unchanged(evaluated, source, data)
    splits = three_splits(data, spec)
    check_same_classes(data.classes, source, {name: split.labels for name, split in zip(SPLITS, splits, strict=True)})
    kind = metric or default_metric(source)

    def fit(encoder: EvaluatedEncoder) -> Transfer:
        train, validation, test = (encoder.features(split, view) for split in splits)
        return transfer(train, validation, test, metric=kind, device=encoder.options.device)

    def answers(fitted: Transfer) -> Answers:
        assert fitted.is_correct is not None
        fit_labels = torch.cat([split.labels for split in splits[:2]])
        return Answers(fitted.is_correct, splits[2].labels[splits[2].labels >= 0], fit_labels)

    fitted = fit(evaluated)
    outcome = rename_weights(fitted.to_json())
    key = ("transfer", kind, view, fingerprint(*splits))
    certainty = certainty_keys(evaluated, answers(fitted), lambda encoder: answers(fit(encoder)), kind, key=key)
    warn_cut_off(evaluated, name, outcome)
    overlaps = warn_if_trained_on(evaluated, source, "test" if "test" in data.splits else "val")
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
        **outcome,
        **certainty,
    )
