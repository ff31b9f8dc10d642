"""`supancl predict`: labels for images, each with a confidence and whether it is unlike anything seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from supancl.core.labels import Labels
from supancl.data.hierarchy import list_prefixes, with_given_labels, with_leaf_labels
from supancl.data.labels import label_cell
from supancl.data.opening import is_same_source, peek_data
from supancl.data.sources.table import is_read_as_written
from supancl.data.splits import Data, Source, Split
from supancl.data.views.evaluation import View
from supancl.errors import BadInput, did_you_mean, plural
from supancl.evaluation.calibration import FittedClassifier, calibrate
from supancl.evaluation.certainty import names_classes
from supancl.evaluation.encoder import EvaluatedEncoder
from supancl.evaluation.feature_cache import encoder_key
from supancl.evaluation.finetune import FINETUNED
from supancl.evaluation.overlap import is_run_source, shares_images
from supancl.evaluation.references import References, keep, kept_path, load_references, read_kept
from supancl.evaluation.sources import check_unchanged, read_source, spec_for
from supancl.probes.classifiers import (
    Classifier,
    KnnClassifier,
    Ridge,
    fit_linear_classifier,
    fit_means,
    nearest_similarity,
    unlike_threshold,
)
from supancl.probes.knn import default_k
from supancl.probes.linear import LinearClassifier
from supancl.runs.classifier_file import CLASSIFIER_FILE, ClassifierFile, load_classifier, save_classifier
from supancl.runs.encoder_file import load_encoder
from supancl.runs.folder import check_same_data

CLASSIFIERS = ("linear", "knn", "means", FINETUNED)


@dataclass(frozen=True)
class PredictSettings:
    """How to predict: `classifier` is linear, knn, means, finetuned or the folder of a fine-tuned classifier."""

    classifier: str | None = None  # None: linear, or knn if there is one class
    references: str | None = None  # a labelled source; None: the run's own labelled images, without a run the source's
    k: int | None = None  # None: `default_k`
    every_image: bool = False  # predict images that have a label too
    view: View = "margin"


class PredictedSplit(NamedTuple):
    """The images of a split: given labels (-1: none), and for those that were predicted the answers."""

    images: Split
    predicted: Tensor  # positions
    labels: Tensor  # (predicted, L) of these positions, in Predictions.classes; -1 where there are fewer than L
    confidence: Tensor
    similarity: Tensor


class PredictedRow(NamedTuple):
    """A line of the table. Confidence and unlike are None for a given label."""

    path: str
    label: str
    confidence: float | None
    unlike: bool | None
    split: str


@dataclass(frozen=True)
class Predictions:
    """The predicted labels of a source."""

    splits: dict[str, PredictedSplit]
    classes: tuple[str, ...]  # of predicted labels
    given_classes: tuple[str, ...]
    threshold: float  # a similarity to the nearest reference below it is unlike anything seen
    has_files: bool  # whether images are files, so that a table of them is a source
    has_several_labels: bool = False  # whether labels, given or predicted, are written as in a .csv with several
    summary: dict[str, Any] = field(default_factory=dict)

    def rows(self) -> Iterator[PredictedRow]:
        for name, split in self.splits.items():
            answers = dict(zip(split.predicted.tolist(), range(len(split.predicted)), strict=True))
            given, predicted = given_labels(split.images), split.labels.tolist()
            for position, path in enumerate(split.images.names_at(torch.arange(len(split.images)))):
                if (row := answers.get(position)) is None:
                    label = self._text(self.given_classes, given[position])
                    yield PredictedRow(path, label, None, None, name)
                    continue
                unlike = bool(split.similarity[row] < self.threshold)
                label = self._text(self.classes, listed_labels(predicted[row]))
                yield PredictedRow(path, label, float(split.confidence[row]), unlike, name)

    @property
    def unreadable_classes(self) -> list[str]:
        """Classes of the table whose names would be read as others, as two or as none."""
        names = dict.fromkeys((*self.classes, *self.given_classes))
        return [name for name in names if not is_read_as_written(name)]

    def _text(self, classes: Sequence[str], labels: Sequence[tuple[int, float]]) -> str:
        named = [(classes[number], weight) for number, weight in labels]
        return label_cell(named) if self.has_several_labels else named[0][0]


def given_labels(split: Split) -> list[list[tuple[int, float]]]:
    """The class and weight of every label of every image; one label has weight 1."""
    return split.all_labels.entries()


def listed_labels(labels: Sequence[int]) -> list[tuple[int, float]]:
    """The predicted classes of an image, each with weight 1."""
    return [(number, 1.0) for number in labels if number >= 0]


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
    wanted_rows = {name: _rows_to_predict(split, settings.every_image) for name, split in images.splits.items()}
    total, count = sum(map(len, images.splits.values())), sum(map(len, wanted_rows.values()))
    if not count:
        raise BadInput(
            f"{source}: all of its {plural(total, 'image has', 'images have')} a label (the name of a folder counts as "
            "one), so there is nothing to predict; to predict them anyway, add all"
        )
    if settings.references is None and evaluated.run is None and tuned is None:
        settings = replace(settings, references=source)  # an encoder without a run has no labelled images of its own
    fitted = _fit(evaluated, tuned, settings)
    if fitted.references.is_kept:
        _warn_changed(evaluated, source, all_labels, len(fitted.references.features.labels), is_compared_with_run)
    _warn_other_classes(evaluated, source, images, fitted.classes, settings.every_image)
    device, references = evaluated.options.device, fitted.references
    label, check = calibrate(fitted, spec.max_labels)
    threshold, threshold_from = unlike_threshold(references.features, references.held_out.values, device)
    splits = {}
    for name, split in images.splits.items():
        values = evaluated.features(split.take(wanted_rows[name]), settings.view).values
        similarity = nearest_similarity(references.features, values, device)
        splits[name] = PredictedSplit(split, wanted_rows[name], *label(values), similarity)
    summary = {
        "encoder": evaluated.location,
        "data": source,
        "images": total,
        "predicted": count,
        "given": total - count,
        "unlike": sum(int((split.similarity < threshold).sum()) for split in splits.values()),
        "threshold": threshold,
        "threshold_from": threshold_from,
        "references": len(references.features.labels),
        "classes": len(fitted.classes),
        **fitted.summary,
        **check,
        "skipped": len(images.skipped),
        **_agreement(
            splits, with_leaf_labels(all_labels), fitted.classes, several=references.features.pairs is not None
        ),
    }
    if "compared" in summary:
        summary["fitted_on_some"] = _was_fitted_on(evaluated, source, images, settings.references)
    several = references.features.pairs is not None or not all(
        split.all_labels.has_one_each for split in images.splits.values()
    )
    return Predictions(splits, fitted.classes, images.classes, threshold, images.has_files, several, summary)


def _rows_to_predict(split: Split, every_image: bool) -> Tensor:
    return torch.arange(len(split)) if every_image else (split.labels < 0).nonzero()[:, 0]


def _was_fitted_on(evaluated: EvaluatedEncoder, source: str, images: Source, references: str | None) -> bool:
    """Whether the classifier was fitted on some of these images: those of the run, or of the named references."""
    if references is not None:
        return is_same_source(references, source)
    return shares_images(evaluated, source, list(images.splits.values()))


def _warn_changed(evaluated: EvaluatedEncoder, source: str, images: Source, references: int, as_trained: bool) -> None:
    """Warn if the run's own images are no longer those whose features were kept.

    They are `images` if `source` is the run's own. Else they are only listed, so that replaced pixels go unnoticed.
    """
    is_own = is_run_source(evaluated, source)
    way_out = (
        f"labels are predicted from the {plural(references, 'image')} labelled then; to use those of now, add "
        f"references {source if is_own else 'SOURCE'}"
    )
    try:
        if is_own:
            check_unchanged(evaluated, source, images, as_trained, way_out)
        elif evaluated.run is not None and (own := _list_own_images(evaluated)) is not None:
            check_same_data(evaluated.run, own, way_out, f"{evaluated.location}: ")
    except BadInput as error:
        evaluated.reporter.warn(str(error))


def _list_own_images(evaluated: EvaluatedEncoder) -> Data | None:
    """The run's own images, not decoded; None if they are gone, or if some could not be read: a list has these too."""
    if evaluated.run is None or evaluated.recipe is None or evaluated.run.read_data()[0].get("skipped"):
        return None
    try:
        return peek_data(evaluated.recipe.data, evaluated.encoder.spec.channels)
    except (BadInput, OSError):
        return None


