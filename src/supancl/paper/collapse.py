"""The collapse ablation, Table 8: target pool x momentum branch, four cells, with the monitor's verdict."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from supancl.config import flattened
from supancl.core.branches import BranchSpec
from supancl.core.methods import COLLAPSE_CELLS, METHODS
from supancl.core.pools import PoolSpec
from supancl.files import write_text
from supancl.paper.numbers import COLLAPSE
from supancl.recipes import Recipe
from supancl.reporter import Reporter
from supancl.sweeps.runner import (
    Runs,
    data_of,
    mean_cell,
    share_cell,
    spread,
    train_all,
)
from supancl.weights.run_folder import commit, jsonable, versions

MEASURES = {"knn": 2, "effective_rank": 1, "std": 3}  # of the last check -> decimals


def train_cells(
    base: Recipe, seeds: int, out: Path, reporter: Reporter, jobs: int | None = None, retry: bool = False
) -> tuple[dict[str, Any], Runs]:
    """Train the four cells with seeds 0 to `seeds` - 1 and write collapse.json; returns its content and the runs."""
    cells = {key: cell(base, *key) for key in COLLAPSE_CELLS}
    recipes = {
        run_name(key, seed): chosen.with_set({"train.seed": seed}, because="collapse study")
        for key, chosen in cells.items()
        for seed in range(seeds)
    }
    runs = train_all(recipes, data_of(base), out, reporter, jobs, retry)
    result: dict[str, Any] = {
        "recipe": base.name,
        "alpha": flattened(base)["loss.alpha"],
        "epochs": base.train.epochs,
        "rows": [judged(key, seed, runs) for key in cells for seed in range(seeds)],
        "paper": {cell_name(key): values for key, values in COLLAPSE.items()},
        "versions": versions(),
        "commit": commit(),
    }
    write_text(out / "collapse.json", json.dumps(jsonable(result), indent=2) + "\n")
    return result, runs


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
