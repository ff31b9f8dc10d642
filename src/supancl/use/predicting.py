"""Labels for images: a classifier of labelled references, its confidence, and how often held-out images are right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from supancl.core.labels import Labels
from supancl.data.hierarchy import with_given_labels, with_leaf_labels
from supancl.data.labels import label_cell
from supancl.data.opening import is_same_source, peek_data
from supancl.data.splits import Source
from supancl.data.views.evaluation import View
from supancl.errors import BadInput, did_you_mean
from supancl.evaluation.certainty import names_classes
from supancl.evaluation.encoder import EvaluatedEncoder
from supancl.evaluation.feature_cache import encoder_key
from supancl.evaluation.finetune import FINETUNED
from supancl.evaluation.overlap import is_run_source, shares_images
from supancl.evaluation.sources import check_unchanged, read_source, spec_for
from supancl.probes.certainty import ClassScores, chance
from supancl.probes.classifiers import (
    THRESHOLD,
    Calibration,
    Classifier,
    KnnClassifier,
    fit_linear_classifier,
    fit_means,
    fit_temperature,
    logits_in_chunks,
    mean_f1,
    nearest_similarity,
    rank_classes,
    unlike_threshold,
)
from supancl.probes.knn import default_k
from supancl.probes.linear import LinearClassifier, stratified_folds
from supancl.runs.encoder_file import CLASSIFIER_FILE, ClassifierFile, load_classifier, load_encoder, save_classifier
from supancl.runs.folder import check_same_data
from supancl.stats import wilson_interval
from supancl.use.references import References, keep, kept_path, load_references, read_kept

CLASSIFIERS = ("linear", "knn", "means", FINETUNED)
Pairs = Sequence[tuple[int, float]]  # the classes of an image and their weights


@dataclass(frozen=True)
class PredictSettings:
    """How to predict: `classifier` is linear, knn, means, finetuned or the folder of a fine-tuned classifier."""

    classifier: str | None = None  # None: linear, or knn if there is one class
    references: str | None = None  # a labelled source; None: the run's own labelled images, without a run the source's
    k: int | None = None  # None: `default_k`
    every_image: bool = False  # predict images that have a label too
    view: View = "margin"


class PredictedRow(NamedTuple):
    """A line of the table. Confidence and unlike are None for a given label."""

    path: str
    label: str
    confidence: float | None
    unlike: bool | None
    split: str


class Predictions(NamedTuple):
    """The labels of a source, images unlike anything seen first."""

    rows: list[PredictedRow]
    has_files: bool  # whether images are files, so that a table of them is a source
    summary: dict[str, Any]


class FittedClassifier(NamedTuple):
    """A classifier of features, its class names, the references to compare with, and words and numbers about it."""

    classifier: Classifier
    classes: tuple[str, ...]
    references: References
    summary: dict[str, Any]
    refit: Callable[[References], Classifier] | None = None  # the same classifier of other references


def predict_labels(evaluated: EvaluatedEncoder, source: str, settings: PredictSettings | None = None) -> Predictions:
    """Predict the labels that the images of a source lack, or with `every_image` those of all."""
    settings = settings or PredictSettings()
    evaluated, tuned = _open_tuned(evaluated, settings.classifier)
    spec, is_compared_with_run = spec_for(evaluated, source), False
    if settings.references is None and settings.view == "margin" and evaluated.recipe is not None:
        # decoded as the run's own images are, with which they are compared: another size gives other features
        own = evaluated.recipe.data
        spec, is_compared_with_run = replace(spec, short_side=own.short_side, resample=own.resample), True
    all_labels = read_source(evaluated, spec, settings.view, as_trained=is_compared_with_run, several_labels=True)
    images = with_given_labels(all_labels)
    wanted = {
        name: torch.arange(len(split)) if settings.every_image else (split.labels < 0).nonzero()[:, 0]
        for name, split in images.splits.items()
    }
    total, count = sum(map(len, images.splits.values())), sum(map(len, wanted.values()))
    if not count:
        raise BadInput(
            f"{source}: images without a label: 0 of {total} (the name of a folder counts as one); to predict all of "
            "them anyway, add all"
        )
    if settings.references is None and evaluated.run is None and tuned is None:
        settings = replace(settings, references=source)  # an encoder without a run has no labelled images of its own
    fitted = _fit(evaluated, tuned, settings)
    device, references, several = evaluated.options.device, fitted.references, 0
    if references.is_kept:
        _warn_changed(evaluated, source, all_labels, is_compared_with_run)
    if references.features.pairs is not None:
        several = spec.max_labels
    checked = _check_several(fitted, several) if several else _check(fitted)
    threshold, threshold_from = unlike_threshold(references.features, references.held_out.values, device)
    has_several = several > 0 or not all(split.all_labels.has_one_each for split in images.splits.values())

    def text(classes: Sequence[str], labels: Pairs) -> str:
        named = [(classes[number], weight) for number, weight in labels]
        return label_cell(named) if has_several else named[0][0] if named else ""

    rows: list[PredictedRow] = []
    agreeing = compared = 0
    leaves = with_leaf_labels(all_labels)
    for name, split in images.splits.items():
        values = evaluated.features(split.take(wanted[name]), settings.view).values
        ranked = rank_classes(fitted.classifier, values, len(fitted.classes), several, checked["temperature"])
        is_unlike = (nearest_similarity(references.features, values, device) < threshold).tolist()
        paths, given = split.names_at(torch.arange(len(split))), split.all_labels.entries()
        known, first = leaves.splits[name].all_labels.entries(), len(rows)
        texts = [text(images.classes, labels) for labels in given]
        rows += [PredictedRow(path, label, None, None, name) for path, label in zip(paths, texts, strict=True)]
        answers = zip(wanted[name].tolist(), ranked.labels.tolist(), ranked.confidence.tolist(), is_unlike, strict=True)
        for position, numbers, confidence, unlike in answers:
            found = [(number, 1.0) for number in numbers if number >= 0]
            label = text(fitted.classes, found)
            rows[first + position] = PredictedRow(paths[position], label, confidence, unlike, name)
            # a classifier of one class per image agrees with several labels if its class is one of them
            right = {leaves.classes[number] for number, _ in known[position]}
            predicted = {fitted.classes[number] for number, _ in found}
            compared += bool(right)
            agreeing += right == predicted if several else predicted <= right
    summary = {
        "encoder": evaluated.location,
        "data": source,
        "images": total,
        "predicted": count,
        "given": total - count,
        "unlike": sum(row.unlike is True for row in rows),
        "threshold": threshold,
        "threshold_from": threshold_from,
        "references": len(references.features.labels),
        "classes": len(fitted.classes),
        **fitted.summary,
        **checked,
        "skipped": len(images.skipped),
    }
    if compared:
        named, splits = settings.references, list(images.splits.values())
        fitted_on = shares_images(evaluated, source, splits) if named is None else is_same_source(named, source)
        summary |= {"compared": compared, "agreeing": agreeing, "fitted_on_some": fitted_on}
    return Predictions(sorted(rows, key=lambda row: not row.unlike), images.has_files, summary)


def _warn_changed(evaluated: EvaluatedEncoder, source: str, images: Source, as_trained: bool) -> None:
    """Warn if the run's own images are no longer those whose features were kept.

    They are `images` if `source` is the run's own. Else they are only listed, so that replaced pixels go unnoticed.
    """
    run, recipe = evaluated.run, evaluated.recipe
    assert run is not None
    assert recipe is not None
    way_out = "labels are predicted from the images labelled then; to use those of now, add references SOURCE"
    try:
        if is_run_source(evaluated, source):
            check_unchanged(evaluated, source, images, as_trained, way_out)
        elif not run.read_data()[0].get("skipped"):  # a list has unreadable images too
            try:
                own = peek_data(recipe.data, evaluated.encoder.spec.channels)
            except (BadInput, OSError):  # they are gone
                return
            check_same_data(run, own, way_out, f"{evaluated.location}: ")
    except BadInput as error:
        evaluated.reporter.warn(str(error))


# --- classifiers ------------------------------------------------------------------------------------------------------


def _open_tuned(evaluated: EvaluatedEncoder, name: str | None) -> tuple[EvaluatedEncoder, ClassifierFile | None]:
    """For a fine-tuned classifier: the run with the fine-tuned encoder, and the classifier."""
    if name is None or (name in CLASSIFIERS and name != FINETUNED):
        return evaluated, None
    folder = evaluated.run.path / FINETUNED if name == FINETUNED and evaluated.run is not None else Path(name)
    if not folder.exists():
        raise BadInput(
            f"classifier {name}: no such classifier or folder{did_you_mean(name, CLASSIFIERS)}; supancl evaluate "
            f"finetune {evaluated.location} --out {folder} makes one"
        )
    folder = folder if folder.is_dir() else folder.parent
    content, encoder = load_classifier(folder / CLASSIFIER_FILE), load_encoder(folder)
    if content.made_from != encoder_key(encoder):
        raise BadInput(
            f"{folder / CLASSIFIER_FILE} was fitted with another encoder than that next to it; copy both again"
        )
    if evaluated.options.layer != "pooled" or evaluated.options.normalize:
        raise BadInput(f"classifier {name}: it is on the encoder's output; leave layer and normalize out")
    return EvaluatedEncoder(evaluated.location, encoder, evaluated.options, evaluated.reporter), content


def _fit(evaluated: EvaluatedEncoder, tuned: ClassifierFile | None, settings: PredictSettings) -> FittedClassifier:
    if tuned is not None:
        own = evaluated.run is not None and not tuned.source
        source = settings.references or (None if own else tuned.source)
        references = load_references(evaluated, source, settings.view, "references-finetuned")
        layer = LinearClassifier(tuned.weight, tuned.bias)
        return FittedClassifier(layer, tuned.classes, references, {"classifier": FINETUNED})
    references = load_references(evaluated, settings.references, settings.view, "references", several_labels=True)
    has_seen_labels = evaluated.run is not None or names_classes(evaluated.location, references.classes)
    is_cross_validated = references.may_choose and references.features.pairs is None and not has_seen_labels
    if is_cross_validated:
        references = references.with_held_out()
    has_classes = references.features.pairs is not None or len(torch.unique(references.features.labels)) > 1
    name, device = settings.classifier or ("linear" if has_classes else "knn"), evaluated.options.device
    if name == "means" and references.features.pairs is not None:
        Labels.of(references.features.pairs).check_single(evaluated.location, "with means")

    def fit(some: References) -> tuple[Classifier, dict[str, Any]]:
        classes = len(some.classes)
        if name == "means":
            return fit_means(some.features, classes), {}
        if name == "knn":
            labels, pairs = some.features.labels, some.features.pairs
            labels = labels if pairs is None else pairs[..., 0].long().flatten()
            k = min(settings.k or default_k(labels), len(some.features))
            return KnnClassifier(some.features, classes, k, device=device), {"k": k}
        held_out = some.held_out if some.may_choose else some.held_out.take(torch.arange(0))
        classifier, ridge = fit_linear_classifier(some.features, held_out, classes, device)
        return classifier, {"kept": False, "ridge": ridge.weight, "ridge_chosen_on": ridge.chosen_on}

    path = kept_path(evaluated, "linear") if name == "linear" and references.made_from else None
    stored = None if path is None else read_kept(evaluated, path, load_classifier, references.made_from)
    is_stored = stored is not None and stored.classes == references.classes
    if stored is not None and is_stored and stored.weight.shape[1] == references.features.values.shape[1]:
        classifier: Classifier = LinearClassifier(stored.weight, stored.bias)
        about: dict[str, Any] = {"kept": True}
    else:
        classifier, about = fit(references)
        if path is not None and isinstance(classifier, LinearClassifier):
            layer = classifier
            content = ClassifierFile(layer.weight, layer.bias, references.classes, "", references.made_from)
            keep(evaluated, path, lambda file: save_classifier(file, content))
    refit = (lambda some: fit(some)[0]) if is_cross_validated else None
    return FittedClassifier(classifier, references.classes, references, {"classifier": name, **about}, refit)


# --- confidence -------------------------------------------------------------------------------------------------------


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
    parts = [(fitted.classifier, held_out)] if len(held_out) else []
    if not parts and fitted.refit is not None:
        testable = references.take(torch.bincount(references.labels)[references.labels] > 1)
        fold = stratified_folds(testable.labels)
        for part in (fold == number for number in torch.unique(fold).tolist()):
            others = fitted.references._replace(features=testable.take(~part))
            parts.append((fitted.refit(others), testable.take(part)))
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
        "chance": judged.chance,
        "f1": f1[0],
        "f1_interval": list(f1[1:]),
        "least_sure_right": right,
        "least_sure_right_interval": interval,
        "mean_confidence": 100 * float(ranked.confidence.double().mean()),
        **about,
        "temperature": temperature,
    }
