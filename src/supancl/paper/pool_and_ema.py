"""The collapse ablation, Table 8: target pool x momentum branch, four cells, with the monitor's verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from supancl.config import flattened
from supancl.core.branches import BranchSpec
from supancl.core.methods import COLLAPSE_CELLS, METHODS
from supancl.core.pools import PoolSpec
from supancl.errors import BadInput
from supancl.files import write_json
from supancl.paper.numbers import COLLAPSE
from supancl.paper.study_rows import check_supervised_target
from supancl.recipes import Recipe
from supancl.runs.provenance import commit, versions
from supancl.sweeps.measures import Result, collect_results, count_cell, mean_cells, summarize
from supancl.sweeps.runner import Sweep, check_monitored, open_recipe_data
from supancl.sweeps.runs import Runs, TrainedRun

MEASURES = {
    # key of the monitor's last check -> (title, decimals)
    "knn": ("k-NN %", 2),
    "effective_rank": ("effective rank", 1),
    "std": ("std", 3),
}


def check_base(base: Recipe) -> None:
    """Refuse a recipe that has no four cells, or whose runs would stop before their verdict."""
    check_supervised_target(base)
    if base.train.on_collapse == "stop":
        raise BadInput(
            "train.on_collapse = 'stop' would end a run when it collapses, before its k-NN is measured; "
            "leave it at warn"
        )
    check_monitored(base)


def train_cells(base: Recipe, sweep: Sweep) -> tuple[Result, Runs]:
    """Train the four cells with every seed and write collapse.json; returns its content and the runs."""
    rows = {cell_name(key): cell_recipe(base, *key) for key in COLLAPSE_CELLS}
    labels = {cell_name(key): {"pool": key[0], "ema": key[1]} for key in COLLAPSE_CELLS}
    runs = sweep.train(sweep.with_seeds(rows, "collapse study"), open_recipe_data(base))
    results = collect_results(sweep, runs, labels, MEASURES, last_check)
    result: Result = {
        "recipe": base.name,
        "alpha": flattened(base)["loss.alpha"],
        "epochs": base.train.epochs,
        # a run that failed has no verdict
        "rows": [row | {"collapsed": None} if row["failed"] else row for row in results],
        "paper": {cell_name(key): values for key, values in COLLAPSE.items()},
        "versions": versions(),
        "commit": commit(),
    }
    write_json(sweep.out / "collapse.json", result)
    return result, runs


def last_check(run: TrainedRun, folder: Path) -> dict[str, float | None]:
    """What the monitor measured at the end of a run."""
    check = [row for row in run.metrics if row["kind"] == "monitor"][-1]
    return {key: check.get(key) for key in MEASURES}


def cell_recipe(base: Recipe, pool: bool, ema: bool) -> Recipe:
    """The recipe with or without a pool, with or without a momentum branch; everything else is equal."""
    row = METHODS[COLLAPSE_CELLS[pool, ema]]
    target_pool = base.pool if base.pool.kind != "none" else row.pool
    momentum_branch = base.branches if base.branches.target == "momentum" else BranchSpec(target="momentum")
    recipe = replace(
        base,
        method=COLLAPSE_CELLS[pool, ema],
        pool=target_pool if pool else PoolSpec(),
        branches=momentum_branch if ema else BranchSpec(target="stop-gradient"),
    )
    if not pool and getattr(base.loss, "samples", None) is not None:  # without a pool there are no M targets to draw
        recipe = recipe.with_set({"loss.samples": None}, because="collapse study")
    return recipe


def table_cells(rows: list[Result]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells; there is a column for failed runs only if any failed."""
    failed = any(row["failed"] for row in rows)
    titles = (title for title, _ in MEASURES.values())
    columns = ["pool", "EMA", "collapse", *titles, "paper: collapse", "paper: k-NN %", *["failed"] * failed]
    return columns, [table_row(rows, key) for key in COLLAPSE_CELLS]


def table_row(rows: list[Result], key: tuple[bool, bool]) -> list[str]:
    """One cell of the ablation as a table row, with the paper's result."""
    entry = summarize(rows, {"pool": key[0], "ema": key[1]}, MEASURES, ("collapsed", "failed"))
    finished = entry["n"] - entry["failed"]
    verdict = "-" if not finished else "yes" if entry["collapsed"] else "no"
    if 0 < entry["collapsed"] < finished:
        verdict = f"{entry['collapsed']} of {finished} seeds"
    collapsed, knn = COLLAPSE[key]
    failed_cell = [count_cell(entry["failed"], entry["n"])] * any(row["failed"] for row in rows)
    ticks = ["yes" if on else "no" for on in key]
    return [*ticks, verdict, *mean_cells(entry, MEASURES), "yes" if collapsed else "no", f"{knn:.2f}", *failed_cell]


def cell_name(key: tuple[bool, bool]) -> str:
    """`pool+ema`, `pool`, `ema` or `neither`."""
    return "+".join(name for name, on in zip(("pool", "ema"), key, strict=True) if on) or "neither"
