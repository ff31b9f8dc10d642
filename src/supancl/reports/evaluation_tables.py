"""The evaluations of one or several runs: each result with its interval, and a ranking where runs share benchmarks."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from supancl.evaluation.naming import FIGURES, data_name, data_title, figure_of, source_of
from supancl.probes.ranking import Score, rank_encoders
from supancl.reports.run_record import RunRecord, format_interval, is_number
from supancl.reports.score_table import ranking_table
from supancl.reports.tables import Cell, Row, Table, to_html

Result = Mapping[str, Any]
DESCRIPTIONS = {
    "accuracy": "Accuracy in percent with its 95% interval, chance and the same encoder untrained.",
    "mAP": "Mean average precision in percent, of images with several labels; interval, chance and the same encoder "
    "untrained.",
}


def evaluations_html(records: Mapping[str, RunRecord]) -> str:
    """The section; a sentence if nothing was evaluated."""
    results = [(name, stem, result) for name, record in records.items() for stem, result in record.evaluations.items()]
    by_figure = {name: [item for item in results if _has_figure(item[2], name)] for name in FIGURES.values()}
    levels = [item for item in results if _levels(item[2])]
    variances = [item for item in results if is_number(item[2].get("ratio"))]
    if not any(by_figure.values()) and not variances:
        return "<h2>Evaluations</h2><p>There are none yet; supancl evaluate knn RUN measures one.</p>"
    several = len(records) > 1
    sections = ["<h2>Evaluations</h2>"]
    if several and (ranking := _ranking(records)):
        sections.append(ranking)
    rows: list[Row]
    for name, items in by_figure.items():
        if items:
            sections.append(f"<p>{DESCRIPTIONS[name]}</p>")
            columns = ["evaluation", "data", name, "images", "chance", "random weights", "finding"]
            rows = [_figure_row(stem, result) for _, stem, result in items]
            sections.append(to_html(_with_runs(Table(columns, rows, "llrrrrw"), [item[0] for item in items], several)))
    if levels:
        sections.append("<p>Accuracy in percent on each level of a hierarchy, 0 for the coarsest.</p>")
        rows, runs = [], []
        for run, stem, result in levels:
            for level in _levels(result):
                rows.append([stem, _data(result), *_level_cells(level)])
                runs.append(run)
        columns = ["evaluation", "data", "level", "classes", "accuracy", "images", "chance"]
        sections.append(to_html(_with_runs(Table(columns, rows, "llrrrrr"), runs, several)))
    if variances:
        columns = ["evaluation", "data", "S_W/S_T", "effective rank"]
        rows = [
            [stem, _data(result), *(_text(result.get(key), "{:.3f}") for key in ("ratio", "effective_rank"))]
            for _, stem, result in variances
        ]
        sections.append(to_html(_with_runs(Table(columns, rows, "llrr"), [item[0] for item in variances], several)))
    return "".join(sections)


def _with_runs(table: Table, runs: list[str], several: bool) -> Table:
    if not several:
        return table
    rows = [[run, *row] for run, row in zip(runs, table.rows, strict=True)]
    return Table(["run", *table.columns], rows, "l" + table.align)


def _has_figure(result: Result, name: str) -> bool:
    figure = figure_of(result)
    return figure is not None and figure.name == name and is_number(figure.value)


def _levels(result: Result) -> list[Result]:
    """The levels of a hierarchy that a result lists."""
    levels = result.get("levels")
    return [level for level in levels if isinstance(level, Mapping)] if isinstance(levels, list) else []


def _level_cells(level: Result) -> Row:
    counts = [_text(level.get(key), "{:,}") for key in ("level", "classes")]
    return [*counts, _figure_cell(level), _text(level.get("images"), "{:,}"), _text(level.get("chance"), "{:.1f}")]


def _figure_row(stem: str, result: Result) -> Row:
    baselines = result.get("baselines")
    untrained = next(
        (
            baseline
            for baseline in (baselines if isinstance(baselines, list) else ())
            if isinstance(baseline, Mapping) and baseline.get("name") == "random weights"
        ),
        {},
    )
    images = result.get("tested_images", result.get("queries") if result.get("protocol") == "knn" else None)
    return [
        stem,
        _data(result),
        _figure_cell(result),
        _text(images, "{:,}"),
        _text(result.get("chance"), "{:.1f}"),
        _figure_cell(untrained),
        str(result.get("verdict") or ""),
    ]


def _figure_cell(result: Result) -> Cell:
    """The accuracy or mAP with its interval: two ends, or half its width for few-shot episodes."""
    figure = figure_of(result)
    if figure is None or not is_number(figure.value):
        return Cell("")
    interval = format_interval(figure.interval)
    half_width = "" if interval else _text(result.get("interval"), "{:.2f}")
    return Cell(f"{figure.value:.2f}", half_width, suffix=interval)


def _data(result: Result) -> str:
    return data_name(source_of(result) or str(result.get("data") or ""))


def _text(value: Any, form: str) -> str:
    return form.format(value) if is_number(value) else ""


def _ranking(records: Mapping[str, RunRecord]) -> str:
    """A row per run and a column per evaluation that several runs have on the same images, with average ranks."""
    columns: dict[tuple[str, str, str], dict[str, Result]] = {}
    for name, record in records.items():
        for stem, result in record.evaluations.items():
            if any(_has_figure(result, figure) for figure in FIGURES.values()):
                key = (stem, _data(result), str(result.get("tested_on") or result.get("drawn") or ""))
                columns.setdefault(key, {})[name] = result
    shared = {key: results for key, results in columns.items() if len(results) > 1}
    if not shared:
        return ""
    labels: dict[tuple[str, str, str], str] = {}
    for (stem, data, tested), results in shared.items():
        label = data_title(stem if data in stem else f"{stem} {data}", next(iter(results.values())))
        labels[stem, data, tested] = label if label not in labels.values() else f"{label} ({tested[:4]})"
    scores = {
        run: {
            labels[key]: Score(figure.value)
            for key, results in shared.items()
            if run in results and (figure := figure_of(results[run]))
        }
        for run in records
    }
    trained_on = {
        labels[key]
        for key, results in shared.items()
        if any(result.get("overlaps_training") for result in results.values())
    }
    ranking = rank_encoders(
        {run: row for run, row in scores.items() if row}, list(labels.values()), unranked=trained_on
    )
    notes = "Best in bold, second best underlined; the average rank is over what every run has, on the same images."
    if trained_on:
        notes += " Not ranked, because a run was trained on these images: " + ", ".join(sorted(trained_on)) + "."
    table = ranking_table(ranking)
    return f"<p>{html.escape(notes)}</p>{to_html(replace(table, columns=['run', *table.columns[1:]]))}"
