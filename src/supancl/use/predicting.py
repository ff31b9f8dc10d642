"""Labels for images: a classifier of labelled references, its confidence, and how often held-out images are right."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from supancl.core.labels import Labels
from supancl.data.labels import label_cell, with_given_labels, with_leaf_labels
from supancl.data.splits import Split
from supancl.data.views.render import View
from supancl.errors import BadInput, did_you_mean
from supancl.evaluation.certainty import figure_keys, names_classes
from supancl.evaluation.data import check_unchanged, data_for, read_source, spec_for
from supancl.evaluation.encoder import CACHE_VERSION, EvaluatedEncoder, encoder_key, shares_pixels
from supancl.evaluation.finetune import FINETUNED
from supancl.files import make_inner_folder, reason
from supancl.probes import Features
from supancl.probes.answers import Answers, ClassScores, Measured
from supancl.probes.classifiers import (
    THRESHOLD,
    Calibration,
    Classifier,
    KnnClassifier,
    fit_linear_classifier,
    fit_means,
    logits_in_chunks,
    mean_f1,
    nearest_similarity,
    rank_classes,
    unlike_threshold,
)
from supancl.probes.features import stratified_folds
from supancl.probes.knn import default_k
from supancl.probes.linear import LinearClassifier
from supancl.runs.encoder_file import (
    CLASSIFIER_FILE,
    ClassifierFile,
    load_classifier,
    load_encoder,
    load_with_classes,
    save_with_classes,
)

CLASSIFIERS = ("linear", "knn", "means", FINETUNED)
MOST_KEPT_BYTES = 2**29  # larger features are not kept in the run, only in the cache
PARTS = ("references", "held_out")  # of the file of kept features
CHANGED = "name labelled images with references SOURCE"


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


class References(NamedTuple):
    """Labelled images to compare with, labelled images that pretraining held out, and the names of both's classes."""

    features: Features
    held_out: Features
    classes: tuple[str, ...]
    may_choose: bool  # whether held-out images may choose a setting: those of a test split may not
    is_unseen: bool = False  # whether the encoder has seen no label of theirs: they are cross-validated

    @property
    def has_several(self) -> bool:
        return self.features.pairs is not None


Fit = Callable[[References], tuple[Classifier, dict[str, Any]]]


def predict_labels(evaluated: EvaluatedEncoder, source: str, settings: PredictSettings | None = None) -> Predictions:
    """Predict the labels that the images of a source lack, or with `every_image` those of all."""
    settings = settings or PredictSettings()
    evaluated, tuned = _open_tuned(evaluated, settings.classifier)
    spec, as_trained = spec_for(evaluated, source), False
    if settings.references is None and settings.view == "margin" and evaluated.recipe is not None:
        # decoded as the run's own images are, with which they are compared: another size gives other features
        own, as_trained = evaluated.recipe.data, True
        spec = replace(spec, short_side=own.short_side, resample=own.resample)
    all_labels = read_source(evaluated, spec, settings.view, as_trained=as_trained)
    images, leaves = with_given_labels(all_labels), with_leaf_labels(all_labels)
    wanted = {
        name: torch.arange(len(split)) if settings.every_image else (split.labels < 0).nonzero()[:, 0]
        for name, split in images.splits.items()
    }
    total, count = sum(map(len, images.splits.values())), sum(map(len, wanted.values()))
    if not count:
        raise BadInput(f"{source}: images without a label: 0 of {total}; to predict all of them anyway, add all")
    if settings.references is None:
        check_unchanged(evaluated, source, all_labels, as_trained, f"restore them, or {CHANGED}")
        if evaluated.run is None and tuned is None:
            settings = replace(settings, references=source)  # without a run there are no other labelled images
    references, classes, fit = _open_classifier(evaluated, tuned, settings)
    classifier, about = fit(references)
    several = spec.max_labels if references.has_several else 0
    checked = _check(references, classes, classifier, fit, several)
    device = evaluated.options.device
    threshold, threshold_from = unlike_threshold(references.features, references.held_out.values, device)
    has_several = several > 0 or not all(split.all_labels.has_one_each for split in images.splits.values())

    def text(names: Sequence[str], labels: Sequence[tuple[int, float]]) -> str:
        named = [(names[number], weight) for number, weight in labels]
        return label_cell(named) if has_several else named[0][0] if named else ""

    rows: list[PredictedRow] = []
    agreeing = compared = 0
    width = references.features.values.shape[1]
    for name, split in images.splits.items():
        values = evaluated.features(split.take(wanted[name]), settings.view).values
        if len(values) and values.shape[1] != width:
            raise BadInput(f"{evaluated.location}: kept features of {width} numbers; remove its folder predict")
        ranked = rank_classes(classifier, values, len(classes), several, checked["temperature"])
        is_unlike = (nearest_similarity(references.features, values, device) < threshold).tolist()
        paths, first = split.names_at(torch.arange(len(split))), len(rows)
        known, given = leaves.splits[name].all_labels.entries(), split.all_labels.entries()
        rows += [
            PredictedRow(path, text(images.classes, labels), None, None, name)
            for path, labels in zip(paths, given, strict=True)
        ]
        answers = zip(wanted[name].tolist(), ranked.labels.tolist(), ranked.confidence.tolist(), is_unlike, strict=True)
        for position, numbers, confidence, unlike in answers:
            found = [(number, 1.0) for number in numbers if number >= 0]
            rows[first + position] = PredictedRow(paths[position], text(classes, found), confidence, unlike, name)
            # a classifier of one class per image agrees with several labels if its class is one of them
            right, predicted = {leaves.classes[n] for n, _ in known[position]}, {classes[n] for n, _ in found}
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
        "classes": len(classes),
        **about,
        **checked,
        "skipped": len(images.skipped),
        **({"compared": compared, "agreeing": agreeing} if compared else {}),
    }
    return Predictions(sorted(rows, key=lambda row: not row.unlike), images.has_files, summary)


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
        raise BadInput(f"{folder / CLASSIFIER_FILE} is of another encoder than that next to it; copy both again")
    if evaluated.options.layer != "pooled" or evaluated.options.normalize:
        raise BadInput(f"classifier {name}: it is on the encoder's output; leave layer and normalize out")
    return EvaluatedEncoder(evaluated.location, encoder, evaluated.options, evaluated.reporter), content


