"""The ablations: the rows of Table 7 and App. F trained on your data, judged alike, and set side by side.

`supancl alpha` is the study that recommends an alpha; `study alpha` only trains the rows of Tables 1, 3 and F.1.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supancl.core.losses import Align
from supancl.data.splits import Data
from supancl.errors import BadInput, counted
from supancl.files import write_text
from supancl.paper.study_rows import STUDIES, Rows
from supancl.recipes import Recipe
from supancl.reporter import Reporter
from supancl.sweeps.measures import JUDGED, Judge, Measurement, evaluations_of, has_projector
from supancl.sweeps.runner import (
    Runs,
    Trained,
    check_held_out,
    data_of,
    interval,
    mean_cell,
    share_cell,
    spread,
    train_all,
)
from supancl.weights.run_folder import RunFolder, commit, jsonable, versions

MEASURES = {
    # key -> (title, decimals)
    "knn": ("k-NN %", 2),
    "linear": ("linear %", 2),
    "ratio": ("S_W/S_T", 3),
    "ssl": ("l_ssl", 3),
    "sup": ("l_sup", 3),
}


@dataclass(frozen=True)
class Ablation:
    """What is asked: the rows of a study with seeds 0 to `seeds` - 1, and the split that they are judged on."""

    study: str
    base: Recipe
    rows: Rows
    seeds: int
    on_test: bool
    jobs: int | None = None
    retry: bool = False


def train_rows(asked: Ablation, out: Path, reporter: Reporter) -> tuple[dict[str, Any], str, Runs]:
    """Train and judge every row; returns the content of study.json, how many images there were, and the runs."""
    started, study = time.perf_counter(), STUDIES[asked.study]
    rows, data = rows_and_data(asked, reporter)
    recipes = {
        run_name(name, seed): row.with_set({"train.seed": seed}, because="study")
        for name, row in rows.items()
        for seed in range(asked.seeds)
    }
    runs = train_all(recipes, data, out, reporter, asked.jobs, asked.retry)
    judge = Judge(asked.base.train.device, reporter)
    found = [
        {"row": name, "seed": seed, **judged(runs, run_name(name, seed), out, asked.on_test, judge)}
        for name in rows
        for seed in range(asked.seeds)
    ]
    result: dict[str, Any] = {
        "study": asked.study,
        "paper": study.paper,
        "recipe": asked.base.name,
        "data": data.described,
        "epochs": asked.base.train.epochs,
        "seeds": list(range(asked.seeds)),
        "rows": found,
        "summary": [summary(found, name) for name in rows],
        "differences": differences(found, study.reference if study.reference in rows else next(iter(rows))),
        "seconds": time.perf_counter() - started,
        "versions": versions(),
        "commit": commit(),
    }
    judges = f"{len(data.test)} test" if asked.on_test and data.test is not None else f"{len(data.held_out)} held-out"
    return result, f"{len(data.train)} training and {judges} images", runs


def rows_and_data(asked: Ablation, reporter: Reporter) -> tuple[Rows, Data]:
    """The data that rows are judged on, and the rows: held-out images come from train where there is a test split."""
    rows, data = asked.rows, data_of(asked.base)
    if data.described["held_out_from"] == "test" and not asked.on_test:
        # rows are compared here, and nothing is chosen on a test set
        rows = {name: row.with_set({"data.holdout": 0.1}, because="study") for name, row in rows.items()}
        reporter.note(
            "the data have a test split but no val split: 10% of the training images are held out instead "
            "(--on-test judges on the test split)"
        )
        data = data_of(next(iter(rows.values())))
    if asked.on_test and data.test is None:
        source = asked.base.data.source
        raise BadInput(f"--on-test: {source} has no test split; leave it out to judge on held-out images")
    if not asked.on_test:
        check_held_out(data, asked.base)
    return rows, data


def study_title(result: dict[str, Any], images: str) -> str:
    return (
        f"{result['study']} study of {result['recipe']}, {counted(result['epochs'], 'epoch')}, "
        f"seed{'s' if len(result['seeds']) > 1 else ''} {', '.join(map(str, result['seeds']))}, {images}"
    )


def write_study(result: dict[str, Any], title: str, out: Path) -> None:
    """The table and the differences as study.md, and everything as study.json."""
    columns, cells = laid_out(result)
    rows = "\n".join(f"| {' | '.join(row)} |" for row in [columns, ["---"] * len(columns), *cells])
    failed = [
        f"failed, and in no mean: {run_name(row['row'], row['seed'])}: {row['failed']}"
        for row in result["rows"]
        if row["failed"]
    ]
    told = "".join(f"\n- {line}" for line in [*result["differences"], *failed])
    write_text(out / "study.md", f"{title}; {result['seconds']:.0f} s\n\n{rows}\n{told}\n")
    write_text(out / "study.json", json.dumps(jsonable(result), indent=2) + "\n")


def run_name(row: str, seed: int) -> str:
    return f"{row}-seed-{seed}"


def judged(runs: Runs, name: str, out: Path, on_test: bool, judge: Judge) -> dict[str, Any]:
    """What a run gave; one that failed gave no numbers, and why is said."""
    if name in runs.failed:
        failure = runs.failed[name]
        return {**dict.fromkeys(MEASURES), "collapsed": failure.collapsed, "failed": failure.reason}
    return {**measured(runs.trained[name], out / name, on_test, judge), "failed": None}


def measured(run: Trained, folder: Path, on_test: bool, judge: Judge) -> dict[str, Any]:
    """Losses of the last epoch; k-NN, linear accuracy and S_W/S_T as `supancl evaluate` has them, measured once.

    What cannot be measured on these data is None.
    """
    split = "test" if on_test else "held-out"
    found: dict[str, Any] = {"ssl": run.last_epoch("ssl"), "sup": run.last_epoch("sup")}
    found |= {
        key: judge.number(folder, Measurement(protocol, split), field) for key, (protocol, field) in JUDGED.items()
    }
    if isinstance(run.recipe.loss, Align) and has_projector(folder):  # Table 1's variance
        judge.number(folder, Measurement("variance", "train", layer="projector"), "within")
    kept = jsonable({"protocol": "study", "data": run.recipe.data.source, "split": split, **found})
    if kept not in evaluations_of(folder):
        RunFolder(folder).write_evaluation("study", kept)
    return {**{key: kept[key] for key in MEASURES}, "collapsed": run.collapsed}


def summary(found: list[dict[str, Any]], row: str) -> dict[str, Any]:
    mine = [entry for entry in found if entry["row"] == row]
    entry: dict[str, Any] = {"row": row, "n": len(mine)}
    entry |= {key: sum(bool(one[key]) for one in mine) for key in ("collapsed", "failed")}
    for key in MEASURES:
        values = [math.nan if one[key] is None else float(one[key]) for one in mine if not one["failed"]]
        entry[key], entry[f"{key}_sd"] = statistics.fmean(values) if values else math.nan, spread(values)
    return entry


def laid_out(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells: mean +- sd, the verdict, and the average over 11 data sets that the paper has for the row."""
    study = STUDIES[result["study"]]

    # how runs ended: that they failed is a column only where one did
    ends = {"collapsed": "collapse"}
    ends |= {"failed": "failed"} if any(entry["failed"] for entry in result["summary"]) else {}
    columns = [study.title, *(title for title, _ in MEASURES.values()), *ends.values(), f"paper: Avg, {study.paper}"]
    cells = [
        [
            entry["row"],
            *(mean_cell(entry[key], entry[f"{key}_sd"], decimals) for key, (_, decimals) in MEASURES.items()),
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
                f"linear, {row} minus {reference}: cannot be told apart, with {counted(len(seeds), 'seed')} of both"
            )
            continue
        mean, low, high = interval([of[row][seed] - of[reference][seed] for seed in seeds])
        told = "cannot be told apart" if low <= 0 <= high else "better" if mean > 0 else "worse"
        lines.append(
            f"linear, {row} minus {reference}: {mean:+.2f} points (95% interval {low:+.2f} to {high:+.2f}, "
            f"n = {len(seeds)}): {told}"
        )
    return lines
