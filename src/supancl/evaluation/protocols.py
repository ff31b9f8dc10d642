"""The protocols: one driver; and of each what it says about tested images, from features."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.config import to_json
from supancl.data.labels import find_leaves
from supancl.data.opening import absolute_source
from supancl.data.order import derive_seed, epoch_order
from supancl.data.splits import Split, fingerprint
from supancl.errors import BadInput
from supancl.evaluation import (
    TRAINED_IMAGES,
    FewShot,
    FineTune,
    Knn,
    Linear,
    Settings,
    Transfer,
    Variance,
)
from supancl.evaluation.certainty import certainty_keys, figure_keys
from supancl.evaluation.data import EvaluationData, check_measurable, open_data, resolve_source
from supancl.evaluation.encoder import EvaluatedEncoder, Parts, is_run_source, warn_if_trained_on
from supancl.evaluation.finetune import check_fine_tuning, fine_tune, plain_crops
from supancl.evaluation.results import data_label, default_metric, registered_name
from supancl.probes.answers import Answers, Measured, measure
from supancl.probes.fewshot import few_shot
from supancl.probes.knn import default_k, knn_answers
from supancl.probes.linear import LinearProbe, linear_probe, transfer
from supancl.probes.sgd import EpochOfBatches, sgd_probe
from supancl.probes.variance import collapse
from supancl.runs.provenance import commit, content_digest, hardware, versions

VERSION = 2  # of results: 2 since crops begin at whole pixels
LEVEL_CONDITIONS = ("k", "weight", "weight_by_half", "chosen_on", "cut_off")  # of a level, where the protocol has them
Answer = tuple[Measured | None, dict[str, Any]]  # what is measured, and what else a result says


def evaluate(
    evaluated: EvaluatedEncoder,
    settings: Settings,
    source: str | None = None,
    name: str | None = None,
    *,
    saved: Iterable[dict[str, Any]] = (),
) -> dict[str, Any]:
    """Measure an encoder by the protocol of these settings, and save the result in its run.

    `source` is the run's own data by default. Protocols for other data name their results by it, or by `name`. If one
    of the `saved` results has the same key, it is returned as it is.
    """
    since = time.perf_counter()
    if settings.needs_data and source is None:
        raise BadInput(f"{settings.name} is measured on other data than the run's; name data")
    for result in saved:
        if result.get("key") == result_key(evaluated, settings, source):
            return result
    if isinstance(settings, FineTune):
        check_fine_tuning(evaluated, source, settings)
    answer = ANSWERS[type(settings)]
    every_label = Parts(evaluated, open_data(evaluated, source, settings))
    parts = every_label.at(find_leaves(every_label.data.data)) if every_label.data.levels else every_label
    data = parts.data
    check_measurable(evaluated, data, settings)
    measured, about = answer(parts, settings)
    if measured is not None:
        about = {"tested_on": fingerprint(data.images), **about}
        if every_label.data.levels:
            about["levels"] = measure_levels(every_label, settings, parts, (measured, about))
        about |= certainty_keys(evaluated, data, settings, measured, lambda parts: answer(parts, settings)[0])
    return record(evaluated, data, settings, about, since, name)


def result_key(evaluated: EvaluatedEncoder, settings: Settings, source: str | None) -> str:
    """A digest of what a result depends on: weights, features, settings, and which data, but not their content."""
    options, place = evaluated.options, absolute_source(resolve_source(evaluated, source))
    features = [VERSION, evaluated.weights, evaluated.projector_key, options.layer, options.normalize]
    data = [place, is_run_source(evaluated, source), options.partial, options.skip_bad_images]
    return content_digest([*features, *data, settings.name, to_json(settings)])[:16]


def measure_levels(every_label: Parts, settings: Settings, leaves: Parts, main: Answer) -> list[dict[str, Any]]:
    """The figure of each level of a hierarchy, the coarsest first; `main` is that of the leaves."""
    rows = []
    for number, level in enumerate(every_label.data.levels):
        parts = every_label.at(level)
        try:
            is_main = parts.data.classes == leaves.data.classes
            measured, about = main if is_main else ANSWERS[type(settings)](parts, settings)
        except BadInput as error:
            every_label.encoder.warn_once(f"{parts.data.location}: level {number} is not measured: {error}")
            continue
        assert measured is not None
        of_level = {"level": number, "classes": measured.classes, "images": measured.images, "chance": measured.chance}
        rows.append(of_level | figure_keys(measured) | {key: about[key] for key in LEVEL_CONDITIONS if key in about})
    return rows


def record(
    evaluated: EvaluatedEncoder,
    data: EvaluationData,
    settings: Settings,
    about: Mapping[str, Any],
    since: float,
    name: str | None,
) -> dict[str, Any]:
    """Add the conditions to a result and save it in the run folder under its name."""
    source, read = resolve_source(evaluated, data.source), data.data
    name = name or data_label(source)
    run_data = evaluated.recipe.data if evaluated.recipe is not None and is_run_source(evaluated, data.source) else None
    is_own = data.source is None or (run_data is not None and run_data.is_whole)
    base = f"{settings.name}-{name}" if settings.needs_data or not is_own else settings.name
    lacks_images = bool(read.skipped) or read.incomplete
    if about.get("cut_off"):
        evaluated.reporter.warn(
            f"{data.location}: the classifier did not reach its optimum (residual {about['residual']:.2g}); normalised "
            "features (normalize) are often easier to fit"
        )
    result = {
        "base": base + about.get("kind", ""),
        "source": absolute_source(source),
        "encoder": evaluated.location,
        "label": evaluated.label,
        "weights": evaluated.weights,
        "features_version": VERSION,
        "key": result_key(evaluated, settings, data.source),
        "layer": evaluated.options.layer,
        "normalize": evaluated.options.normalize,
        **evaluated.projector_key,
        "protocol": settings.name,
        "data": name if settings.needs_data else source,
        "split": data.split,
        "judged": data.taken_from,
        "held_out_from": read.summary["held_out_from"],
        "skipped": len(read.skipped),
        "remarks": list(read.remarks),
        "partial": registered_name(source) is not None and lacks_images,
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


# --- what each protocol says ------------------------------------------------------------------------------------------


def answer_knn(parts: Parts, settings: Knn) -> Answer:
    tested, leave_one_out = parts["test"].labelled(), settings.leave_one_out
    references = tested if leave_one_out else parts["train"].labelled()
    numbers = references.class_numbers()
    usual, most = default_k(numbers, leave_one_out), len(references) - leave_one_out
    ks = tuple(dict.fromkeys(min(k, most) for k in settings.k or (usual,)))
    how = (settings.temperature, settings.metric, parts.encoder.options.device, leave_one_out, parts.classes)
    said = knn_answers(references, tested, ks, *how)
    by_k = {k: measure(answers, tested, references.labels, parts.classes) for k, answers in said.items()}
    main = by_k[ks[0]]
    return main, {
        "k": ks[0],
        "default_k": usual,
        "by_k": {str(k): measured.value for k, measured in by_k.items()},
        "references": len(references),
        "queries": main.images,
        "classes": len(torch.unique(numbers[numbers >= 0])),
    }


def answer_linear(parts: Parts, settings: Linear) -> Answer:
    """The convex probe, or the paper's by SGD."""
    if settings.probe == "sgd":
        return answer_sgd(parts, settings)
    chooses, device = parts.data.chooses, parts.encoder.options.device
    choose: Any = parts["held-out"] if chooses == "held-out" else "halves" if chooses == "halves" else None
    splits, seed = (parts["train"], parts["test"]), settings.seed
    fitted = linear_probe(*splits, choose, seed=seed, device=device, classes=parts.classes)
    measured, about = answer_fitted(parts, fitted)
    if fitted.chosen_on_images and chooses == TRAINED_IMAGES:
        about["chosen_on"] = TRAINED_IMAGES
    return measured, about