def _open_classifier(
    evaluated: EvaluatedEncoder, tuned: ClassifierFile | None, settings: PredictSettings
) -> tuple[References, tuple[str, ...], Fit]:
    """The references, the classes, and what fits the classifier to references; a fine-tuned one is fitted already."""
    device = evaluated.options.device
    if tuned is not None:
        layer, source = LinearClassifier(tuned.weight, tuned.bias), settings.references or tuned.source or None
        references = load_references(evaluated, source, settings.view, "references-finetuned")
        return references, tuned.classes, lambda some: (layer, {"classifier": FINETUNED})
    references = load_references(evaluated, settings.references, settings.view, "references")
    has_seen_labels = evaluated.run is not None or names_classes(evaluated.location, references.classes)
    if references.may_choose and not references.has_several and not has_seen_labels:
        features = references.features
        features = features.and_also(references.held_out) if len(references.held_out) else features
        references = references._replace(features=features, held_out=features.take(torch.arange(0)), is_unseen=True)
    has_classes = references.has_several or len(torch.unique(references.features.labels)) > 1
    name = settings.classifier or ("linear" if has_classes else "knn")
    if name == "means" and references.features.pairs is not None:
        Labels.of(references.features.pairs).check_single(evaluated.location, "with means")

    def fit(some: References) -> tuple[Classifier, dict[str, Any]]:
        classes, about = len(some.classes), {"classifier": name}
        if name == "means":
            return fit_means(some.features, classes), about
        if name == "knn":
            labels, pairs = some.features.labels, some.features.pairs
            labels = labels if pairs is None else pairs[..., 0].long().flatten()
            k = min(settings.k or default_k(labels), len(some.features))
            return KnnClassifier(some.features, classes, k, device=device), {**about, "k": k}
        held_out = some.held_out if some.may_choose else some.held_out.take(torch.arange(0))
        classifier, ridge = fit_linear_classifier(some.features, held_out, classes, device)
        return classifier, {**about, **ridge}

    return references, references.classes, fit


# --- confidence -------------------------------------------------------------------------------------------------------


def _check(
    references: References, classes: tuple[str, ...], classifier: Classifier, fit: Fit, most: int
) -> dict[str, Any]:
    """The temperature of the confidence, fitted on unseen images, and how often those are predicted right."""
    held_out, calibration, more = references.held_out, Calibration(), dict[str, Any]()
    measured: Measured | None = None
    if references.has_several:
        more = {"label_threshold": THRESHOLD}
        if len(held_out):
            targets, logits = held_out.targets(len(classes)), classifier.logits(held_out.values)
            has_reference = references.features.targets(len(classes)).any(0)
            calibration.add(logits[:, has_reference], targets[:, has_reference])
            ranked = rank_classes(classifier, held_out.values, len(classes), most, calibration.temperature)
            f1, *interval = mean_f1(ranked, targets)
            confidence = 100 * float(ranked.confidence.double().mean())
            more |= {"f1": f1, "f1_interval": interval, "mean_confidence": confidence}
            measured = ClassScores(logits, targets)
    else:
        number = {name: i for i, name in enumerate(classes)}
        numbers = torch.tensor([number.get(name, -1) for name in references.classes], dtype=torch.long)
        for logits, labels in _unseen(references, len(classes), classifier, fit):
            calibration.add(logits, numbers[labels])
        if calibration.right:
            right = torch.cat(calibration.right)
            measured = Answers(right, right, references.features.labels)  # its figures need no labels
            more = {"cross_validated": not len(held_out), "mean_confidence": calibration.mean_confidence}
    about = {"checked_on": 0 if measured is None else measured.images, "temperature": calibration.temperature, **more}
    return about if measured is None else {**about, **figure_keys(measured), "chance": measured.chance}


