"""How much the figure of a result means: interval, chance, cross-validation, baselines, verdict.

Baselines are random weights of the same architecture, and the weights that the run started from.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from supancl.config import parse_json
from supancl.core.encoders import PROJECTOR, Encoder
from supancl.data.splits import Split
from supancl.errors import BadInput
from supancl.evaluation.data import EvaluationData, data_for
from supancl.evaluation.encoder import EvaluatedEncoder, Parts, is_run_source, shares_images
from supancl.evaluation.results import RANDOM, START
from supancl.probes.answers import Measured
from supancl.probes.features import stratified_folds
from supancl.runs.encoder_file import read_header
from supancl.runs.folder import RunFolder, folder_of_encoder
from supancl.runs.importing import load_init
from supancl.stats import FEW_IMAGES, Interval, quality

Answer = Callable[[EvaluatedEncoder], Measured]  # what an encoder says about always the same images
FOLDS = 5
MOST_IMAGES = 5000  # of each kind: more would hardly narrow the interval


def figure_keys(measured: Measured) -> dict[str, Any]:
    """A figure and its interval."""
    return {measured.key: measured.value, f"{measured.key}_interval": list(measured.interval[1:])}


def interval_keys(measured: Measured) -> dict[str, Any]:
    """A figure with its interval, its number of images, chance; and what else its kind has to say."""
    about = {"tested_images": measured.images, "chance": measured.chance}
    return {**figure_keys(measured), **about, **measured.more_keys()}


def certainty_keys(
    evaluated: EvaluatedEncoder,
    measured: Measured,
    answer: Answer | None,
    cross_validate: Answer | None = None,
    key: Hashable = None,
) -> dict[str, Any]:
    """Everything that says how much the figure means.

    `answer` measures another encoder in the same way; None: there are no baselines. With `cross_validate` more images
    are tested, and the baselines are compared on those.
    """
    keys = interval_keys(measured)
    if not evaluated.options.baselines:
        return keys
    if cross_validate is not None:
        measured, answer, key = cross_validate(evaluated), cross_validate, None
        keys["cross_validated"] = interval_keys(measured)
    rows = [] if answer is None else compare_with_baselines(evaluated, measured, answer, key)
    gaps = {row["name"]: Interval(row["difference"], *row["difference_interval"]) for row in rows}
    return keys | {
        "baselines": rows,
        "verdict": quality(measured.images, measured.interval, measured.chance, gaps).text,
    }


# --- baselines --------------------------------------------------------------------------------------------------------


def baselines(evaluated: EvaluatedEncoder) -> Iterator[tuple[str, Encoder]]:
    """The same architecture with the random weights of one fixed seed, and the encoder that the run started from."""
    device = evaluated.options.device
    if evaluated.options.layer == PROJECTOR:
        return  # neither has one

    def build() -> Encoder:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(0)
            return evaluated.encoder.spec.build().eval()

    yield RANDOM, build()
    start = None if evaluated.run is None else evaluated.run.read_init()
    if start is not None:
        try:
            yield START, load_init(build(), start).eval()
        except BadInput as error:  # its file may be gone
            evaluated.warn_once(f"{evaluated.location}: {START} is not compared: {error}")


def compare_with_baselines(
    evaluated: EvaluatedEncoder, measured: Measured, answer: Answer, key: Hashable = None
) -> list[dict[str, Any]]:
    """The figure of each baseline on the same images, and the difference with its paired interval.

    `key` names the question: the same one about the same weights, as for a second run, is answered once.
    """
    rows, options = [], evaluated.options
    for name, encoder in baselines(evaluated):
        baseline = EvaluatedEncoder(f"{name} of {evaluated.label}", encoder, options, evaluated.reporter)
        full_key = (baseline.weights, options.layer, options.normalize, key)
        theirs = options.sources.answers.get(full_key)
        if theirs is None:
            try:
                theirs = answer(baseline)
            except (BadInput, torch.linalg.LinAlgError) as error:  # type: ignore[attr-defined]
                evaluated.warn_once(f"{evaluated.location}: {name} is not compared: {error}")
                continue
        if key is not None:
            options.sources.answers[full_key] = theirs
        gap = measured.minus(theirs)
        difference = {"difference": gap.mean, "difference_interval": [gap.low, gap.high]}
        rows.append({"name": name, "weights": baseline.weights, **figure_keys(theirs), **difference})
    return rows


# --- few held-out images: also the others whose labels pretraining did not use, a fifth at a time ---------------------


def plan_cross_validation(
    evaluated: EvaluatedEncoder, data: EvaluationData
) -> Callable[[EvaluatedEncoder], Iterator[Parts]] | None:
    """An encoder's folds: a fifth of the images as test, all others as train.

    None if the tested images are not few, or if there are no others whose labels pretraining did not use. A class with
    one image in all cannot be tested.
    """
    count = data.images.num_labelled
    if not evaluated.options.baselines or not 0 < count < FEW_IMAGES or data.has_several_labels:
        return None
    train = _train_with_all_labels(evaluated, data)
    is_used = _used_labels(evaluated, data, train)
    if is_used is None:
        return None
    has_label, held_out = train.labels >= 0, data.images.labelled()
    unused = train.take((has_label & ~is_used).nonzero()[:, 0]).sample(MOST_IMAGES)
    references = train.take((has_label & is_used).nonzero()[:, 0]).sample(MOST_IMAGES)
    labels = torch.cat([held_out.labels, unused.labels])
    testable = torch.bincount(torch.cat([labels, references.labels]))[labels] > 1
    if not len(unused) or int(testable.sum()) <= count or len(torch.unique(labels[testable])) < 2:
        return None
    chosen = replace(data, chooses="train")

    def folds(encoder: EvaluatedEncoder) -> Iterator[Parts]:
        more, fitted = (encoder.features(split, data.view) for split in (unused, references))
        tested = encoder.features(held_out, data.view).and_also(more).take(testable)
        fold = stratified_folds(tested.labels, FOLDS)
        for part in (fold == number for number in range(FOLDS)):
            if bool(part.any()):
                yield Parts(encoder, chosen, {"train": tested.take(~part).and_also(fitted), "test": tested.take(part)})

    return folds


def _train_with_all_labels(evaluated: EvaluatedEncoder, data: EvaluationData) -> Split:
    """The training images, with labels that the run hid and images beyond its limit."""
    recipe, train = evaluated.recipe, data.splits["train"]
    if data.source is not None or recipe is None or recipe.data.leave_out or recipe.data.is_whole:
        return train
    return data_for(evaluated, recipe.data.source, data.view).train


def _used_labels(evaluated: EvaluatedEncoder, data: EvaluationData, train: Split) -> Tensor | None:
    """Mask of the images whose labels pretraining used; None if that is not known."""
    unused, recipe = torch.zeros(len(train), dtype=torch.bool), evaluated.recipe
    if recipe is None:
        return None if names_classes(evaluated.location, data.classes) else unused
    if not _start_ignored_labels(evaluated.run, data):
        return None
    if not recipe.loss.supervised or not shares_images(evaluated, data.source, (train, data.images)):
        return unused
    if not is_run_source(evaluated, data.source):
        return None
    trained = data.splits["train"] if data.source is None else data_for(evaluated, None, data.view).train
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
        return (is_published or path.exists()) and not names_classes(str(path), data.classes)
    try:
        recipe, classes = folder.read_recipe()
    except BadInput:
        return False
    used = recipe.loss.supervised and bool(set(classes) & set(data.classes))
    return not used and depth < 100 and _start_ignored_labels(folder, data, depth + 1)


def names_classes(location: str, classes: tuple[str, ...]) -> bool:
    """Whether a weight file of ours says that it was trained with labels of these classes."""
    try:
        metadata, _ = read_header(Path(location))
        trained_classes = parse_json(metadata.get("classes", "[]"))
    except (BadInput, OSError, ValueError):
        return False
    return bool(set(map(str, trained_classes)) & set(classes))
