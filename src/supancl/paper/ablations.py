"""The ablations: the rows of Table 7 and App. F trained on your data, measured in the same way and compared.

`supancl alpha` recommends an alpha; `study alpha` only trains the rows of Tables 1, 3 and F.1.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from supancl.core.losses import Align
from supancl.data.splits import Data
from supancl.errors import BadInput, plural
from supancl.files import jsonable, write_json, write_text
from supancl.paper.study_rows import STUDIES, Rows
from supancl.probes.knn import DEFAULT_K
from supancl.recipes import Recipe
from supancl.reports.tables import Table, to_markdown
from supancl.runs.folder import RunFolder
from supancl.runs.provenance import commit, versions
from supancl.stats import mean_interval
from supancl.sweeps.measures import (
    Measurement,
    Result,
    RunEvaluator,
    collect_results,
    count_cell,
    evaluations_of,
    has_projector,
    mean_cells,
    measure_run,
    summarize,
)
from supancl.sweeps.runner import Sweep, open_held_out, open_recipe_data, run_name
from supancl.sweeps.runs import Runs, TrainedRun

MEASURES = {
    # key -> (title, decimals)
    "knn": ("k-NN %", 2),
    "linear": ("linear %", 2),
    "ratio": ("S_W/S_T", 3),
    "ssl": ("l_ssl", 3),
    "sup": ("l_sup", 3),
}


def train_rows(name: str, base: Recipe, rows: Rows, sweep: Sweep, on_test: bool) -> tuple[Result, str, Runs]:
    """Train and measure the rows of a study; returns the content of study.json, the number of images, and the runs."""
    started, study = time.perf_counter(), STUDIES[name]
    rows, data = open_rows(base, rows, sweep, on_test)
    labels = {row: {"row": row} for row in rows}
    runs = sweep.train(sweep.with_seeds(rows, "study"), data)
    evaluator = RunEvaluator(base.train.device)

    def measure(run: TrainedRun, folder: Path) -> dict[str, float | None]:
        return measure_row(run, folder, evaluator, "test" if on_test else "held-out")

    results = collect_results(sweep, runs, labels, MEASURES, measure)
    result: Result = {
        "study": name,
        "paper": study.paper,
        "recipe": base.name,
        "data": data.summary,
        "epochs": base.train.epochs,
        "seeds": list(range(sweep.seeds)),
        "rows": results,
        "summary": [summarize(results, label, MEASURES, ("collapsed", "failed")) for label in labels.values()],
        "differences": differences(results, study.reference if study.reference in rows else next(iter(rows))),
        "seconds": time.perf_counter() - started,
        "versions": versions(),
        "commit": commit(),
    }
    measured_on = f"{len(data.test)} test" if on_test and data.test is not None else f"{len(data.held_out)} held-out"
    return result, f"{len(data.train)} training and {measured_on} images", runs


def open_rows(base: Recipe, rows: Rows, sweep: Sweep, on_test: bool) -> tuple[Rows, Data]:
    """The rows and the data to compare them on; the rows get a held-out part if the data have none."""
    if on_test:
        data = open_recipe_data(base)
        if data.test is None:
            source = base.data.source
            raise BadInput(f"on_test: {source} has no test split; omit on_test to evaluate on held-out images")
        return rows, data
    with_holdout, data = open_held_out(base, "study", " (on_test uses the test split)")
    if with_holdout is not base:
        rows = {
            name: row.with_set({"data.holdout": with_holdout.data.holdout}, because="study")
            for name, row in rows.items()
        }
    return rows, data


def study_title(result: dict[str, Any], images: str) -> str:
    return (
        f"{result['study']} study of {result['recipe']}, {plural(result['epochs'], 'epoch')}, "
        f"seed{'s' if len(result['seeds']) > 1 else ''} {', '.join(map(str, result['seeds']))}, {images}"
    )


def write_study(result: Result, title: str, out: Path) -> None:
    """Write the table and the differences as study.md, and everything as study.json."""
    columns, cells = table_cells(result)
    failed = [
        f"failed, and in no mean: {run_name(row['row'], row['seed'])}: {row['failed']}"
        for row in result["rows"]
        if row["failed"]
    ]
    remarks = "".join(f"\n- {line}" for line in [*result["differences"], *failed])
    text = to_markdown(Table(columns, cells))
    write_text(out / "study.md", f"{title}; {result['seconds']:.0f} s\n\n{text}{remarks}\n")
    write_json(out / "study.json", result)


def measure_row(run: TrainedRun, folder: Path, evaluator: RunEvaluator, split: str) -> dict[str, float | None]:
    """Measure a run and save the result as evaluate/study.json in its folder, where the tables find it."""
    measured = measure_run(run, folder, evaluator, split, DEFAULT_K)
    if isinstance(run.recipe.loss, Align) and has_projector(folder):  # Table 1's variance
        evaluator.measure_value(folder, Measurement("variance", "train", layer="projector"), "within")
    content = jsonable({"protocol": "study", "data": run.recipe.data.source, "split": split, **measured})
    if content not in evaluations_of(folder):
        RunFolder(folder).write_evaluation("study", content)
    return {key: content[key] for key in MEASURES}


def table_cells(result: Result) -> tuple[list[str], list[list[str]]]:
    """Columns and cells: mean ± sd, the verdict, and the paper's average over 11 data sets for the row."""
    study = STUDIES[result["study"]]
    # a column for failed runs only if one failed
    outcomes = {"collapsed": "collapse"}
    outcomes |= {"failed": "failed"} if any(entry["failed"] for entry in result["summary"]) else {}
    columns = [
        study.title,
        *(title for title, _ in MEASURES.values()),
        *outcomes.values(),
        f"paper: Avg, {study.paper}",
    ]
    cells = [
        [
            entry["row"],
            *mean_cells(entry, MEASURES),
            *(count_cell(entry[key], entry["n"]) for key in outcomes),
            f"{average:.2f}" if (average := study.average(entry["row"], result["recipe"])) is not None else "",
        ]
        for entry in result["summary"]
    ]
    return columns, cells


def differences(results: list[dict[str, Any]], reference: str) -> list[str]:
    """Linear accuracy of each row minus the reference row's, seed by seed, with its 95% interval."""
    by_row: dict[str, dict[int, float]] = {}
    for entry in results:
        if entry["linear"] is not None:
            by_row.setdefault(entry["row"], {})[entry["seed"]] = entry["linear"]
    if len(by_row) < 2 or reference not in by_row:
        return []
    if all(len(values) < 2 for values in by_row.values()):
        return ["one seed shows no clear difference; give seeds 3 or more"]
    lines = []
    for row in (row for row in by_row if row != reference):
        seeds = sorted(by_row[row].keys() & by_row[reference].keys())  # a failed run has no difference
        if len(seeds) < 2:
            lines.append(
                f"linear, {row} minus {reference}: no clear difference, only {plural(len(seeds), 'seed')} in common"
            )
            continue
        difference = mean_interval([by_row[row][seed] - by_row[reference][seed] for seed in seeds])
        verdict = (
            "no clear difference" if not difference.excludes_zero else "better" if difference.mean > 0 else "worse"
        )
        lines.append(
            f"linear, {row} minus {reference}: {difference.mean:+.2f} points (95% interval "
            f"{difference.low:+.2f} to {difference.high:+.2f}, n = {len(seeds)}): {verdict}"
        )
    return lines
