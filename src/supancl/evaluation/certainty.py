"""How much the figure of a result means: interval, chance, cross-validation, levels, baselines, verdict.

Baselines are random weights of the same architecture, and the weights that the run started from.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch

from supancl.core.encoders import PROJECTOR, Encoder
from supancl.errors import BadInput
from supancl.evaluation.encoder import EvaluatedEncoder
from supancl.evaluation.sources import EvaluationData
from supancl.probes.certainty import Judgement
from supancl.runs.importing import load_init
from supancl.stats import Interval, quality

Fitted = tuple[Judgement | None, Mapping[str, Any]]  # what a protocol says about the tested images, and how it was made
Ask = Callable[[EvaluatedEncoder], Judgement | None]  # what an encoder says about always the same images
RANDOM, START = "random weights", "its start"
RANDOM_SEED = 0
HIGH_CHANCE = 80.0  # %: above it nearly every image has nearly every class, and rankings say little
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
