"""The keys of a result that say how much its figure means: interval, chance, cross-validation, baselines, verdict."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

from supancl.errors import BadInput
from supancl.evaluate.baselines import Ask, compare_with_baselines, verdict
from supancl.evaluate.encoder import EvaluatedEncoder
from supancl.evaluate.ridge import warn_cut_off
from supancl.probes.certainty import Judgement

T = TypeVar("T")
Fitted = tuple[Judgement, Mapping[str, Any]]  # what a protocol says about the tested images, and how it was chosen
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
    key: tuple[Hashable, ...] | None = None,
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
            judged, ask, key = cross_validate(evaluated), cross_validate, None
            keys["cross_validated"] = {judged.key: judged.value, **interval_keys(judged)}
        except BadInput as error:
            evaluated.warn_once(f"{evaluated.location}: not cross-validated: {error}")
    if not evaluated.options.baselines:
        return keys
    keys["baselines"] = [] if ask is None else compare_with_baselines(evaluated, judged, ask, key)
    keys["verdict"] = verdict(judged.images, judged.interval, judged.chance, keys["baselines"])
    return keys


def level_keys(
    evaluated: EvaluatedEncoder, main: Fitted, levels: Sequence[T | None], ask: Callable[[T], Fitted]
) -> dict[str, Any]:  # fmt: skip
    """`levels` of a hierarchy: the accuracy on each, the coarsest first; empty for other data.

    `ask` answers about one of them; for a level that is None the answer is `main`, which has warned already.
    """
    rows = []
    for number, level in enumerate(levels):
        try:
            judged, outcome = main if level is None else ask(level)
        except BadInput as error:
            evaluated.warn_once(f"{evaluated.location}: level {number} is not measured: {error}")
            continue
        if level is not None and "cut_off" in outcome:
            warn_cut_off(evaluated, f"{evaluated.location}, level {number}", outcome)
        rows.append(_level_row(number, judged, outcome))
    return {"levels": rows} if levels else {}


def _level_row(level: int, judged: Judgement, outcome: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "level": level,
        "classes": judged.classes,
        "images": judged.images,
        judged.key: judged.value,
        f"{judged.key}_interval": list(judged.interval[1:]),
        "chance": judged.chance,
        **{key: outcome[key] for key in CONDITIONS if key in outcome},
    }
