"""The collapse ablation, Table 8: target pool x momentum branch, four cells, with the monitor's verdict."""

from __future__ import annotations

import argparse
import json
import math
import statistics
from dataclasses import replace
from typing import Any

from rich.console import Console

from supancl.cli.console import table
from supancl.cli.flags import add_recipe_flags, recipe_from_flags
from supancl.core.branches import BranchSpec
from supancl.core.losses import Align
from supancl.core.methods import COLLAPSE_CELLS, METHODS
from supancl.core.pools import PoolSpec
from supancl.distributed import by_one
from supancl.errors import BadInput, counted
from supancl.files import write_text
from supancl.paper.numbers import COLLAPSE
from supancl.recipes import Recipe
from supancl.sweeps.runner import (
    Runs,
    RunsFailed,
    add_run_flags,
    check_jobs,
    check_overrides,
    data_of,
    mean_cell,
    place_of,
    share_cell,
    spread,
    train_all,
)
from supancl.weights.run_folder import commit, jsonable, versions

MEASURES = {"knn": 2, "effective_rank": 1, "std": 3}  # of the last check -> decimals


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", help="a SupSiam or SupBYOL recipe; all four cells share its settings")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="seeds 0 to N - 1 (default 1)")
    add_run_flags(parser)
    parser.add_argument("--out", help="folder (default: runs/collapse-NNN); the same one again goes on")
    add_recipe_flags(parser)


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    by_one("a study")
    base = recipe_from_flags(args.recipe, args)
    if not isinstance(base.loss, Align) or base.heads.predictor is None:
        raise BadInput(f"{base.name} is not a SupSiam or SupBYOL recipe")
    if not base.loss.supervised:
        raise BadInput(f"{base.name} has alpha = 1, so a pool has nothing to do; take supsiam or supbyol")
    if args.seeds < 1:
        raise BadInput(f"--seeds {args.seeds}: must be at least 1")
    check_jobs(args.jobs)
    check_overrides(args.overrides, {"train.seed": "--seeds N"})
    if base.train.on_collapse == "stop":
        raise BadInput(
            "train.on_collapse = 'stop' would end a cell when it collapses, before there is a k-NN to set "
            "beside the paper's; leave it at warn"
        )
    if base.train.monitor_every == 0:
        raise BadInput("train.monitor_every = 0 turns off the monitor, whose verdict this study is about")
    out = place_of(args.out, "collapse", base)
    cells = {key: cell(base, *key) for key in COLLAPSE_CELLS}
    recipes = {
        run_name(key, seed): chosen.with_set({"train.seed": seed}, because="collapse study")
        for key, chosen in cells.items()
        for seed in range(args.seeds)
    }
    runs = train_all(recipes, data_of(base), out, console, args.jobs, args.retry)
    rows = [judged(key, seed, runs) for key in cells for seed in range(args.seeds)]
    result: dict[str, Any] = {
        "recipe": base.name,
        "alpha": base.loss.alpha,
        "epochs": base.train.epochs,
        "rows": rows,
        "paper": {cell_name(key): values for key, values in COLLAPSE.items()},
        "versions": versions(),
        "commit": commit(),
    }
    columns = ["pool", "EMA", "collapse", "k-NN %", "effective rank", "std", "paper: collapse", "paper: k-NN %"]
    columns += ["failed"] if runs.failed else []
    epochs, seeds = counted(base.train.epochs, "epoch"), counted(args.seeds, "seed")
    title = f"{base.name}, {epochs}, alpha {base.loss.alpha:g}, {seeds}"
    console.print(table(title, columns, [line(rows, key) for key in cells]))
    write_text(out / "collapse.json", json.dumps(jsonable(result), indent=2) + "\n")
    console.print(f"runs and collapse.json in {out}")
    if runs.failed:
        raise RunsFailed(runs.failed, result, out)
    return result


def cell(base: Recipe, pool: bool, ema: bool) -> Recipe:
    """The recipe with or without a pool, with or without a momentum branch; what is left means the same in each."""
    row = METHODS[COLLAPSE_CELLS[pool, ema]]
    kept = base.pool if base.pool.kind != "none" else row.pool
    momentum = base.branches if base.branches.target == "momentum" else BranchSpec(target="momentum")
    built = replace(
        base,
        method=COLLAPSE_CELLS[pool, ema],
        pool=kept if pool else PoolSpec(),
        branches=momentum if ema else BranchSpec(target="stop-gradient"),
    )
    if not pool and getattr(base.loss, "samples", None) is not None:  # of a batch no M targets can be drawn
        built = built.with_set({"loss.samples": None}, because="collapse study")
    return built


def judged(key: tuple[bool, bool], seed: int, runs: Runs) -> dict[str, Any]:
    """The verdict and the last check; a run that failed has neither, and why is said."""
    name = run_name(key, seed)
    row: dict[str, Any] = {"pool": key[0], "ema": key[1], "seed": seed, "failed": runs.reason(name)}
    if name in runs.failed:
        return {**row, **dict.fromkeys(MEASURES, math.nan), "collapsed": None}
    checked = [one for one in runs.trained[name].metrics if one["kind"] == "monitor"][-1]
    found = {measure: math.nan if checked.get(measure) is None else checked[measure] for measure in MEASURES}
    return {**row, **found, "collapsed": runs.trained[name].collapsed}


def line(rows: list[dict[str, Any]], key: tuple[bool, bool]) -> list[str]:
    """A cell of the ablation; `failed` is told at its end where any run of the study did."""
    mine = [row for row in rows if (row["pool"], row["ema"]) == key]
    chosen = [row for row in mine if not row["failed"]]
    collapsed = sum(row["collapsed"] for row in chosen)
    verdict = "-" if not chosen else "no" if not collapsed else "yes"
    if 0 < collapsed < len(chosen):
        verdict = f"{collapsed} of {len(chosen)} seeds"

    def mean(name: str) -> str:
        values = [row[name] for row in chosen]
        return mean_cell(statistics.fmean(values) if values else math.nan, spread(values), MEASURES[name])

    ticks = ["yes" if on else "no" for on in key]
    paper = COLLAPSE[key]
    ends = [share_cell(len(mine) - len(chosen), len(mine))] * any(row["failed"] for row in rows)
    return [*ticks, verdict, *map(mean, MEASURES), "yes" if paper[0] else "no", f"{paper[1]:.2f}", *ends]


def run_name(key: tuple[bool, bool], seed: int) -> str:
    return f"{cell_name(key)}-seed-{seed}"


def cell_name(key: tuple[bool, bool]) -> str:
    """`pool+ema`, `pool`, `ema` or `neither`."""
    return "+".join(_parts(key)) or "neither"


def _parts(key: tuple[bool, bool]) -> list[str]:
    return [name for name, on in zip(("pool", "ema"), key, strict=True) if on]
