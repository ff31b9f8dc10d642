"""The ablations: the rows of Table 7 and App. F trained on your data, judged alike, and set side by side.

`supancl alpha` is the study that recommends an alpha; `study alpha` only trains the rows of Tables 1, 3 and F.1.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from supancl.cli.console import Terminal, table
from supancl.cli.flags import add_recipe_flags, recipe_from_flags
from supancl.core.losses import Align
from supancl.distributed import by_one
from supancl.errors import BadInput, counted, nearest
from supancl.files import write_text
from supancl.paper.study_rows import STUDIES, Study
from supancl.recipes import Recipe
from supancl.sweeps.measures import JUDGED, Judge, Measurement, evaluations_of, has_projector
from supancl.sweeps.runner import (
    Runs,
    RunsFailed,
    Trained,
    add_run_flags,
    check_held_out,
    check_jobs,
    check_overrides,
    data_of,
    interval,
    mean_cell,
    place_of,
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


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        choices=tuple(STUDIES),
        metavar="|".join(STUDIES),
        help="; ".join(f"{name}: {study.help}" for name, study in STUDIES.items()),
    )
    parser.add_argument("recipe", help="a recipe; all rows share its settings but for what the study varies")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="seeds 0 to N - 1 (default 1)")
    parser.add_argument("--rows", metavar="A,B", help="only these rows (default: all of the study's)")
    add_run_flags(parser)
    parser.add_argument(
        "--on-test",
        action="store_true",
        help="judge on the test split, to report and not to choose by (default: held-out images)",
    )
    parser.add_argument("--out", help="folder (default: runs/study-WHAT-NNN); the same one again goes on")
    add_recipe_flags(parser)


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    by_one("a study")
    study, base = STUDIES[args.what], recipe_from_flags(args.recipe, args)
    check(study, base, args)
    rows = chosen_rows(study, base, args)
    started = time.perf_counter()
    out = place_of(args.out, f"study-{args.what}", base)
    data = data_of(base)
    if data.described["held_out_from"] == "test" and not args.on_test:
        # rows are compared here, and nothing is chosen on a test set
        rows = {name: row.with_set({"data.holdout": 0.1}, because="study") for name, row in rows.items()}
        console.print(
            "the data have a test split but no val split: 10% of the training images are held out instead "
            "(--on-test judges on the test split)"
        )
        data = data_of(next(iter(rows.values())))
    if args.on_test and data.test is None:
        raise BadInput(f"--on-test: {base.data.source} has no test split; leave it out to judge on held-out images")
    if not args.on_test:
        check_held_out(data, base)
    recipes = {
        run_name(name, seed): row.with_set({"train.seed": seed}, because="study")
        for name, row in rows.items()
        for seed in range(args.seeds)
    }
    runs = train_all(recipes, data, out, console, args.jobs, args.retry)
    judge = Judge(base.train.device, Terminal(console))
    found = [
        {"row": name, "seed": seed, **judged(runs, run_name(name, seed), out, args.on_test, judge)}
        for name in rows
        for seed in range(args.seeds)
    ]
    result: dict[str, Any] = {
        "study": args.what,
        "paper": study.paper,
        "recipe": base.name,
        "data": data.described,
        "epochs": base.train.epochs,
        "seeds": list(range(args.seeds)),
        "rows": found,
        "summary": [summary(found, name) for name in rows],
        "differences": differences(found, study.reference if study.reference in rows else next(iter(rows))),
        "seconds": time.perf_counter() - started,
        "versions": versions(),
        "commit": commit(),
    }
    judges = f"{len(data.test)} test" if args.on_test and data.test is not None else f"{len(data.held_out)} held-out"
    show(result, f"{len(data.train)} training and {judges} images", out, console)
    if runs.failed:
        raise RunsFailed(runs.failed, result, out)
    return result


def show(result: dict[str, Any], images: str, out: Path, console: Console) -> None:
    """The table and the differences: on the screen, as study.md, and with everything else as study.json."""
    study = STUDIES[result["study"]]
    title = (
        f"{result['study']} study of {result['recipe']}, {counted(result['epochs'], 'epoch')}, "
        f"seed{'s' if len(result['seeds']) > 1 else ''} {', '.join(map(str, result['seeds']))}, {images}"
    )
    columns, cells = laid_out(result)
    console.print(table(title, columns, cells))
    for line in result["differences"]:
        console.print(line)
    rows = "\n".join(f"| {' | '.join(row)} |" for row in [columns, ["---"] * len(columns), *cells])
    failed = [
        f"failed, and in no mean: {run_name(row['row'], row['seed'])}: {row['failed']}"
        for row in result["rows"]
        if row["failed"]
    ]
    told = "".join(f"\n- {line}" for line in [*result["differences"], *failed])
    write_text(out / "study.md", f"{title}; {result['seconds']:.0f} s\n\n{rows}\n{told}\n")
    write_text(out / "study.json", json.dumps(jsonable(result), indent=2) + "\n")
    if result["study"] == "alpha":
        console.print(f"to choose an alpha for your data: supancl alpha {result['recipe']}")
    console.print(f"runs, study.json and study.md in {out}; the paper's table: supancl tables {study.table} {out}")


def check(study: Study, base: Recipe, args: argparse.Namespace) -> None:
    reason = study.refuses(base)
    if reason is not None:
        raise BadInput(reason)
    if args.seeds < 1:
        raise BadInput(f"--seeds {args.seeds}: must be at least 1")
    check_jobs(args.jobs)
    check_overrides(args.overrides, {**study.varies, "train.seed": "--seeds N"})
    if base.train.monitor_every == 0:
        raise BadInput("train.monitor_every = 0: a study tells finished runs by their last check; leave it at 1")


def chosen_rows(study: Study, base: Recipe, args: argparse.Namespace) -> dict[str, Recipe]:
    rows = study.rows(base)
    if args.rows is None:
        return rows
    names = [name.strip() for name in args.rows.split(",")]
    for name in names:
        if name not in rows:
            raise BadInput(f"--rows {args.rows}: no row {name!r} in this study{nearest(name, rows)}")
    return {name: row for name, row in rows.items() if name in names}


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
