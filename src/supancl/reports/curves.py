"""The curves of one or several runs, as charts.js draws them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from supancl.reports.run_record import RunRecord, is_number
from supancl.reports.verdict import rank_bound
from supancl.training.monitor import COLLAPSED_STD

MAX_POINTS = 1500  # of a curve: more than a chart has pixels
BOUND_COLOUR = 6  # grey
COLOURS = (0, 1, 2, 3, 4, 5, 7)  # of runs, or of the curves of one run


class Measure(NamedTuple):
    """A logged value: its name in metrics.jsonl, and on the page."""

    key: str
    title: str


class Group(NamedTuple):
    """Measures that one run shows in one chart; several runs show each in its own chart."""

    title: str
    measures: tuple[Measure, ...]


GROUPS = (
    Group("Loss", (Measure("loss", "loss"), Measure("ssl", "self-supervised"), Measure("sup", "supervised"))),
    Group("Held-out accuracy (%)", (Measure("knn", "k-NN"), Measure("linear", "linear"))),
    Group("Held-out mAP (%)", (Measure("knn_map", "k-NN"),)),
    Group("Effective rank of the targets", (Measure("effective_rank", "effective rank"),)),
    Group("Relative std of the targets", (Measure("std", "relative std"),)),
    Group("S_W/S_T of held-out images", (Measure("s_w/s_t", "S_W/S_T"),)),
    Group("Pool: fraction of classes covered", (Measure("pool_coverage", "pool coverage"),)),
    Group("Learning rate", (Measure("lr", "encoder and projector"), Measure("predictor_lr", "predictor"))),
    Group("Momentum of the target branch", (Measure("momentum", "momentum"),)),
    Group("Images per second", (Measure("images_per_second", "images per second"),)),
)


def make_charts(records: Mapping[str, RunRecord]) -> dict[str, dict[str, Any]]:
    """The charts that have a value; `records` are the runs by name."""
    specs: dict[str, dict[str, Any]] = {}
    for group in GROUPS:
        if len(records) == 1:
            (record,) = records.values()
            lines = [(measure.title, record, measure.key) for measure in group.measures]
            _add_chart(specs, group.measures[0].key, group.title, lines)
            continue
        for measure in group.measures:
            is_named = len(group.measures) == 1 or measure.title in group.title.lower()
            title = group.title if is_named else f"{group.title}: {measure.title}"
            _add_chart(specs, measure.key, title, [(name, record, measure.key) for name, record in records.items()])
    for spec in specs.values():
        spec["legend"] = len(records) > 1  # also of the only run that has such a value
    return specs


def _add_chart(
    specs: dict[str, dict[str, Any]], name: str, title: str, lines: Sequence[tuple[str, RunRecord, str]]
) -> None:
    curves = [
        {"name": line_name, "colour": COLOURS[number % len(COLOURS)], "points": points}
        for number, (line_name, record, key) in enumerate(lines)
        if (points := thin_out(curve_points(record, key)))
    ]
    if not curves:
        return
    bound = {"std": lambda record: COLLAPSED_STD, "effective_rank": rank_bound}.get(name)
    if bound is not None:
        level = max(bound(record) for _, record, _ in lines)
        ends = [x for curve in curves for x, _ in curve["points"]]  # type: ignore[attr-defined]
        points = [[x, level] for x in dict.fromkeys((min(ends), max(ends)))]
        curves.append({"name": "collapse below", "colour": BOUND_COLOUR, "points": points})
    axis = "epoch" if all(record.steps_per_epoch for _, record, _ in lines) else "step"
    specs[name] = {"title": title, "x": axis, "curves": curves}


def curve_points(record: RunRecord, key: str) -> list[list[float]]:
    """[x, value] of each logged value; x is in epochs, or in steps if the length of an epoch is not known."""
    if key in ("ssl", "sup") and record.recipe is not None and not record.recipe.loss.supervised:
        return []  # of one term alone the loss is the same number
    rows: Iterable[Mapping[str, Any]] = record.train_rows
    if not any(is_number(row.get(key)) for row in record.train_rows):
        rows = record.checks
    unit = record.steps_per_epoch or 1
    return [[round(row["step"] / unit, 6), float(row[key])] for row in rows if is_number(row.get(key))]


def thin_out(points: list[list[float]]) -> list[list[float]]:
    """At most MAX_POINTS of the points, evenly spaced, the last one included; each as it was logged."""
    if len(points) <= MAX_POINTS:
        return points
    every = -(-len(points) // (MAX_POINTS - 1))
    return [*points[:-1:every], points[-1]]