def _warn_other_classes(
    evaluated: EvaluatedEncoder, source: str, images: Source, classes: Sequence[str], every_image: bool
) -> None:
    """Warn if no given label is a class of the references, or one above it: folders of dates are no labels."""
    given = {images.classes[label] for split in images.splits.values() for label in split.class_ids()}
    expected = {prefix for name in classes for prefix in list_prefixes(name)}
    if given and not given & expected and not every_image:
        evaluated.reporter.warn(
            f"{source}: {plural(len(given), 'label is', 'labels are')} kept, such as {min(given)!r}, but none is a "
            "class of the references; if folders are no labels here, add all"
        )


# --- classifiers ------------------------------------------------------------------------------------------------------


def _open_tuned(evaluated: EvaluatedEncoder, name: str | None) -> tuple[EvaluatedEncoder, ClassifierFile | None]:
    """For a fine-tuned classifier: the run with the fine-tuned encoder, and the classifier."""
    if name is None or (name in CLASSIFIERS and name != FINETUNED):
        return evaluated, None
    folder = Path(name)
    if name == FINETUNED:
        if evaluated.run is None:
            raise BadInput(f"with {name}: {evaluated.location} is not a run folder; give the folder of the classifier")
        folder = evaluated.run.path / FINETUNED
        if not folder.exists():
            raise BadInput(
                f"{evaluated.location} has no fine-tuned classifier; make one, for which every image needs a single "
                f"label, with: supancl evaluate finetune {evaluated.location} --out {folder}"
            )
    elif not folder.exists():
        raise BadInput(f"with {name}: no such classifier or folder{did_you_mean(name, CLASSIFIERS)}")
    folder = folder if folder.is_dir() else folder.parent
    content, encoder = load_classifier(folder / CLASSIFIER_FILE), load_encoder(folder)
    if content.made_from != encoder_key(encoder):
        raise BadInput(
            f"{folder / CLASSIFIER_FILE} was fitted with another encoder than that next to it; copy both again"
        )
    if evaluated.options.layer != "pooled" or evaluated.options.normalize:
        raise BadInput(f"with {name}: its classifier is on the encoder's output; leave layer and normalize out")
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
    fit: dict[str, Callable[[References], Classifier]] = {
        "linear": lambda some: _fit_linear(evaluated, some)[0],
        "means": lambda some: fit_means(some.features, len(some.classes)),
        "knn": lambda some: _knn(some, settings.k, device),
    }
    about: dict[str, Any] = {}
    classifier: Classifier
    if name == "linear":
        classifier, about = _linear(evaluated, references)
    else:
        classifier = fit[name](references)
    if isinstance(classifier, KnnClassifier):
        about["k"] = classifier.k
    refit = fit[name] if is_cross_validated else None
    return FittedClassifier(classifier, references.classes, references, {"classifier": name, **about}, refit)


