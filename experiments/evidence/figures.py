"""The figures of the page: what labels add, the effect of alpha, all differences, and maps of related classes."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.evidence.claims import PAIRS, QUESTIONS, pair_title, significant_measures
from experiments.evidence.findings import LABELLED, SMALL_TABLE
from experiments.evidence.imagenet_page import ACCURACIES as IMAGENET_ACCURACIES
from experiments.evidence.imagenet_page import PICTURE, method_rows
from experiments.evidence.plans import imagenet_plan
from experiments.evidence.results import ACCURACIES, MEASURES, TITLES, Evidence, Row, half_width, read_evidence
from experiments.evidence.study_page import labelled_pairs, spread_of
from supancl.reports.pictures import COLOURS, MARKERS, Panel, Sheet, draw_panels
from supancl.stats import PooledDeviation, seed_stats, t_half_width

# one scale per panel, so that small changes stay visible
LOSSES = {"ssl": "l_ssl", "sup": "l_sup"}
PANELS = (
    ("loss of the last epoch", tuple(LOSSES)),
    ("S_W/S_T", ("ratio", "train_ratio")),
    ("in-domain accuracy (%)", ("knn", "linear")),
    ("transfer accuracy (%)", ("crossed",)),
    ("transfer accuracy (%)", ("pets",)),
    ("5-way accuracy (%)", ("omniglot_1",)),
    ("5-way accuracy (%)", ("omniglot_5",)),
    ("5-way accuracy (%)", ("traffic-signs_1",)),
    ("5-way accuracy (%)", ("traffic-signs_5",)),
)
# the panels of photographs
PHOTOGRAPHS_SHOWN = ("linear", "cifar10", "cifar100", "pets", "omniglot_5", "traffic-signs_5")


def drawings(evidence: Evidence, maps: Path) -> dict[str, Callable[[Path], None]]:
    """The figures that there are numbers for: name -> what draws it."""
    rows = {alpha: row for alpha, row in evidence.alphas.items() if row.results}
    related = map_files(rows, maps)
    figures: dict[str, tuple[object, Callable[[Path], None]]] = {
        "alpha": (len(rows) > 1, partial(curves, rows)),
        "differences": (any(evidence.gaps(*pair) for pair in PAIRS), partial(forest, evidence)),
        "labels": (any(evidence.gaps(*pair) for pair in LABELLED.items()), partial(draw_cifar_labels, evidence)),
        "maps": (related, partial(panels, related)),
    }
    return {f"{evidence.plan.name}-{name}.png": drawn for name, (is_known, drawn) in figures.items() if is_known}


def draw(evidence: Evidence, maps: Path, folder: Path) -> list[str]:
    """Draw these figures; returns their names."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = drawings(evidence, maps)
    for name, drawn in figures.items():
        drawn(folder / name)
    return list(figures)


def map_files(rows: dict[float, Row], maps: Path) -> dict[str, dict[str, Any]]:
    """Title -> map of the run with seed 0."""
    maps_by_title = {}
    for alpha, row in rows.items():
        path = maps / f"{row.results[0]['name']}.json"
        if path.exists():
            maps_by_title[f"alpha = {alpha:g}"] = json.loads(path.read_text(encoding="utf-8"))
    return maps_by_title


def curves(rows: dict[float, Row], path: Path) -> None:
    figure = Figure(figsize=(13, 9), layout="constrained")
    for axis, (unit, measures) in zip(figure.subplots(3, 3, sharex=True).flat, PANELS, strict=True):
        names = [LOSSES.get(measure) or MEASURES[measure][0] for measure in measures]
        for number, (measure, name) in enumerate(zip(measures, names, strict=True)):
            values_by_alpha = {alpha: values for alpha, row in rows.items() if (values := row.values(measure))}
            style = {"color": COLOURS[number], "marker": MARKERS[number], "label": name}
            curve(axis, values_by_alpha, style, measure in ACCURACIES)
        axis.set_title(" and ".join(names), fontsize=11)
        axis.set_ylabel(unit, fontsize=9)
        axis.grid(alpha=0.3)
        axis.margins(y=0.12)
        if axis.lines and len(measures) > 1:
            axis.legend(fontsize=9)
        if axis.get_subplotspec().is_last_row():
            axis.set_xlabel("alpha (0: supervised term alone, 1: self-supervised)", fontsize=9)
    figure.savefig(path, dpi=110)


def curve(axis: Axes, values_by_alpha: Mapping[float, Sequence[float]], style: Mapping[str, Any], ringed: bool) -> None:
    """Means over seeds, each seed as a point, a 95% interval where there are several, a ring around the best mean."""
    if not values_by_alpha:
        return
    means = {alpha: statistics.fmean(values) for alpha, values in values_by_alpha.items()}
    axis.plot(list(means), list(means.values()), linewidth=1.5, markersize=5, **style)
    for alpha, values in values_by_alpha.items():
        if len(values) > 1:
            half = t_half_width(seed_stats(values).sd, len(values))
            axis.errorbar([alpha], [means[alpha]], yerr=[half], capsize=3, color=style["color"])
            positions = [alpha + 0.025] * len(values)  # next to the bar, to be visible
            axis.scatter(positions, values, s=12, facecolors="none", edgecolors=style["color"], linewidths=0.8)
    if ringed:
        best = max(means, key=lambda alpha: means[alpha])
        axis.plot([best], [means[best]], "o", markersize=12, fillstyle="none", color=style["color"])


