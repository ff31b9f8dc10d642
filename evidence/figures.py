"""The figures of the page: what alpha does, and the maps of related classes."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from evidence.plan import Plan
from evidence.results import Results
from evidence.rows import MEASURES, Row, alpha_rows
from evidence.spread import t_reach
from supancl.report.pictures import COLOURS, MARKERS

GROUPS = (
    ("intra-class variance S_W/S_T", ("ratio", "train_ratio")),
    ("in-domain accuracy (%)", ("knn", "linear")),
    ("crossed accuracy (%)", ("crossed", "pets")),
    ("5-way few-shot accuracy (%)", ("omniglot_1", "omniglot_5", "traffic-signs_1", "traffic-signs_5")),
)


def draw(plan: Plan, results: Results, maps: Path, folder: Path) -> list[str]:
    """The names of the figures that could be drawn; what there is no number for is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = {alpha: row for alpha, row in alpha_rows(plan, results).items() if row.results}
    drawn = []
    if len(rows) > 1:
        curves(rows, folder / f"{plan.name}-alpha.png")
        drawn.append(f"{plan.name}-alpha.png")
    found = map_files(rows, maps)
    if found:
        panels(found, folder / f"{plan.name}-maps.png")
        drawn.append(f"{plan.name}-maps.png")
    return drawn


def drawn_names(plan: Plan, results: Results, maps: Path) -> list[str]:
    """What `draw` would draw."""
    rows = {alpha: row for alpha, row in alpha_rows(plan, results).items() if row.results}
    return [f"{plan.name}-alpha.png"] * (len(rows) > 1) + [f"{plan.name}-maps.png"] * bool(map_files(rows, maps))


def map_files(rows: dict[float, Row], maps: Path) -> dict[str, dict[str, Any]]:
    """By title; of the run with seed 0."""
    found = {}
    for alpha, row in rows.items():
        path = maps / f"{row.results[0]['name']}.json"
        if path.exists():
            found[f"alpha = {alpha:g}"] = json.loads(path.read_text(encoding="utf-8"))
    return found


def curves(rows: dict[float, Row], path: Path) -> None:
    """Means over seeds with 95% intervals where there are several."""
    figure = Figure(figsize=(16, 3.8), layout="constrained")
    for axis, (title, measures) in zip(figure.subplots(1, len(GROUPS)), GROUPS, strict=True):
        for number, measure in enumerate(measures):
            points = [(alpha, row.values(measure)) for alpha, row in rows.items() if row.values(measure)]
            if not points:
                continue
            means = [statistics.fmean(values) for _, values in points]
            halves = [t_reach(len(v) - 1) * statistics.stdev(v) / math.sqrt(len(v)) if len(v) > 1 else 0.0
                      for _, v in points]
            axis.errorbar([alpha for alpha, _ in points], means, yerr=halves, marker=MARKERS[number], capsize=3,
                          color=COLOURS[number], label=MEASURES[measure][0])
        axis.set_title(title)
        axis.set_xlabel("alpha (1: self-supervised)")
        axis.grid(alpha=0.3)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=8)
    figure.savefig(path, dpi=110)


def panels(found: dict[str, dict[str, Any]], path: Path) -> None:
    """One map an alpha, a class with the same colour and marker in all of them."""
    side = min(4.2, 16 / len(found))
    figure = Figure(figsize=(side * len(found), side + 1.0), layout="constrained")
    axes = figure.subplots(1, len(found), squeeze=False)[0]
    for axis, (title, content) in zip(axes, found.items(), strict=True):
        points, labels = np.array(content["points"]), np.array(content["labels"])
        for label, name in enumerate(content["classes"]):
            mine = points[labels == label]
            if len(mine):
                axis.scatter(mine[:, 0], mine[:, 1], s=6, alpha=0.8, linewidths=0, label=name.replace("_", " "),
                             color=COLOURS[label % len(COLOURS)], marker=MARKERS[label // len(COLOURS) % len(MARKERS)])
        axis.set_title(title)
        axis.set_xticks([])
        axis.set_yticks([])
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(len(names), 10), frameon=False, markerscale=2.5)
    figure.savefig(path, dpi=110)