def _knn(references: References, k: int | None, device: torch.device) -> KnnClassifier:
    features = references.features
    k = min(k or default_k(features.class_numbers()), len(features))
    return KnnClassifier(features, len(references.classes), k, device=device)


def _linear(evaluated: EvaluatedEncoder, references: References) -> tuple[LinearClassifier, dict[str, Any]]:
    """The linear classifier of the references; that of a run's own images is kept in its folder."""
    made_from = references.made_from
    path = kept_path(evaluated, "linear") if made_from else None
    stored = None if path is None else read_kept(evaluated, path, load_classifier, made_from)
    width = references.features.values.shape[1]
    if stored is not None and stored.classes == references.classes and stored.weight.shape[1] == width:
        return LinearClassifier(stored.weight, stored.bias), {"kept": True}
    classifier, ridge = _fit_linear(evaluated, references)
    if path is not None:
        content = ClassifierFile(classifier.weight, classifier.bias, references.classes, "", made_from)
        keep(evaluated, path, lambda file: save_classifier(file, content))
    return classifier, {"kept": False, "ridge": ridge.weight, "ridge_chosen_on": ridge.chosen_on}


def _fit_linear(evaluated: EvaluatedEncoder, references: References) -> tuple[LinearClassifier, Ridge]:
    """The classifier with a ridge that held-out images choose if they may."""
    held_out = references.held_out if references.may_choose else references.held_out.take(torch.arange(0))
    return fit_linear_classifier(references.features, held_out, len(references.classes), evaluated.options.device)


def _agreement(
    splits: dict[str, PredictedSplit], given: Source, classes: Sequence[str], several: bool
) -> dict[str, Any]:
    """How many images have the labels of `given` predicted, if images with a label were predicted too.

    A classifier of one class per image agrees with several labels if its class is one of them.
    """
    count = agreeing = 0
    for name, split in splits.items():
        all_given = given_labels(given.splits[name])
        for position, row in zip(split.predicted.tolist(), split.labels.tolist(), strict=True):
            names = {given.classes[number] for number, _ in all_given[position]}
            count += bool(names)
            predicted = {classes[number] for number, _ in listed_labels(row)}
            agreeing += names == predicted if several else bool(names) and predicted <= names
    return {"compared": count, "agreeing": agreeing} if count else {}