def with_and_without_labels(
    rows: Mapping[str, Row], titles: Mapping[str, str], path: Path, spread: Callable[[str], PooledDeviation | None]
) -> None:
    """Each method without labels (hollow) and with them (filled), a panel per measure of `titles`.

    `spread` gives the deviation over seeds of a measure; without one each row has its own.
    """
    pairs = labelled_pairs(rows)
    figure = Figure(figsize=(13, 1.5 + 0.45 * len(pairs)), layout="constrained")
    for axis, (measure, title) in zip(figure.subplots(1, len(titles), sharey=True), titles.items(), strict=True):
        for height, pair in enumerate(pairs):
            values = {method: rows[method].values(measure) for method in pair if rows[method].values(measure)}
            means = {method: statistics.fmean(seeds) for method, seeds in values.items()}
            axis.plot(list(means.values()), [height] * len(means), color="0.7", linewidth=2, zorder=1)
            for method, mean in means.items():
                half, colour = half_width(values[method], spread(measure)), COLOURS[height]
                face = colour if method == pair[0] else "white"
                axis.errorbar([mean], [height], xerr=[half], fmt="o", color=colour, markerfacecolor=face, markersize=7)
        if "crossentropy" in rows and rows["crossentropy"].values(measure):
            mean = statistics.fmean(rows["crossentropy"].values(measure))
            axis.axvline(mean, color="0.3", linestyle="--", linewidth=1)
        axis.set_title(title, fontsize=11)
        names = [f"{rows[theirs].name} / {rows[ours].name}" for ours, theirs in pairs]
        axis.set_yticks(range(len(pairs)), names, fontsize=9)
        axis.set_ylim(len(pairs) - 0.5, -0.5)
        axis.margins(x=0.08)
        axis.grid(axis="x", alpha=0.3)
    figure.legend(
        handles=[
            Line2D([], [], color="0.3", marker="o", linestyle="", markerfacecolor="white", label="without labels"),
            Line2D([], [], color="0.3", marker="o", linestyle="", label="with labels"),
            Line2D([], [], color="0.3", linestyle="--", label="cross-entropy"),
        ],
        loc="outside upper right",
        ncols=3,
        fontsize=9,
    )
    figure.supxlabel("accuracy (%)", fontsize=9)
    figure.savefig(path, dpi=110)


def draw_cifar_labels(evidence: Evidence, path: Path) -> None:
    rows = {method: row._replace(name=TITLES[method]) for method, row in evidence.methods.items()}
    titles = {measure: title + ", 5-shot" * measure.endswith("_5") for measure, title in SMALL_TABLE.items()}
    with_and_without_labels(rows, titles, path, lambda measure: None)


def draw_photographs(results: Path, folder: Path) -> None:
    """The same figure for ImageNet photographs, if two methods that differ only in labels are measured."""
    rows = method_rows(read_evidence(results, imagenet_plan()))
    if labelled_pairs(rows):
        titles = {measure: title for measure, title in IMAGENET_ACCURACIES.items() if measure in PHOTOGRAPHS_SHOWN}
        titles["linear"] = "own classes"
        with_and_without_labels(rows, titles, folder / PICTURE, lambda measure: spread_of(rows, measure))


def forest(evidence: Evidence, path: Path) -> None:
    """Every difference between two methods with its interval: a panel per accuracy, a line per pair."""
    by_pair = {pair: gaps for pair in PAIRS if (gaps := evidence.gaps(*pair))}
    bold = {pair: significant_measures(evidence, *pair) for pair in by_pair}
    colours = {pair: COLOURS[number] for number, (_, pairs, _) in enumerate(QUESTIONS) for pair in pairs}
    figure = Figure(figsize=(13, 1.6 + 0.55 * len(by_pair)), layout="constrained")
    for axis, measure in zip(figure.subplots(2, 4, sharey=True).flat, ACCURACIES, strict=True):
        for height, (pair, gaps) in enumerate(by_pair.items()):
            if measure not in gaps:
                continue
            difference = gaps[measure]
            if difference.low is not None and difference.high is not None:
                axis.plot(
                    [difference.low, difference.high],
                    [height, height],
                    color=colours[pair],
                    linewidth=3.5 if measure in bold[pair] else 1.2,
                    solid_capstyle="butt",
                )
            axis.plot(
                [difference.mean],
                [height],
                "o",
                markersize=8 if measure in bold[pair] else 5,  # a thick line may be shorter than the dot
                color=colours[pair],
                markerfacecolor="white" if difference.borrowed else colours[pair],
            )
        axis.axvline(0, color="black", linewidth=0.8)
        axis.margins(x=0.08)
        axis.set_title(MEASURES[measure][0], fontsize=11)
        axis.set_yticks(range(len(by_pair)), [pair_title(*pair) for pair in by_pair], fontsize=9)
        axis.set_ylim(len(by_pair) - 0.5, -0.5)
        axis.grid(axis="x", alpha=0.3)
    figure.supxlabel("difference of accuracies, in points", fontsize=9)
    figure.savefig(path, dpi=110)


def panels(contents: dict[str, dict[str, Any]], path: Path) -> None:
    """Draw one map per alpha; a class has the same colour and marker in all of them."""
    maps = [
        Panel(title, np.array(content["points"]), np.array(content["labels"])) for title, content in contents.items()
    ]
    classes = [name.replace("_", " ") for name in next(iter(contents.values()))["classes"]]
    draw_panels(maps, classes, path, sheet=Sheet(width=16, side=4.2, font=10, dpi=110))