def answer_sgd(parts: Parts, settings: Linear) -> Answer:
    """The paper's probe, on features that are computed once or on new crops in every epoch."""
    if settings.augmented and parts.encoder.encoder.spec.name == "linear":
        raise BadInput(f"{parts.encoder.location}: augmented crops images, but this encoder takes vectors")
    train, epochs = parts.data.splits["train"], settings.epochs
    train.all_labels.check_single(parts.data.location, "probe sgd")
    probe = sgd_probe(
        augmented_epochs(parts.encoder, train, settings) if settings.augmented else parts["train"],
        parts["test"],
        parts.classes,
        epochs,
        settings.probe_batch,
        settings.lr,
        milestones=(round(0.6 * epochs), round(0.8 * epochs)),
        seed=settings.seed,
        device=parts.encoder.options.device,
    )
    assert isinstance(probe.measured, Answers)
    measured = replace(probe.measured, references=train.labels[train.labels >= 0])
    return measured, probe.to_json() | {"queries": measured.images}


def answer_transfer(parts: Parts, settings: Transfer) -> Answer:
    metric = settings.metric or default_metric(parts.data.location)
    splits = (parts["train"], parts["held-out"], parts["test"])
    fitted = transfer(*splits, metric, device=parts.encoder.options.device, classes=parts.classes)
    measured, about = answer_fitted(parts, fitted)
    del about["chosen_on"], about["chosen_on_images"]  # always the held-out ones
    return measured, about if parts.data.has_several_labels else about | {"metric": metric}


