"""Few held-out images: also test the other labelled images whose labels pretraining did not use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from supancl.config import parse_json
from supancl.data.splits import Split
from supancl.data.views.evaluation import View
from supancl.errors import BadInput
from supancl.evaluation.encoder import EvaluatedEncoder
from supancl.evaluation.overlap import is_run_source, shares_images
from supancl.evaluation.sources import EvaluationData, data_for
from supancl.probes import Features, linear_probe
from supancl.probes.certainty import Answers
from supancl.probes.knn import Metric, default_k, knn_answers
from supancl.probes.linear import stratified_folds
from supancl.runs.encoder_file import read_header
from supancl.runs.folder import RunFolder, folder_of_encoder
from supancl.stats import FEW_IMAGES

FOLDS = 5  # of the linear classifier; k-NN leaves out one image at a time
MOST_IMAGES = 5000  # of each kind: more would hardly narrow the interval


@dataclass(frozen=True)
class CrossValidation:
    """The images to cross-validate over, and labelled ones that are only references: pretraining used their labels."""

    tested: tuple[Split, ...]
    references: Split
    view: View

    def features(self, evaluated: EvaluatedEncoder) -> tuple[Features, Features]:
        """Features of the tested images and of the references. A class with one image in all cannot be tested."""
        by_split = [evaluated.features(split, self.view) for split in self.tested]
        tested = Features(*(torch.cat(tensors) for tensors in zip(*by_split, strict=True)))
        references = evaluated.features(self.references, self.view)
        both = torch.cat([tested.labels, references.labels])
        testable = torch.bincount(both)[tested.labels] > 1
        return Features(tested.values[testable], tested.labels[testable]), references

    def ask_knn(
        self, evaluated: EvaluatedEncoder, k: int | None, temperature: float, metric: Metric
    ) -> Answers:  # fmt: skip
        """Each image by its nearest neighbours among all the others."""
        tested, others = self.features(evaluated)
        everything = Features(*(torch.cat([ours, other]) for ours, other in zip(tested, others, strict=True)))
        k = k or default_k(everything.labels, leave_one_out=True)
        correct = knn_answers(
            everything, tested, (k,), temperature, metric, evaluated.options.device, leave_one_out=True
        )
        return Answers(correct[k] == tested.labels, tested.labels, everything.labels)

    def ask_linear(self, evaluated: EvaluatedEncoder, seed: int) -> Answers:
        """Each fifth of the images by a classifier fitted on everything else.

        Where pretraining used labels, only images whose labels it did not use choose the ridge.
        """
        tested, references = self.features(evaluated)
        fold = stratified_folds(tested.labels, FOLDS, seed)
        is_correct = torch.zeros(len(fold), dtype=torch.bool)
        for number in range(FOLDS):
            part, rest = (_take(tested, fold == number), _take(tested, fold != number))
            if not len(part.labels):
                continue
            fit, choose = (references, rest) if len(torch.unique(references.labels)) > 1 else (rest, None)
            fitted = linear_probe(fit, part, choose, seed=seed, device=evaluated.options.device)
            is_correct[fold == number] = fitted.is_correct
        return Answers(is_correct, tested.labels, torch.cat([tested.labels, references.labels]))


def _take(features: Features, rows: Tensor) -> Features:
    return Features(features.values[rows], features.labels[rows])


def plan_cross_validation(
    evaluated: EvaluatedEncoder, evaluation: EvaluationData, view: View
) -> CrossValidation | None:  # fmt: skip
    """The images to cross-validate over; None if the tested ones are not few, or if no others may be tested."""
    count = evaluation.images.num_labelled
    if not evaluated.options.cross_validate or not 0 < count < FEW_IMAGES or evaluation.has_several_labels:
        return None
    train = _train_with_all_labels(evaluated, evaluation, view)
    if train.is_streamed or evaluation.images.is_streamed:
        return None
    is_used = _used_labels(evaluated, evaluation, train, view)
    if is_used is None:
        return None
    has_label = train.labels >= 0
    unused = train.take((has_label & ~is_used).nonzero()[:, 0]).sample(MOST_IMAGES)
    references = train.take((has_label & is_used).nonzero()[:, 0]).sample(MOST_IMAGES)
    held_out = evaluation.images.labelled()
    labels = torch.cat([held_out.labels, unused.labels])
    testable = torch.bincount(torch.cat([labels, references.labels]))[labels] > 1
    if not len(unused) or int(testable.sum()) <= count or len(torch.unique(labels[testable])) < 2:
        return None
    return CrossValidation((held_out, unused), references, view)


def _train_with_all_labels(evaluated: EvaluatedEncoder, evaluation: EvaluationData, view: View) -> Split:
    """The training images, with labels that the run hid and images beyond its limit."""
    recipe, train = evaluated.recipe, evaluation.data.train
    if evaluation.source is not None or recipe is None or recipe.data.leave_out:
        return train
    return train if recipe.data.is_whole else data_for(evaluated, recipe.data.source, view).train


def _used_labels(
    evaluated: EvaluatedEncoder, evaluation: EvaluationData, train: Split, view: View
) -> Tensor | None:  # fmt: skip
    """Mask of the images whose labels pretraining used; None if that is not known."""
    unused = torch.zeros(len(train), dtype=torch.bool)
    recipe = evaluated.recipe
    if recipe is None:
        return None if names_classes(evaluated.location, evaluation.data.classes) else unused
    if not _start_ignored_labels(evaluated.run, evaluation):
        return None
    if not recipe.loss.supervised or not shares_images(evaluated, evaluation.source, (train, evaluation.images)):
        return unused
    if not is_run_source(evaluated, evaluation.source):
        return None
    trained = evaluation.data.train if evaluation.source is None else data_for(evaluated, None, view).train
    return torch.isin(train.index.cpu(), trained.index.cpu()[trained.labels >= 0])


def _start_ignored_labels(run: RunFolder | None, evaluation: EvaluationData, depth: int = 0) -> bool:
    """Whether no run that this one started from, or was started from in turn, used labels of classes like these."""
    start = None if run is None else run.read_init()
    if start is None:
        return True
    path = Path(start["from"])
    folder = RunFolder(folder_of_encoder(path))
    if not folder.has_run:
        is_published = ":" in start["from"]  # such as timm:NAME
        return (is_published or path.exists()) and not names_classes(str(path), evaluation.data.classes)
    try:
        recipe, classes = folder.read_recipe()
    except BadInput:
        return False
    used = recipe.loss.supervised and bool(set(classes) & set(evaluation.data.classes))
    return not used and depth < 100 and _start_ignored_labels(folder, evaluation, depth + 1)


def names_classes(location: str, classes: tuple[str, ...]) -> bool:
    """Whether a weight file of ours says that it was trained with labels of these classes."""
    try:
        metadata, _ = read_header(Path(location))
        trained_classes = parse_json(metadata.get("classes", "[]"))
    except (BadInput, OSError, ValueError):
        return False
    return bool(set(map(str, trained_classes)) & set(classes))
