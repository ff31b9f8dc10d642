"""The few-shot protocol on a source: which images episodes are sampled from, and whether there are enough."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from supancl.data.hierarchy import with_leaf_labels
from supancl.data.preparing import prepare_data
from supancl.data.splits import DataSpec, Source, Split, fingerprint
from supancl.data.views.evaluation import View
from supancl.errors import BadInput, plural
from supancl.evaluation.class_checks import quote_classes
from supancl.evaluation.encoder import EvaluatedEncoder
from supancl.evaluation.naming import data_label, registered_name
from supancl.evaluation.overlap import is_incomplete, is_run_source, warn_if_trained_on
from supancl.evaluation.recording import record_result
from supancl.evaluation.sources import check_unchanged, read_source, spec_for, without_hierarchy
from supancl.probes import FewShot, few_shot
from supancl.probes.features import Features

HELD_OUT = "held out of train"  # where episodes come from if there is no other split


@dataclass(frozen=True)
class EpisodeSettings:
    """Which episodes are sampled.

    `fill_queries`: small classes have as many queries as large ones, sampled with replacement, as in the authors' code.
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
    """Mean accuracy over N-way K-shot episodes on a source; they depend only on its labels and the settings.

    `name` is the name of the result if the source's is not unique. If a later call will use `most_shots`, classes too
    small for it are refused now.
    """
    since, name, settings = time.perf_counter(), name or data_label(source), settings or EpisodeSettings()
    spec, ways, shots = spec_for(evaluated, source), settings.ways, settings.shots
    data = read_source(evaluated, spec, view, "few-shot")
    if registered_name(source) is None:  # a benchmark has one split here, with every image
        check_unchanged(evaluated, source, data)
    split_name, split = few_shot_split(evaluated, data, spec)
    data = with_leaf_labels(data)
    for most in (shots, max(shots, most_shots)):
        check_episodes(data.classes, source, split.labels, ways, most, held_out=split_name == HELD_OUT)
    drawn_from = data.splits[split_name if split_name in data.splits else "train"]
    overlaps = warn_if_trained_on(evaluated, source, split_name, [drawn_from], every=split_name == "train")
    features: Features = evaluated.features(split, view)
    outcome = few_shot(features, device=evaluated.options.device, **asdict(settings))
    dropped = [data.classes[label] for label in outcome.dropped]
    if dropped:
        warn_dropped(evaluated, name, dropped, shots)
    remark, warns = describe_episodes(features.labels, outcome)
    if warns:
        evaluated.warn_once(f"{name}: {remark}")
    return record_result(
        evaluated,
        f"fewshot-{name}-{ways}w{shots}s",
        since,
        protocol="fewshot",
        data=name,
        source=source,
        split=split_name,
        view=view,
        remarks=[*data.remarks, *[remark] * bool(remark)],
        tested_on=fingerprint(split),
        partial=is_incomplete(source, data.remarks, data.skipped),
        overlaps_training=overlaps,
        accuracy=outcome.mean,
        chance=100 / ways,
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
    """The images that episodes are sampled from: images not trained on, if the source has any.

    Of a hierarchy their labels are the leaves.
    """
    name = next(name for name in ("test", "val", "train") if name in source.splits)
    if name == "train" and is_run_source(evaluated, spec.source) and registered_name(spec.source) is None:
        return HELD_OUT, with_leaf_labels(prepare_data(source, without_hierarchy(spec))).held_out
    return name, with_leaf_labels(source).splits[name]


def check_episodes(
    classes: Sequence[str], location: str, labels: Tensor, ways: int, shots: int, held_out: bool = False
) -> None:
    """Check that enough classes have an image left for a query; the message names only remedies that can help."""
    label_ids, sizes = torch.unique(labels[labels >= 0], return_counts=True)
    usable, small = int((sizes > shots).sum()), {int(label) for label in label_ids[sizes <= shots]}
    if usable < ways:
        small_ones = f" (too small: {quote_classes(classes, small)})" if small else ""
        among = " among those that the run held out" if held_out else ""
        remedies = ["lower ways or shots"] if int((sizes > 1).sum()) > 1 else []
        remedies += ["name other data", "pretrain with a larger data.holdout"] if held_out else ["add images"]
        raise BadInput(
            f"{location}: {plural(usable, 'class has', 'classes have')} more than "
            f"{plural(shots, 'image')}{among}, {ways} ways need {ways} such{small_ones}; {', or '.join(remedies)}"
        )


def describe_episodes(labels: Tensor, outcome: FewShot) -> tuple[str, bool]:
    """A remark if classes had fewer queries than requested or images are few (else empty), and whether it needs a
    warning.

    It needs one if an episode uses a tenth of all images or more: then all episodes have nearly the same queries, and
    the interval says little about other images.
    """
    least, most = outcome.queries_used
    sizes = torch.unique(labels[labels >= 0], return_counts=True)[1]
    sizes = sizes[sizes > outcome.shots]
    shots, images, remarks = plural(outcome.shots, "shot"), int(sizes.sum()), []
    if least < outcome.queries:
        remarks.append(
            f"{span(int(sizes.min()), int(sizes.max()))} images a class leave {describe_queries(least, most)} at "
            f"{shots}, not {outcome.queries}"
        )
    are_few = 10 * outcome.ways * (outcome.shots + most) >= images
    if are_few:
        remarks.append(f"the interval is over episodes of the same {images:,} images")
    return "; ".join(remarks), are_few


def span(least: int, most: int) -> str:
    """`5`, or `5 to 1,200`."""
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def describe_queries(least: int, most: int) -> str:
    return f"{span(least, most)} quer{'y' if most == 1 else 'ies'}"
