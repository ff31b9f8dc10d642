"""How much the figure of a result means: interval, chance, cross-validation, levels, baselines, verdict.

Baselines are random weights of the same architecture, and the weights that the run started from.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from supancl.config import parse_json
from supancl.core.encoders import PROJECTOR, Encoder
from supancl.data.splits import Split
from supancl.errors import BadInput
from supancl.evaluation.encoder import EvaluatedEncoder
from supancl.evaluation.overlap import is_run_source, shares_images
from supancl.evaluation.sources import EvaluationData, Parts, data_for
from supancl.probes.certainty import Judgement
from supancl.probes.linear import stratified_folds
from supancl.runs.encoder_file import read_header
from supancl.runs.folder import RunFolder, folder_of_encoder
from supancl.runs.importing import load_init
from supancl.stats import FEW_IMAGES, Interval, quality

Fitted = tuple[Judgement | None, Mapping[str, Any]]  # what a protocol says about the tested images, and how it was made
Ask = Callable[[EvaluatedEncoder], Judgement | None]  # what an encoder says about always the same images
RANDOM, START = "random weights", "its start"
RANDOM_SEED = 0
HIGH_CHANCE = 80.0  # %: above it nearly every image has nearly every class, and rankings say little
FOLDS = 5
MOST_IMAGES = 5000  # of each kind: more would hardly narrow the interval
CONDITIONS = ("k", "weight", "weight_by_half", "chosen_on", "cut_off")  # of a level, where the protocol has them


def interval_keys(judged: Judgement) -> dict[str, Any]:
    """The interval of a figure, its number of images, chance; and what else its kind has to say."""
    return {
        "tested_images": judged.images,
        f"{judged.key}_interval": list(judged.interval[1:]),
        "chance": judged.chance,
        **judged.more_keys(),
    }


def certainty_keys(
    evaluated: EvaluatedEncoder,
    judged: Judgement,
    ask: Ask | None,
    cross_validate: Ask | None = None,
    key: Hashable = None,
) -> dict[str, Any]:
    """Everything that says how much the figure of `judged` means.

    `ask` puts the same question to another encoder; None: there are no baselines. With `cross_validate`, its answers
    about more images are added, and the baselines are compared on those.
    """
    keys = interval_keys(judged)
    if judged.key == "map" and judged.chance > HIGH_CHANCE:
        evaluated.warn_once(
            f"{evaluated.location}: nearly every tested image has every class, so chance is {judged.chance:.1f}% and "
            "mAP says little; every weight above 0 counts as a label, so leave out small ones"
        )
    if cross_validate is not None:
        try:
            more = cross_validate(evaluated)
            assert more is not None
            judged, ask, key = more, cross_validate, None
            keys["cross_validated"] = {judged.key: judged.value, **interval_keys(judged)}
        except BadInput as error:
            evaluated.warn_once(f"{evaluated.location}: not cross-validated: {error}")
    if not evaluated.options.baselines:
        return keys
    rows = [] if ask is None else compare_with_baselines(evaluated, judged, ask, key)
    gaps = {row["name"]: Interval(row["difference"], *row["difference_interval"]) for row in rows}
    return keys | {"baselines": rows, "verdict": quality(judged.images, judged.interval, judged.chance, gaps).text}


def level_keys(
    evaluated: EvaluatedEncoder,
    main: Fitted,
    levels: Sequence[EvaluationData | None],
    answer: Callable[[EvaluatedEncoder, EvaluationData], Fitted],
) -> dict[str, Any]:
    """`levels` of a hierarchy: the accuracy on each, the coarsest first; empty for other data.

    `main` is the answer for a level that is None.
    """
    rows = []
    for number, level in enumerate(levels):
        try:
            judged, about = main if level is None else answer(evaluated, level)
        except BadInput as error:
            evaluated.warn_once(f"{evaluated.location}: level {number} is not measured: {error}")
            continue
        assert judged is not None
        if level is not None:
            warn_cut_off(evaluated, f"{evaluated.location}, level {number}", about)
        rows.append(
            {
                "level": number,
                "classes": judged.classes,
                "images": judged.images,
                judged.key: judged.value,
                f"{judged.key}_interval": list(judged.interval[1:]),
                "chance": judged.chance,
                **{key: about[key] for key in CONDITIONS if key in about},
            }
        )
    return {"levels": rows} if levels else {}


def warn_cut_off(evaluated: EvaluatedEncoder, location: str, about: Mapping[str, Any]) -> None:
    """Warn of a classifier that did not reach its optimum: its predictions may differ."""
    if about.get("cut_off"):
        evaluated.reporter.warn(
            f"{location}: the classifier did not reach its optimum (residual {about['residual']:.2g}), so its accuracy "
            "may differ; normalised features (normalize) are often easier to fit"
        )


# --- baselines --------------------------------------------------------------------------------------------------------


def build_random(evaluated: EvaluatedEncoder) -> Encoder:
    """The same architecture with the random weights of one fixed seed, so that its features are cached once."""
    device = evaluated.options.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(RANDOM_SEED)
        return evaluated.encoder.spec.build().eval()


def build_start(evaluated: EvaluatedEncoder) -> Encoder | None:
    """The encoder that the run started from with --init; None if there was none."""
    start = None if evaluated.run is None else evaluated.run.read_init()
    return None if start is None else load_init(build_random(evaluated), start).eval()


def open_baselines(evaluated: EvaluatedEncoder) -> Iterator[tuple[str, EvaluatedEncoder]]:
    """The baselines that can be opened, by name; a warning for one that cannot."""
    if evaluated.options.layer == PROJECTOR:
        return  # neither has one
    for name, build in ((RANDOM, build_random), (START, build_start)):
        try:
            encoder = build(evaluated)
        except BadInput as error:
            evaluated.warn_once(f"{evaluated.location}: {name} is not compared: {error}")
            continue
        if encoder is not None:
            yield name, EvaluatedEncoder(f"{name} of {evaluated.label}", encoder, evaluated.options, evaluated.reporter)


def compare_with_baselines(
    evaluated: EvaluatedEncoder, judged: Judgement, ask: Ask, key: Hashable = None
) -> list[dict[str, Any]]:
    """The figure of each baseline on the same images, and the difference with its paired interval.

    `key` names the question: the same one about the same weights, as for a second run, is asked once.
    """
    rows = []
    for name, baseline in open_baselines(evaluated):
        options = baseline.options
        answers = {} if options.sources is None or key is None else options.sources.answers
        full_key = (baseline.weights, options.layer, options.normalize, key)
        try:
            theirs = answers[full_key] if full_key in answers else ask(baseline)
        except (BadInput, torch.linalg.LinAlgError) as error:  # type: ignore[attr-defined]
            evaluated.warn_once(f"{evaluated.location}: {name} is not compared: {error}")
            continue
        assert theirs is not None
        answers[full_key] = theirs
        gap = judged.minus(theirs)
        rows.append(
            {
                "name": name,
                "weights": baseline.weights,
                theirs.key: theirs.value,
                f"{theirs.key}_interval": list(theirs.interval[1:]),
                "difference": gap.mean,
                "difference_interval": [gap.low, gap.high],
            }
        )
    return rows


# --- few held-out images: also the others whose labels pretraining did not use, a fifth at a time ---------------------


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
