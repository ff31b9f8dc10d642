"""The few-shot protocol on a source: which images episodes are sampled from, and whether there are enough."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from supancl.data.labels import with_leaf_labels
from supancl.data.preparing import prepare_data
from supancl.data.splits import Data, DataSpec, Source, Split, fingerprint
from supancl.errors import BadInput
from supancl.evaluation.encoder import EvaluatedEncoder
from supancl.evaluation.naming import registered_name
from supancl.evaluation.overlap import is_run_source
from supancl.evaluation.settings import FewShot
from supancl.evaluation.sources import EvaluationData, Parts, check_unchanged, read_source, spec_for, without_hierarchy
from supancl.probes import FewShot as Episodes
from supancl.probes import few_shot

HELD_OUT = "held out of train"  # where episodes come from if there is no other split


def open_episodes(evaluated: EvaluatedEncoder, source: str | None, settings: FewShot) -> EvaluationData:
    """The images that episodes are sampled from; refused if they are too few for any of the shots."""
    assert source is not None
    spec = spec_for(evaluated, source)
    read = read_source(evaluated, spec, settings.view, "few-shot")
    if registered_name(source) is None:  # a benchmark has one split here, with every image
        check_unchanged(evaluated, source, read)
    name, split = few_shot_split(evaluated, read, spec)
    read = with_leaf_labels(read)
    _, sizes = torch.unique(split.labels[split.labels >= 0], return_counts=True)
    for shots in settings.shots:
        usable = int((sizes > shots).sum())
        if usable < settings.ways:
            raise BadInput(
                f"{source}: classes with more than {shots} images in {name}: {usable}; {settings.ways} ways need as "
                "many; lower ways or shots, or name other data"
            )
    summary: dict[str, object] = {"held_out_from": "test"}
    data = Data(split, split, read.classes, split, None, (), read.remarks, read.skipped, summary)
    drawn = (read.splits[name if name in read.splits else "train"],)
    every = name == "train"
    return EvaluationData(source, source, data, split, name, name, (), settings.view, drawn=drawn, tests_every=every)


def few_shot_split(evaluated: EvaluatedEncoder, source: Source, spec: DataSpec) -> tuple[str, Split]:
    """The images that episodes are sampled from: images not trained on, if the source has any.

    Of a hierarchy their labels are the leaves.
    """
    name = next(name for name in ("test", "val", "train") if name in source.splits)
    if name == "train" and is_run_source(evaluated, spec.source) and registered_name(spec.source) is None:
        return HELD_OUT, with_leaf_labels(prepare_data(source, without_hierarchy(spec))).held_out
    return name, with_leaf_labels(source).splits[name]


def answer_episodes(evaluated: EvaluatedEncoder, parts: Parts, settings: FewShot) -> tuple[None, dict[str, Any]]:
    """Mean accuracy over N-way K-shot episodes, which depend only on the labels and the settings."""
    features, data, (shots,) = parts["test"], parts.data, settings.shots
    outcome = few_shot(
        features,
        settings.ways,
        shots,
        settings.queries,
        settings.episodes,
        settings.seed,
        device=evaluated.options.device,
        fill_queries=settings.fill_queries,
    )
    dropped = [data.data.classes[label] for label in outcome.dropped]
    if dropped:
        names = ", ".join(dropped[:8]) + " ..." * (len(dropped) > 8)
        evaluated.reporter.warn(f"{data.location}: left out, with no more images than {shots}: {names}")
    remark, warns = describe_episodes(features.labels, outcome)
    if warns:
        evaluated.warn_once(f"{data.location}: {remark}")
    labelled = features.labelled()
    return None, {
        "kind": f"-{settings.ways}w{shots}s",
        "remarks": [*data.data.remarks, *[remark] * bool(remark)],
        "tested_on": fingerprint(data.images),
        "accuracy": outcome.mean,
        "chance": 100 / settings.ways,
        "images": len(labelled),
        "classes": len(torch.unique(labelled.labels)) - len(dropped),
        **outcome.to_json() | {"dropped": dropped},
    }


def describe_episodes(labels: Tensor, outcome: Episodes) -> tuple[str, bool]:
    """A remark if classes had fewer queries than requested or images are few (else empty), and whether it needs a
    warning.

    It needs one if an episode uses a tenth of all images or more: then all episodes have nearly the same queries, and
    the interval says little about other images.
    """
    least, most = outcome.queries_used
    sizes = torch.unique(labels[labels >= 0], return_counts=True)[1]
    sizes = sizes[sizes > outcome.shots]
    images, remarks = int(sizes.sum()), []
    if least < outcome.queries:
        remarks.append(f"small classes, from {int(sizes.min())} images on, have fewer queries than {outcome.queries}")
    are_few = 10 * outcome.ways * (outcome.shots + most) >= images
    if are_few:
        remarks.append(f"the interval is over episodes of the same {images:,} images")
    return "; ".join(remarks), are_few
