"""The protocols: one driver; and of each the data that it opens, and what it measures of an encoder's features."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.data.opening import absolute_source
from supancl.data.order import derive_seed, epoch_order
from supancl.data.splits import Split, fingerprint
from supancl.errors import BadInput
from supancl.evaluation import few_shot, finetune
from supancl.evaluation.certainty import certainty_keys, level_keys, plan_cross_validation, warn_cut_off
from supancl.evaluation.encoder import EvaluatedEncoder, plain_crops
from supancl.evaluation.feature_cache import VERSION
from supancl.evaluation.naming import data_label, default_metric
from supancl.evaluation.overlap import is_incomplete, is_run_source, shares_images, warn_if_trained_on
from supancl.evaluation.settings import (
    TRAINED_IMAGES,
    FewShot,
    FineTune,
    Knn,
    Linear,
    Settings,
    Transfer,
    Variance,
)
from supancl.evaluation.sources import (
    EvaluationData,
    Parts,
    check_classes,
    open_evaluation_data,
    open_transfer_data,
    resolve_source,
)
from supancl.probes import SgdProbe, collapse, linear_probe, sgd_probe, transfer
from supancl.probes.certainty import Answers, Judgement, join, judge
from supancl.probes.knn import default_k, knn_answers
from supancl.probes.sgd import EpochOfBatches
from supancl.runs.provenance import commit, hardware, versions

Answer = tuple[Judgement | None, dict[str, Any]]  # what is measured, and what else a result says


class Protocol(NamedTuple):
    """What to open and check, and what to answer from features of its parts."""

    open: Callable[[EvaluatedEncoder, str | None, Any], EvaluationData]
    answer: Callable[[EvaluatedEncoder, Parts, Any], Answer]


def evaluate(
    evaluated: EvaluatedEncoder, settings: Settings, source: str | None = None, name: str | None = None
) -> dict[str, Any]:
    """Measure an encoder by the protocol of these settings, and save the result in its run.

    `source` is the run's own data by default. Protocols for other data name their results by it, or by `name`.
    """
    since = time.perf_counter()
    if settings.needs_data and source is None:
        raise BadInput(f"{settings.name} is measured on other data than the run's; name data")
    protocol = PROTOCOLS[type(settings)]
    data = protocol.open(evaluated, source, settings)

    def answer(encoder: EvaluatedEncoder, data: EvaluationData = data) -> Answer:
        return protocol.answer(encoder, Parts(encoder, data), settings)

    judged, about = answer(evaluated)
    if judged is not None:
        about = {judged.key: judged.value, "tested_on": fingerprint(data.images), **about}
        warn_cut_off(evaluated, data.location, about)
        crossed = plan_cross_validation(evaluated, data) if settings.is_cross_validated else None

        def cross_validate(encoder: EvaluatedEncoder) -> Judgement:
            assert crossed is not None
            return join([protocol.answer(encoder, parts, settings)[0] for parts in crossed.folds(encoder)])

        ask = (lambda encoder: answer(encoder)[0]) if settings.is_quick else None
        about |= level_keys(evaluated, (judged, about), data.levels, answer)
        about |= certainty_keys(evaluated, judged, ask, cross_validate if crossed else None, data.key)
    return record(evaluated, data, settings, about, since, name)


def record(
    evaluated: EvaluatedEncoder,
    data: EvaluationData,
    settings: Settings,
    about: Mapping[str, Any],
    since: float,
    name: str | None,
) -> dict[str, Any]:
    """Add the conditions to a result and save it in the run folder under its name."""
    source = resolve_source(evaluated, data.source)
    name = name or data_label(source)
    run_data = evaluated.recipe.data if evaluated.recipe is not None and is_run_source(evaluated, data.source) else None
    is_own = data.source is None or (run_data is not None and run_data.is_whole)
    base = f"{settings.name}-{name}" if settings.needs_data or not is_own else settings.name
    result = {
        "base": base + about.get("kind", ""),
        "source": absolute_source(source),
        "encoder": evaluated.location,
        "label": evaluated.label,
        "weights": evaluated.weights,
        "features_version": VERSION,
        "layer": evaluated.options.layer,
        "normalize": evaluated.options.normalize,
        **evaluated.projector_key,
        "protocol": settings.name,
        "data": name if settings.needs_data else source,
        "split": data.split,
        "judged": data.taken_from,
        "held_out_from": data.data.summary["held_out_from"],
        "skipped": len(data.data.skipped),
        "remarks": list(data.data.remarks),
        "partial": is_incomplete(source, data.data.remarks, data.data.skipped),
        "overlaps_training": warn_if_trained_on(evaluated, data.source, data.drawn_from, data.tests_every),
        **settings.in_result(),
        **about,
        "seconds": round(time.perf_counter() - since, 2),
        "hardware": hardware(evaluated.options.device),
        "versions": versions(),
        "commit": commit(),
    }
    result.pop("kind", None)
    evaluated.save_result(result["base"], result)
    return result


# --- k-NN -------------------------------------------------------------------------------------------------------------


def open_knn(evaluated: EvaluatedEncoder, source: str | None, settings: Knn) -> EvaluationData:
    data = open_evaluation_data(evaluated, source, settings.split, settings.view, several_labels=True)
    references = {"test": data.images} if settings.leave_one_out else {"train": data.data.train, "test": data.images}
    check_classes(evaluated, data, references, may_lack=True)
    most = next(iter(references.values())).num_labelled - settings.leave_one_out
    if max(settings.k or (0,)) > most:
        evaluated.reporter.note(f"{data.location}: k is at most {most}, the number of images to compare with")
    return data


def answer_knn(evaluated: EvaluatedEncoder, parts: Parts, settings: Knn) -> Answer:
    tested, leave_one_out = parts["test"].labelled(), settings.leave_one_out
    references = tested if leave_one_out else parts["train"].labelled()
    numbers = references.class_numbers()
    usual, most = default_k(numbers, leave_one_out), len(references) - leave_one_out
    ks = tuple(dict.fromkeys(min(k, most) for k in settings.k or (usual,)))
    said = knn_answers(
        references,
        tested,
        ks,
        settings.temperature,
        settings.metric,
        evaluated.options.device,
        leave_one_out,
        parts.classes,
    )
    judged = {k: judge(answers, tested, references.labels, parts.classes) for k, answers in said.items()}
    main = judged[ks[0]]
    return main, {
        "k": ks[0],
        "default_k": usual,
        "by_k": {str(k): judgement.value for k, judgement in judged.items()},
        "references": len(references),
        "queries": main.images,
        "classes": len(torch.unique(numbers[numbers >= 0])),
    }


# --- linear classifiers -----------------------------------------------------------------------------------------------


def open_linear(evaluated: EvaluatedEncoder, source: str | None, settings: Linear) -> EvaluationData:
    """The data, and which images choose the ridge of the convex probe.

    For the run's own data it is the images that pretraining held out; if these are also tested, each half chooses for
    the other. A test split never chooses. For other data, or if nothing was held out, a part of train chooses.
    """
    if settings.augmented and evaluated.encoder.spec.name == "linear":
        raise BadInput(f"{evaluated.location}: augmented crops images, but this encoder takes vectors; leave it out")
    is_convex = settings.probe == "lbfgs"
    data = open_evaluation_data(evaluated, source, settings.split, settings.view, several_labels=is_convex)
    check_classes(evaluated, data, {"train": data.data.train, "test": data.images}, may_lack=is_convex)
    held_out = data.data.held_out.num_labelled and data.data.summary["held_out_from"] != "test"
    if not shares_images(evaluated, source, (data.data.train,)):
        return data
    if held_out and is_run_source(evaluated, source):
        return data.chosen_by("held-out" if data.taken_from == "test" else "halves")
    return data.chosen_by(TRAINED_IMAGES)


def answer_linear(evaluated: EvaluatedEncoder, parts: Parts, settings: Linear) -> Answer:
    tested, device = parts["test"], evaluated.options.device
    if settings.probe == "sgd":
        probe = fit_sgd(evaluated, parts, settings)
        assert probe.is_correct is not None
        judged = Answers(probe.is_correct, tested.labelled().labels, parts["train"].labelled().labels)
        return judged, {**probe.to_json(), "queries": judged.images}
    chooses = parts.data.chooses
    choose: Any = parts["held-out"] if chooses == "held-out" else "halves" if chooses == "halves" else None
    fitted = linear_probe(parts["train"], tested, choose, seed=settings.seed, device=device, classes=parts.classes)
    about = fitted.to_json()
    about["tried"] = about.pop("weights")  # in a result, `weights` is the encoder's checksum
    if fitted.chosen_on_images and chooses == TRAINED_IMAGES:
        about["chosen_on"] = TRAINED_IMAGES
        evaluated.warn_once(
            f"{parts.data.location}: the ridge was chosen on images that the encoder was trained on, so it may be too "
            "weak; to choose it on others, pretrain with data.holdout=0.1 and evaluate with split test"
        )
    return _judge_fitted(fitted.answers, fitted.targets, parts, ("train",), about)


def fit_sgd(evaluated: EvaluatedEncoder, parts: Parts, settings: Linear) -> SgdProbe:
    """Train the paper's probe, on features that are computed once or on new crops in every epoch."""
    probe = partial(
        sgd_probe,
        epochs=settings.epochs,
        batch_size=settings.probe_batch,
        lr=settings.lr,
        milestones=(round(0.6 * settings.epochs), round(0.8 * settings.epochs)),
        seed=settings.seed,
        device=evaluated.options.device,
    )
    if not settings.augmented:
        return probe(parts["train"], parts["test"])
    train = augmented_epochs(evaluated, parts.data.data.train, settings.probe_batch, settings.seed)
    return probe(train, parts["test"].labelled(), parts.classes)


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


