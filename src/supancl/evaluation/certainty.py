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
from supancl.data.splits import Split, fingerprint
from supancl.errors import BadInput
from supancl.evaluation import Settings
from supancl.evaluation.data import EvaluationData, data_for
from supancl.evaluation.encoder import EvaluatedEncoder, Parts, is_run_source, shares_images
from supancl.evaluation.results import RANDOM, START
from supancl.probes.answers import Measured, join
from supancl.probes.features import stratified_folds
from supancl.runs.encoder_file import read_header
from supancl.runs.folder import RunFolder, folder_of_encoder
from supancl.runs.importing import load_init
from supancl.stats import FEW_IMAGES, Interval, quality

Measure = Callable[[EvaluatedEncoder], Measured]  # of an encoder, on always the same images
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
    data: EvaluationData,
    settings: Settings,
    measured: Measured,
    answer: Callable[[Parts], Any],
) -> dict[str, Any]:
    """Everything that says how much the figure means.

    Of few tested images the baselines are compared with the cross-validated figure. There are none for a protocol that
    takes long.
    """
    keys = interval_keys(measured)
    if not evaluated.options.baselines:
        return keys
    folds = plan_cross_validation(evaluated, data) if settings.is_cross_validated else None

    def measure(encoder: EvaluatedEncoder) -> Measured:
        return answer(Parts(encoder, data)) if folds is None else join([answer(part) for part in folds(encoder)])

    if folds is not None:
        measured = measure(evaluated)
        keys["cross_validated"] = interval_keys(measured)
    key = (settings, fingerprint(*data.splits.values())) if settings.needs_data else None
    rows = compare_with_baselines(evaluated, measured, measure, key) if settings.is_quick else []
    gaps = {row["name"]: Interval(row["difference"], *row["difference_interval"]) for row in rows}
    verdict = quality(measured.images, measured.interval, measured.chance, gaps).text
    return keys | {"baselines": rows, "verdict": verdict}


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
    evaluated: EvaluatedEncoder, measured: Measured, measure: Measure, key: Hashable = None
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
                theirs = measure(baseline)
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
    held_out = data.images.labelled()
    if not 0 < len(held_out) < FEW_IMAGES or data.has_several_labels or (train := whole_train(evaluated, data)) is None:
        return None
    has_label, is_used = train.labels >= 0, uses_labels(evaluated, data, train)
    unused = train.take((has_label & ~is_used).nonzero()[:, 0]).sample(MOST_IMAGES)
    references = train.take((has_label & is_used).nonzero()[:, 0]).sample(MOST_IMAGES)
    labels = torch.cat([held_out.labels, unused.labels])
    testable = torch.bincount(torch.cat([labels, references.labels]))[labels] > 1
    if not len(unused) or int(testable.sum()) <= len(held_out) or len(torch.unique(labels[testable])) < 2:
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


def whole_train(evaluated: EvaluatedEncoder, data: EvaluationData) -> Split | None:
    """The training images, with labels that the run hid and images beyond its limit; None if labels that the encoder
    has seen are not known: those of a start of ours, or of a file that is no run but names the classes."""
    recipe, run, train = evaluated.recipe, evaluated.run, data.splits["train"]
    if recipe is None or run is None:
        return None if names_classes(evaluated.location, data.classes) else train
    start = run.read_init()
    if start is not None and ":" not in start["from"]:  # not published, as timm:NAME is
        path = Path(start["from"])
        is_ours = RunFolder(folder_of_encoder(path)).has_run or names_classes(str(path), data.classes)
        if is_ours or not path.exists():
            return None
    if data.source is not None or recipe.data.leave_out or recipe.data.is_whole:
        return train
    return data_for(evaluated, recipe.data.source, data.view).train


def uses_labels(evaluated: EvaluatedEncoder, data: EvaluationData, train: Split) -> Tensor:
    """Mask of the images whose labels pretraining used: all, if it saw such images in another source."""
    unused, recipe = torch.zeros(len(train), dtype=torch.bool), evaluated.recipe
    if recipe is None or not recipe.loss.supervised or not shares_images(evaluated, data.source, (train, data.images)):
        return unused
    if not is_run_source(evaluated, data.source):
        return ~unused
    trained = data.splits["train"] if data.source is None else data_for(evaluated, None, data.view).train
    return torch.isin(train.index.cpu(), trained.index.cpu()[trained.labels >= 0])


def names_classes(location: str, classes: tuple[str, ...]) -> bool:
    """Whether a weight file of ours says that it was trained with labels of these classes."""
    try:
        trained_classes = parse_json(read_header(Path(location))[0].get("classes", "[]"))
    except (BadInput, OSError, ValueError):
        return False
    return bool(set(map(str, trained_classes)) & set(classes))
