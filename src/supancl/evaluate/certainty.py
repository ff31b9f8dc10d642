"""The keys of a result that say how much its figure means: interval, chance, cross-validation, baselines, verdict."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from supancl.errors import BadInput
from supancl.evaluate.baselines import Ask, compare_with_baselines, verdict
from supancl.evaluate.encoder import EvaluatedEncoder
from supancl.probes.certainty import Judgement

T = TypeVar("T")


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
    evaluated: EvaluatedEncoder, finest: Judgement, coarser: Sequence[T], ask: Callable[[T], Judgement]
) -> dict[str, Any]:  # fmt: skip
    """`levels` of a hierarchy: the accuracy on each, the coarsest first; empty for other data.

    `ask` answers about one of the `coarser` levels.
    """
    if not coarser:
        return {}
    rows = []
    for number, level in enumerate(coarser):
        try:
            rows.append(_level_row(number, ask(level)))
        except BadInput as error:
            evaluated.warn_once(f"{evaluated.location}: level {number} is not measured: {error}")
    return {"levels": [*rows, _level_row(len(coarser), finest)]}


def _level_row(level: int, judged: Judgement) -> dict[str, Any]:
    return {
        "level": level,
        "classes": judged.classes,
        "images": judged.images,
        judged.key: judged.value,
        f"{judged.key}_interval": list(judged.interval[1:]),
        "chance": judged.chance,
    }