def open_transfer(evaluated: EvaluatedEncoder, source: str | None, settings: Transfer) -> EvaluationData:
    assert source is not None
    data = open_transfer_data(evaluated, source, settings.view)
    if settings.metric is not None and data.has_several_labels:
        raise BadInput(
            f"metric {settings.metric}: {source} has several labels per image, which mAP judges; leave it out"
        )
    splits = {"train": data.data.train, "val": data.data.held_out, "test": data.images}
    check_classes(evaluated, data, splits, fits_on=("train", "val"))
    return data._replace(key=(settings, fingerprint(*splits.values())))


def answer_transfer(evaluated: EvaluatedEncoder, parts: Parts, settings: Transfer) -> Answer:
    metric = settings.metric or default_metric(parts.data.location)
    splits = (parts["train"], parts["held-out"], parts["test"])
    fitted = transfer(*splits, metric, device=evaluated.options.device, classes=parts.classes)
    about = fitted.to_json()
    about["tried"] = about.pop("weights")
    if parts.data.has_several_labels:
        del about["metric"]
    return _judge_fitted(fitted.answers, fitted.targets, parts, ("train", "held-out"), about, metric)


def _judge_fitted(
    said: Tensor, targets: Tensor, parts: Parts, fitted: tuple[str, ...], about: dict[str, Any], metric: Any = "top-1"
) -> Answer:
    """The figure of a linear classifier's answers; `fitted` are the parts that it was fitted on."""
    del about["accuracy"]
    tested, train = parts["test"].labelled(), parts["train"]
    references = torch.cat([parts[name].labelled().labels for name in fitted])
    if tested.pairs is not None:
        numbers = train.labelled().class_numbers()
        about["classes"] = len(torch.unique(numbers[numbers >= 0]))
        return judge(said, tested, references, parts.classes), about
    judged = judge(torch.where(said == targets, tested.labels, -1), tested, references, metric=metric)
    return judged, {**about, "queries": judged.images}


