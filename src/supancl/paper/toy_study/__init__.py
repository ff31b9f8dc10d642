"""The toy study of Sec. 4.3 and App. B: Tables 1 and 2 and the t-SNE figure (`supancl paper toy`, docs/toy.md)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from supancl.config import to_json
from supancl.files import jsonable, write_text
from supancl.paper.toy_study import tables
from supancl.paper.toy_study.measures import NEIGHBOURS, first_per_class, measure
from supancl.paper.toy_study.training import ALPHAS, Reading, Size, draw_data, train
from supancl.probes import Features
from supancl.reports.tables import to_markdown
from supancl.runs.provenance import commit, versions

FIGURE_SAMPLES_PER_CLASS = 300  # training samples per class in the figure; more would overlap


def run(
    reading: Reading, size: Size, seeds: list[int], on_epoch: Callable[[int], None] = lambda epoch: None
) -> tuple[dict[str, Any], dict[str, Features]]:
    """Run the study; returns its result, and the first seed's features for the figure."""
    started = time.perf_counter()
    toys = draw_data(reading, size, seeds)
    data_ready = time.perf_counter()
    trained = train(toys, reading, size, ALPHAS, seeds, lambda epoch, _: on_epoch(epoch))
    training_done = time.perf_counter()
    rows = measure(trained, toys, reading, size, seeds, ALPHAS)
    summary = tables.summarize(rows)
    result: dict[str, Any] = {
        "reading": to_json(reading),
        "size": to_json(size),
        "seeds": seeds,
        "alphas": list(ALPHAS),
        "neighbours": NEIGHBOURS,
        "rows": rows,
        "summary": {
            f"{alpha:g}": {name: stats._asdict() for name, stats in by_name.items()}
            for alpha, by_name in summary.items()
        },
        "paper": {f"{alpha:g}": numbers for alpha, numbers in tables.PAPER.items()},
        "trends": tables.trends(summary),
        "levels": tables.levels(summary),
        "paired": tables.paired_differences(rows),
        "seconds": {
            "data": data_ready - started,
            "training": training_done - data_ready,
            "measuring": time.perf_counter() - training_done,
        },
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "commit": commit(),
    }
    figure_rows = first_per_class(toys[0].train_labels, FIGURE_SAMPLES_PER_CLASS)
    values = trained.features(0, toys[0].train[figure_rows])
    panels = {
        f"alpha = {alpha:g}": Features(value, toys[0].train_labels[figure_rows])
        for alpha, value in zip(ALPHAS, values, strict=True)
    }
    return result, panels


def summary_of(result: dict[str, Any]) -> tables.Summary:
    return tables.summarize(result["rows"])


def write(result: dict[str, Any], folder: Path) -> None:
    summary = summary_of(result)
    files = {
        "table1.md": to_markdown(tables.table(summary, tables.TABLE_1_COLUMNS)),
        "table2.md": to_markdown(tables.table(summary, tables.TABLE_2_COLUMNS)),
        "toy.json": json.dumps(jsonable(result), indent=2) + "\n",
    }  # toy.json comes last: it marks the study as complete
    for name, text in files.items():
        write_text(folder / name, text, "Make room, or choose another out")
