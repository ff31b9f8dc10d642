"""The evaluations of one or several runs: each result with its interval, and a ranking where runs share benchmarks."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from supancl.evaluate.naming import data_name, source_of
from supancl.probes.ranking import Score, rank_encoders
from supancl.reports.run_record import RunRecord, format_interval, is_number
from supancl.reports.score_table import ranking_table
from supancl.reports.tables import Cell, Row, Table, to_html

Result = Mapping[str, Any]


def evaluations_html(records: Mapping[str, RunRecord]) -> str:
    """The section; a sentence if nothing was evaluated."""
    results = [(name, stem, result) for name, record in records.items() for stem, result in record.evaluations.items()]
    accuracies = [item for item in results if is_number(item[2].get("accuracy"))]
    variances = [item for item in results if is_number(item[2].get("ratio"))]
    if not accuracies and not variances:
        return "<h2>Evaluations</h2><p>There are none yet; supancl evaluate knn RUN measures one.</p>"
    several = len(records) > 1
    sections = ["<h2>Evaluations</h2>"]
    if several and (ranking := _ranking(records)):
        sections.append(ranking)
    if accuracies:
        sections.append("<p>Accuracy in percent with its 95% interval, chance and the same encoder untrained.</p>")
        columns = ["evaluation", "data", "accuracy", "images", "chance", "random weights", "finding"]
        rows: list[Row] = [_accuracy_row(stem, result) for _, stem, result in accuracies]
        sections.append(to_html(_with_runs(Table(columns, rows, "llrrrrw"), [item[0] for item in accuracies], several)))
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


def _accuracy_row(stem: str, result: Result) -> Row:
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
        _accuracy_cell(result),
        _text(images, "{:,}"),
        _text(result.get("chance"), "{:.1f}"),
        _accuracy_cell(untrained),
        str(result.get("verdict") or ""),
    ]


def _accuracy_cell(result: Result) -> Cell:
    """The accuracy with its interval: two ends, or half its width for few-shot episodes."""
    interval, accuracy = format_interval(result.get("accuracy_interval")), result.get("accuracy")
    if not is_number(accuracy):
        return Cell("")
    half_width = "" if interval else _text(result.get("interval"), "{:.2f}")
    return Cell(f"{accuracy:.2f}", half_width, suffix=interval)


def _data(result: Result) -> str:
    return data_name(source_of(result) or str(result.get("data") or ""))


def _text(value: Any, form: str) -> str:
    return form.format(value) if is_number(value) else ""


def _ranking(records: Mapping[str, RunRecord]) -> str:
    """A row per run and a column per evaluation that several runs have on the same images, with average ranks."""
    columns: dict[tuple[str, str, str], dict[str, Result]] = {}
    for name, record in records.items():
        for stem, result in record.evaluations.items():
            if is_number(result.get("accuracy")):
                key = (stem, _data(result), str(result.get("tested_on") or result.get("drawn") or ""))
                columns.setdefault(key, {})[name] = result
    shared = {key: results for key, results in columns.items() if len(results) > 1}
    if not shared:
        return ""
    labels: dict[tuple[str, str, str], str] = {}
    for stem, data, tested in shared:
        label = stem if data in stem else f"{stem} {data}"
        labels[stem, data, tested] = label if label not in labels.values() else f"{label} ({tested[:4]})"
    scores = {
        run: {labels[key]: Score(float(results[run]["accuracy"])) for key, results in shared.items() if run in results}
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
