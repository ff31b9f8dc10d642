"""The ablations: the rows of Table 7 and App. F trained on your data, measured alike, and set side by side.

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
from supancl.recipes import Recipe
from supancl.reports.tables import Table, to_markdown
from supancl.stats import mean_interval
from supancl.sweeps.measures import Measurement, RunEvaluator, evaluations_of, has_projector, measure_run
from supancl.sweeps.results import Result, collect_results, mean_cells, share_cell, summarize
from supancl.sweeps.runner import Sweep, data_of, open_held_out, run_name
from supancl.sweeps.runs import Runs, Trained
from supancl.weights.provenance import commit, versions
from supancl.weights.run_folder import RunFolder

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
    evaluator = RunEvaluator(base.train.device, sweep.reporter)

    def measure(run: Trained, folder: Path) -> dict[str, float | None]:
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
    """The data that rows are compared on, and the rows, which hold out images of them where they must."""
    if on_test:
        data = data_of(base)
        if data.test is None:
            source = base.data.source
            raise BadInput(f"--on-test: {source} has no test split; leave it out to judge on held-out images")
        return rows, data
    held, data = open_held_out(base, "study", sweep.reporter, " (--on-test judges on the test split)")
    if held is not base:
        rows = {name: row.with_set({"data.holdout": held.data.holdout}, because="study") for name, row in rows.items()}
    return rows, data


def study_title(result: dict[str, Any], images: str) -> str:
    return (
        f"{result['study']} study of {result['recipe']}, {plural(result['epochs'], 'epoch')}, "
        f"seed{'s' if len(result['seeds']) > 1 else ''} {', '.join(map(str, result['seeds']))}, {images}"
    )


def write_study(result: Result, title: str, out: Path) -> None:
    """Write the table and the differences as study.md, and everything as study.json."""
    columns, cells = laid_out(result)
    failed = [
        f"failed, and in no mean: {run_name(row['row'], row['seed'])}: {row['failed']}"
        for row in result["rows"]
        if row["failed"]
    ]
    remarks = "".join(f"\n- {line}" for line in [*result["differences"], *failed])
    text = to_markdown(Table(columns, cells))
    write_text(out / "study.md", f"{title}; {result['seconds']:.0f} s\n\n{text}{remarks}\n")
    write_json(out / "study.json", result)


def measure_row(run: Trained, folder: Path, evaluator: RunEvaluator, split: str) -> dict[str, float | None]:
    """The measures of a run, which its folder keeps as evaluate/study.json for the tables."""
    found = measure_run(run, folder, evaluator, split)
    if isinstance(run.recipe.loss, Align) and has_projector(folder):  # Table 1's variance
        evaluator.number(folder, Measurement("variance", "train", layer="projector"), "within")
    kept = jsonable({"protocol": "study", "data": run.recipe.data.source, "split": split, **found})
    if kept not in evaluations_of(folder):
        RunFolder(folder).write_evaluation("study", kept)
    return {key: kept[key] for key in MEASURES}


def laid_out(result: Result) -> tuple[list[str], list[list[str]]]:
    """Columns and cells: mean +- sd, the verdict, and the average over 11 data sets that the paper has for the row."""
    study = STUDIES[result["study"]]
    # how runs ended: that they failed is a column only where one did
    ends = {"collapsed": "collapse"}
    ends |= {"failed": "failed"} if any(entry["failed"] for entry in result["summary"]) else {}
    columns = [study.title, *(title for title, _ in MEASURES.values()), *ends.values(), f"paper: Avg, {study.paper}"]
    cells = [
        [
            entry["row"],
            *mean_cells(entry, MEASURES),
            *(share_cell(entry[key], entry["n"]) for key in ends),
            f"{average:.2f}" if (average := study.average(entry["row"], result["recipe"])) is not None else "",
        ]
        for entry in result["summary"]
    ]
    return columns, cells


def differences(found: list[dict[str, Any]], reference: str) -> list[str]:
    """Linear accuracy of each row minus the reference row's, seed by seed, with its 95% interval."""
    of: dict[str, dict[int, float]] = {}
    for entry in found:
        if entry["linear"] is not None:
            of.setdefault(entry["row"], {})[entry["seed"]] = entry["linear"]
    if len(of) < 2 or reference not in of:
        return []
    if all(len(values) < 2 for values in of.values()):
        return ["with one seed nothing can be told apart; give --seeds 3 or more"]
    lines = []
    for row in (row for row in of if row != reference):
        seeds = sorted(of[row].keys() & of[reference].keys())  # a run that failed has no difference
        if len(seeds) < 2:
            lines.append(
                f"linear, {row} minus {reference}: cannot be told apart, with {plural(len(seeds), 'seed')} of both"
            )
            continue
        gap = mean_interval([of[row][seed] - of[reference][seed] for seed in seeds])
        verdict = "cannot be told apart" if not gap.excludes_zero else "better" if gap.mean > 0 else "worse"
        lines.append(
            f"linear, {row} minus {reference}: {gap.mean:+.2f} points (95% interval {gap.low:+.2f} to {gap.high:+.2f}, "
            f"n = {len(seeds)}): {verdict}"
        )
    return lines