def _unseen(references: References, classes: int, classifier: Classifier, fit: Fit) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits and classes of held-out images, or of each fifth of the references by a classifier of the others.

    A class with one reference cannot be tested.
    """
    features, parts = references.features, [(classifier, references.held_out)] * bool(len(references.held_out))
    if references.is_unseen:
        testable = features.take(torch.bincount(features.labels)[features.labels] > 1)
        fold = stratified_folds(testable.labels)
        for part in (fold == number for number in torch.unique(fold).tolist()):
            others = references._replace(features=testable.take(~part))
            parts.append((fit(others)[0], testable.take(part)))
    for fitted, images in parts:
        start = 0
        for logits in logits_in_chunks(fitted, images.values, classes):
            yield logits, images.labels[start : start + len(logits)]
            start += len(logits)


# --- references -------------------------------------------------------------------------------------------------------


def load_references(evaluated: EvaluatedEncoder, source: str | None, view: View, name: str) -> References:
    """The labelled training images of `source`, or if None of the run, and those that it held out.

    The features of a run's images are kept in its folder as predict/NAME.safetensors, so that labels can be predicted
    where its images are not.
    """
    run, path, made_from = evaluated.run, None, ""
    described = {} if source is not None or run is None else run.read_data()[0]
    if run is not None and described.get("fingerprint"):
        path = run.path / "predict" / f"{name}.safetensors"
        how = evaluated.options.describe(view, **evaluated.projector_key)
        key = [CACHE_VERSION, evaluated.weights, how, described["fingerprint"], str(described.get("content"))]
        made_from = hashlib.sha256(json.dumps(key).encode()).hexdigest()
        with suppress(BadInput, KeyError):  # missing or damaged: it is made again
            tensors, classes, metadata = load_with_classes(path)
            features, held_out = (
                Features(tensors[part], tensors[f"{part}_labels"], tensors.get(f"{part}_pairs")) for part in PARTS
            )
            if metadata["made_from"] == made_from and _are_sound(features, held_out, len(classes)):
                return References(features, held_out, classes, described.get("held_out_from") != "test")
    data = data_for(evaluated, source, view, None if source else f"restore them, or {CHANGED}")
    if len(data.train.class_ids()) < 2:
        raise BadInput(f"{source or evaluated.location}: labelled images of fewer than two classes; {CHANGED}")
    recipe = evaluated.recipe
    if source and recipe is not None and recipe.loss.supervised and shares_pixels(evaluated, (data.held_out,)):
        evaluated.warn_once(f"{source}: the run was trained on some of its held-out images; confidence is too high")
    features, held_out = (_features(evaluated, split.labelled(), view) for split in (data.train, data.held_out))
    if path is not None and features.values.nbytes + held_out.values.nbytes <= MOST_KEPT_BYTES:
        tensors = {}
        for part, each in zip(PARTS, (features, held_out), strict=True):
            tensors |= {part: each.values, f"{part}_labels": each.labels}
            tensors |= {} if each.pairs is None else {f"{part}_pairs": each.pairs}
        try:
            make_inner_folder(path.parent)  # refuses a link
            save_with_classes(path, tensors, data.classes, made_from=made_from)
        except OSError as error:
            evaluated.warn_once(f"{path} cannot be written ({reason(error)}), so the next call computes it again")
    return References(features, held_out, data.classes, data.summary["held_out_from"] != "test")


def _are_sound(features: Features, held_out: Features, classes: int) -> bool:
    """Whether kept features are a vector with a class for each image: a digest does not say who wrote them."""
    for values, labels, pairs in ((part.values, part.labels, part.pairs) for part in (features, held_out)):
        if values.ndim != 2 or labels.shape != values.shape[:1] or not bool(values.isfinite().all()):
            return False
        if (values.dtype, labels.dtype) != (torch.float32, torch.long) or (pairs is None) != (features.pairs is None):
            return False
        if pairs is not None and pairs.shape[:1] + pairs.shape[2:] != (len(values), 2):
            return False
        numbers = labels if pairs is None else torch.cat([labels, pairs[..., 0].clamp(min=0).long().flatten()])
        if bool(((numbers < 0) | (numbers >= classes)).any()):
            return False
    return len(features) > 1 and (not len(held_out) or held_out.values.shape[1] == features.values.shape[1])


def _features(evaluated: EvaluatedEncoder, split: Split, view: View) -> Features:
    if len(split):
        return evaluated.features(split, view)
    return Features(torch.empty(0, 0), split.labels, split.all_labels.pairs)
