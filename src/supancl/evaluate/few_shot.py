"""The few-shot protocol on a source: which images its episodes are drawn from, and what they lack."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from supancl.data.splits import DataSpec, Source, Split, fingerprint, prepare_data
from supancl.data.views.evaluation import View
from supancl.errors import BadInput, plural
from supancl.evaluate.encoder import EvaluatedEncoder
from supancl.evaluate.naming import data_label, registered
from supancl.evaluate.protocols import record_result
from supancl.evaluate.sources import (
    check_unchanged,
    is_incomplete,
    is_own,
    named,
    read_source,
    spec_for,
    was_trained_on,
)
from supancl.probes import FewShot, few_shot
from supancl.probes.features import Features

HELD_OUT = "held out of train"  # where episodes are drawn from, for want of a split


@dataclass(frozen=True)
class EpisodeSettings:
    """Which episodes are drawn.

    `fill_queries`: small classes have as many queries as large ones, drawn with replacement, as the authors have it.
    """

    ways: int = 5
    shots: int = 5
    queries: int = 16
    episodes: int = 2000
    seed: int = 0
    fill_queries: bool = False


def evaluate_few_shot(
    evaluated: EvaluatedEncoder,
    source: str,
    settings: EpisodeSettings | None = None,
    view: View = "whole",
    name: str | None = None,
    most_shots: int = 0,
) -> dict[str, Any]:
    """Mean accuracy over N-way K-shot episodes on a source; they depend on its labels and the settings alone.

    `name` is what the result is called where another source has the same one. Where as many as `most_shots` will be
    asked for next, classes too small for these are refused now.
    """
    since, name, settings = time.perf_counter(), name or data_label(source), settings or EpisodeSettings()
    spec, ways, shots = spec_for(evaluated, source), settings.ways, settings.shots
    found = read_source(evaluated, spec, view, "few-shot")
    if registered(source) is None:  # others have one split here, with every image
        check_unchanged(evaluated, source, found)
    which, split = few_shot_split(evaluated, found, spec)
    for many in (shots, max(shots, most_shots)):
        check_episodes(found.classes, source, split.labels, ways, many, held_out=which == HELD_OUT)
    seen = was_trained_on(evaluated, source, which, every=which == "train")
    features: Features = evaluated.features(split, view)
    outcome = few_shot(features, device=evaluated.options.device, **asdict(settings))
    dropped = [found.classes[label] for label in outcome.dropped]
    if dropped:
        warn_dropped(evaluated, name, dropped, shots)
    remark, warns = describe_missing_queries(features.labels, outcome)
    if warns:
        evaluated.warn_once(f"{name}: {remark}")
    return record_result(
        evaluated,
        f"fewshot-{name}-{ways}w{shots}s",
        since,
        protocol="fewshot",
        data=name,
        source=source,
        split=which,
        view=view,
        remarks=[*found.remarks, *[remark] * bool(remark)],
        tested_on=fingerprint(split),
        partial=is_incomplete(source, found.remarks, found.skipped),
        overlaps_training=seen,
        accuracy=outcome.mean,
        images=len(features.labelled().labels),
        classes=len(torch.unique(features.labelled().labels)) - len(dropped),
        **outcome.to_json() | {"dropped": dropped},
    )


def warn_dropped(evaluated: EvaluatedEncoder, name: str, dropped: Sequence[str], shots: int) -> None:
    evaluated.reporter.warn(
        f"{name}: {plural(len(dropped), 'class has', 'classes have')} no more than "
        f"{plural(shots, 'image')} and {'is' if len(dropped) == 1 else 'are'} left out: {', '.join(dropped[:8])}"
        f"{' ...' if len(dropped) > 8 else ''}"
    )


def few_shot_split(evaluated: EvaluatedEncoder, source: Source, spec: DataSpec) -> tuple[str, Split]:
    """The images that episodes are drawn from: those not trained on, where the source has such."""
    name = next(name for name in ("test", "val", "train") if name in source.splits)
    if name == "train" and is_own(evaluated, spec.source) and registered(spec.source) is None:
        return HELD_OUT, prepare_data(source, spec).held_out
    return name, source.splits[name]


def check_episodes(
    classes: Sequence[str], where: str, labels: Tensor, ways: int, shots: int, held_out: bool = False
) -> None:
    """Enough classes have an image to ask about after the shots are taken; only a way out that leads out is named."""
    found, sizes = torch.unique(labels[labels >= 0], return_counts=True)
    fit, small = int((sizes > shots).sum()), {int(label) for label in found[sizes <= shots]}
    if fit < ways:
        small_ones = f" (too small: {named(classes, small)})" if small else ""
        part = " among those that the run held out" if held_out else ""
        ways_out = ["lower --ways or --shots"] if int((sizes > 1).sum()) > 1 else []
        ways_out += ["name other --data", "pretrain with a larger data.holdout"] if held_out else ["add images"]
        raise BadInput(
            f"{where}: {plural(fit, 'class has', 'classes have')} more than "
            f"{plural(shots, 'image')}{part}, {ways} ways need {ways} such{small_ones}; {', or '.join(ways_out)}"
        )


def describe_missing_queries(labels: Tensor, outcome: FewShot) -> tuple[str, bool]:
    """A remark if classes had fewer queries than were asked for (else empty), and whether it needs a warning.

    One query less of a large data set is a remark. Where an episode takes a tenth of all the images or more, the
    interval says little of other images, because every episode asks about the same ones.
    """
    least, most = outcome.used
    if least >= outcome.queries:
        return "", False
    sizes = torch.unique(labels[labels >= 0], return_counts=True)[1]
    sizes = sizes[sizes > outcome.shots]
    shots = plural(outcome.shots, "shot")
    remark = (
        f"{span(int(sizes.min()), int(sizes.max()))} images a class leave {describe_queries(least, most)} at {shots}, "
        f"not {outcome.queries}"
    )
    images = int(sizes.sum())
    if 10 * outcome.ways * (outcome.shots + most) < images:
        return remark, False
    return f"{remark}; the interval is over episodes of the same {images:,} images", True


def span(least: int, most: int) -> str:
    """`5`, or `5 to 1,200`."""
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def describe_queries(least: int, most: int) -> str:
    return f"{span(least, most)} quer{'y' if most == 1 else 'ies'}"
