"""Few held-out images: also test the other labelled images whose labels pretraining did not use, a fifth at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from supancl.config import parse_json
from supancl.data.splits import Split
from supancl.errors import BadInput
from supancl.evaluation.encoder import EvaluatedEncoder
from supancl.evaluation.overlap import is_run_source, shares_images
from supancl.evaluation.sources import EvaluationData, Parts, data_for
from supancl.probes.linear import stratified_folds
from supancl.runs.encoder_file import read_header
from supancl.runs.folder import RunFolder, folder_of_encoder
from supancl.stats import FEW_IMAGES

FOLDS = 5
MOST_IMAGES = 5000  # of each kind: more would hardly narrow the interval


@dataclass(frozen=True)
class CrossValidation:
    """Images to test a fifth at a time, and labelled ones that are only fitted: pretraining used their labels."""

    data: EvaluationData
    tested: tuple[Split, ...]
    references: Split

    def folds(self, encoder: EvaluatedEncoder) -> Iterator[Parts]:
        """A fifth of the images as test, all others as train. A class with one image in all cannot be tested."""
        first, second = (encoder.features(split, self.data.view) for split in self.tested)
        tested, references = first.and_also(second), encoder.features(self.references, self.data.view)
        counts = torch.bincount(torch.cat([tested.labels, references.labels]))
        tested = tested.take(counts[tested.labels] > 1)
        fold = stratified_folds(tested.labels, FOLDS)
        for number in range(FOLDS):
            others, part = tested.take(fold != number), tested.take(fold == number)
            if len(part):
                yield Parts(encoder, self.data, {"train": others.and_also(references), "test": part})


def plan_cross_validation(evaluated: EvaluatedEncoder, data: EvaluationData) -> CrossValidation | None:
    """The images to cross-validate over; None if the tested ones are not few, or if no others may be tested."""
    count = data.images.num_labelled
    if not evaluated.options.cross_validate or not 0 < count < FEW_IMAGES or data.has_several_labels:
        return None
    train = _train_with_all_labels(evaluated, data)
    is_used = _used_labels(evaluated, data, train)
    if is_used is None:
        return None
    has_label = train.labels >= 0
    unused = train.take((has_label & ~is_used).nonzero()[:, 0]).sample(MOST_IMAGES)
    references = train.take((has_label & is_used).nonzero()[:, 0]).sample(MOST_IMAGES)
    held_out = data.images.labelled()
    labels = torch.cat([held_out.labels, unused.labels])
    testable = torch.bincount(torch.cat([labels, references.labels]))[labels] > 1
    if not len(unused) or int(testable.sum()) <= count or len(torch.unique(labels[testable])) < 2:
        return None
    return CrossValidation(data.chosen_by("train"), (held_out, unused), references)


def _train_with_all_labels(evaluated: EvaluatedEncoder, data: EvaluationData) -> Split:
    """The training images, with labels that the run hid and images beyond its limit."""
    recipe, train = evaluated.recipe, data.data.train
    if data.source is not None or recipe is None or recipe.data.leave_out or recipe.data.is_whole:
        return train
    return data_for(evaluated, recipe.data.source, data.view).train


def _used_labels(evaluated: EvaluatedEncoder, data: EvaluationData, train: Split) -> Tensor | None:
    """Mask of the images whose labels pretraining used; None if that is not known."""
    unused, recipe = torch.zeros(len(train), dtype=torch.bool), evaluated.recipe
    if recipe is None:
        return None if names_classes(evaluated.location, data.data.classes) else unused
    if not _start_ignored_labels(evaluated.run, data):
        return None
    if not recipe.loss.supervised or not shares_images(evaluated, data.source, (train, data.images)):
        return unused
    if not is_run_source(evaluated, data.source):
        return None
    trained = data.data.train if data.source is None else data_for(evaluated, None, data.view).train
    return torch.isin(train.index.cpu(), trained.index.cpu()[trained.labels >= 0])


def _start_ignored_labels(run: RunFolder | None, data: EvaluationData, depth: int = 0) -> bool:
    """Whether no run that this one started from, or was started from in turn, used labels of classes like these."""
    start = None if run is None else run.read_init()
    if start is None:
        return True
    path = Path(start["from"])
    folder = RunFolder(folder_of_encoder(path))
    if not folder.has_run:
        is_published = ":" in start["from"]  # such as timm:NAME
        return (is_published or path.exists()) and not names_classes(str(path), data.data.classes)
    try:
        recipe, classes = folder.read_recipe()
    except BadInput:
        return False
    used = recipe.loss.supervised and bool(set(classes) & set(data.data.classes))
    return not used and depth < 100 and _start_ignored_labels(folder, data, depth + 1)


def names_classes(location: str, classes: tuple[str, ...]) -> bool:
    """Whether a weight file of ours says that it was trained with labels of these classes."""
    try:
        metadata, _ = read_header(Path(location))
        trained_classes = parse_json(metadata.get("classes", "[]"))
    except (BadInput, OSError, ValueError):
        return False
    return bool(set(map(str, trained_classes)) & set(classes))