# --- measures without a classifier ------------------------------------------------------------------------------------


def open_variance(evaluated: EvaluatedEncoder, source: str | None, settings: Variance) -> EvaluationData:
    data = open_evaluation_data(evaluated, source, settings.split, settings.view)
    check_classes(evaluated, data, {data.split: data.images})
    return data


def answer_variance(evaluated: EvaluatedEncoder, parts: Parts, settings: Variance) -> Answer:
    """S_W, S_T, effective rank and neural collapse of normalised features."""
    features, device = parts["test"], evaluated.options.device
    # in double precision, which Apple's GPUs do not have
    about = collapse(features, device=device if device.type == "cuda" else None).to_json()
    names = [parts.data.data.classes[label] for label in about.pop("classes")]
    about["spread"] = dict(zip(names, about["spread"], strict=True))
    return None, {"normalize": True, "images": len(features.labelled()), **about}


PROTOCOLS: dict[type[Settings], Protocol] = {
    Knn: Protocol(open_knn, answer_knn),
    Linear: Protocol(open_linear, answer_linear),
    Variance: Protocol(open_variance, answer_variance),
    Transfer: Protocol(open_transfer, answer_transfer),
    FewShot: Protocol(few_shot.open_episodes, few_shot.answer_episodes),
    FineTune: Protocol(finetune.open_images, finetune.fine_tune),
}