def answer_fitted(parts: Parts, fitted: LinearProbe) -> tuple[Measured, dict[str, Any]]:
    """The figure of a linear classifier's answers, and how it was fitted."""
    measured, about = fitted.measured, fitted.to_json()
    about["tried"] = about.pop("weights")  # in a result, `weights` is the encoder's checksum
    if not parts.data.has_several_labels:
        return measured, about | {"queries": measured.images}
    numbers = parts["train"].labelled().class_numbers()
    return measured, about | {"classes": len(torch.unique(numbers[numbers >= 0]))}


def augmented_epochs(evaluated: EvaluatedEncoder, train: Split, settings: Linear) -> EpochOfBatches:
    """Features of new random crops and flips in every epoch (no colour changes, as in MoCo's linear evaluation)."""
    encoder, options, seed = evaluated.encoder.eval(), evaluated.options, settings.seed
    labelled, views = train.labelled(), plain_crops(evaluated, (0.08, 1.0))

    def epoch_of(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator(options.device).manual_seed(derive_seed(seed, epoch, 3))
        for positions in epoch_order(len(labelled), seed, epoch).split(settings.probe_batch):
            batch = labelled.batch(positions).to(options.device)
            with torch.inference_mode():
                view = views(batch, encoder.mean, encoder.std, generator, views=1)[0]
                values = encoder.features(view, options.layer).float()
                values = F.normalize(values, dim=1) if options.normalize else values
            yield values.clone(), labelled.labels[positions].to(options.device)

    return epoch_of


def answer_variance(parts: Parts, settings: Variance) -> Answer:
    """S_W, S_T, effective rank and neural collapse of normalised features."""
    features, device = parts["test"], parts.encoder.options.device
    # in double precision, which Apple's GPUs do not have
    about = collapse(features, device=device if device.type == "cuda" else None).to_json()
    names = [parts.data.classes[label] for label in about.pop("classes")]
    about["spread"] = dict(zip(names, about["spread"], strict=True))
    return None, {"normalize": True, "images": len(features.labelled()), **about}


def answer_episodes(parts: Parts, settings: FewShot) -> Answer:
    """Mean accuracy over N-way K-shot episodes, which depend only on the labels and the settings."""
    labelled, (shots,) = parts["test"].labelled(), settings.shots
    size = (settings.ways, shots, settings.queries, settings.episodes, settings.seed)
    device = parts.encoder.options.device
    found = few_shot(labelled, *size, device=device, fill_queries=settings.fill_queries)
    dropped = [parts.data.classes[label] for label in found.dropped]
    if dropped:
        evaluated, names = parts.encoder, ", ".join(dropped[:8])
        evaluated.reporter.warn(f"{parts.data.location}: classes with no more than {shots} images left out: {names}")
    return None, {
        "kind": f"-{settings.ways}w{shots}s",
        "tested_on": fingerprint(parts.data.images),
        "accuracy": found.mean,
        "chance": 100 / settings.ways,
        "images": len(labelled),
        "classes": len(torch.unique(labelled.labels)) - len(dropped),
        **to_json(found) | {"dropped": dropped, "shots": shots},
    }


ANSWERS: dict[type[Settings], Callable[[Parts, Any], Answer]] = {
    Knn: answer_knn,
    Linear: answer_linear,
    Variance: answer_variance,
    Transfer: answer_transfer,
    FewShot: answer_episodes,
    FineTune: fine_tune,
}
