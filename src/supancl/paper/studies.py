"""The ablations: rows that differ from a recipe in one thing alone, trained on your data and measured alike.

Table 7 and App. F (`supancl paper study`), and Table 8: target pool x momentum branch (`supancl paper collapse`). To
choose an alpha, use `supancl compare`; the study `alpha` only trains the rows of Tables 1, 3 and F.1.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from supancl.core.branches import BranchSpec
from supancl.core.losses import Align, Contrast
from supancl.core.methods import METHODS
from supancl.core.pools import PoolSpec
from supancl.errors import BadInput
from supancl.evaluation import Variance
from supancl.paper.layouts import LAYOUTS, VARIED, row_by_cell
from supancl.probes.knn import DEFAULT_K
from supancl.recipes import Recipe
from supancl.runs.folder import RunFolder
from supancl.sweeps import Rows, Sweep
from supancl.sweeps.compare import compare_rows, write_comparison
from supancl.sweeps.runner import (
    Measurement,
    Result,
    RunEvaluator,
    collect_results,
    open_held_out,
    open_recipe_data,
    summarize,
    train_runs,
)

MEASURES = ("knn", "linear", "ratio", "ssl", "sup")
LAST_CHECK = ("knn", "effective_rank", "std")  # of the monitor


# --- which recipes a study can vary -----------------------------------------------------------------------------------


def check_align(base: Recipe, pools: tuple[str, ...] = (), supervised: bool = True) -> None:
    """Refuse a recipe that has no supervised target, or no pool of these kinds."""
    loss = base.loss
    fits = isinstance(loss, Align) and base.heads.predictor is not None and (loss.supervised or not supervised)
    if not fits or (pools and base.pool.kind not in pools):
        kinds = f" and pool.kind {' or '.join(pools)}" * bool(pools)
        raise BadInput(f"{base.name}: this study varies SupSiam or SupBYOL with alpha < 1{kinds}; use such a recipe")


def check_supcon(base: Recipe) -> None:
    loss = base.loss
    is_supcon = isinstance(loss, Contrast) and loss.supervised and loss.against == "both-views"
    if not is_supcon or base.pool.kind != "none":
        raise BadInput(f"{base.name} is not a SupCon recipe without a pool; use one, such as cifar100.supcon")


def check_cells(base: Recipe) -> None:
    check_align(base)
    if base.train.on_collapse == "stop":
        raise BadInput("train.on_collapse = 'stop' would end a run before its k-NN is measured; leave it at warn")


class Study(NamedTuple):
    """One ablation; its rows are those of `VARIED`, or the four cells of Table 8."""

    table: str  # the paper's table
    reference: str  # the others are compared with this row
    check: Callable[[Recipe], None] = lambda base: None  # BadInput if the study cannot vary this recipe


STUDIES: dict[str, Study] = {
    "pool": Study("7", "queue", check_align),
    "positives": Study("F.2", "M-all", lambda base: check_align(base, ("queue", "class-queues"))),
    # the learning rate scales with the batch automatically: `optimizer.lr` belongs to `reference_batch`
    "batch": Study("F.3", "batch-128"),
    "memory": Study("F.3", "batch-128", check_supcon),
    "alpha": Study("F.1", "alpha-0.5", lambda base: check_align(base, ("queue", "class-queues", "prototypes"), False)),
    "collapse": Study("8", "pool", check_cells),
}


# --- rows -------------------------------------------------------------------------------------------------------------

# (pool, EMA) -> method: the four cells of Table 8
COLLAPSE_CELLS: dict[tuple[bool, bool], str] = {
    (False, False): "supsiam-nopool", (True, False): "supsiam",
    (False, True): "supbyol-nopool", (True, True): "supbyol",
}  # fmt: skip


def study_rows(name: str, base: Recipe) -> Rows:
    """The rows of a study by name."""
    if name == "collapse":
        cells = [cell_recipe(base, *key) for key in COLLAPSE_CELLS]
        return {row_by_cell(cell): cell for cell in cells}
    return {row: base.with_set(fields, because="study") for row, fields in VARIED[name].items()}


def varied_fields(name: str) -> dict[str, str]:
    """The fields that a study sets, and what to use instead of an override."""
    return {field: "rows" for fields in VARIED.get(name, {}).values() for field in fields if field != "pool.size"}


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


def papers_number(study: Study, recipe: Recipe) -> str:
    """The paper's average over 11 data sets, or in Table 8 collapse and k-NN; empty where it has no such row."""
    layout = LAYOUTS[study.table]
    numbers = layout.paper.numbers("", layout.row_of(recipe) or "")
    if "collapsed" in numbers:
        return f"{'yes' if numbers['collapsed'][0] else 'no'}, {numbers['knn'][0]:.2f}"
    return f"{numbers['average'][0]:.2f}" if numbers else ""


# --- a study: trained, measured, compared -----------------------------------------------------------------------------


def train_rows(name: str, base: Recipe, rows: Rows, sweep: Sweep, on_test: bool) -> Result:
    """Train, measure and compare the rows of a study; returns the content of its results.json."""
    started, study, split = time.perf_counter(), STUDIES[name], "test" if on_test else "held-out"
    is_collapse = name == "collapse"  # Table 8: nothing is chosen, and the monitor's last check is the measurement
    labels = {row: {"row": row, "paper": papers_number(study, recipe)} for row, recipe in rows.items()}
    if on_test or is_collapse:
        data = open_recipe_data(base)
        if on_test and data.test is None:
            raise BadInput(f"on_test: {base.data.source} has no test split; omit on_test")
    else:
        with_holdout, data = open_held_out(base, "study")
        if with_holdout is not base:
            holdout = {"data.holdout": with_holdout.data.holdout}
            rows = {row: recipe.with_set(holdout, because="study") for row, recipe in rows.items()}
    outcomes = train_runs(sweep, sweep.with_seeds(rows, "collapse study" if is_collapse else "study"), data)
    evaluator, measures = RunEvaluator(base.train.device), LAST_CHECK if is_collapse else MEASURES
    measure = last_check if is_collapse else partial(measure_row, evaluator=evaluator, split=split)
    results = collect_results(sweep, outcomes, labels, measures, measure)
    order = sorted(rows, key=lambda row: row != study.reference)  # the others are compared with the first
    images = data.test if on_test and data.test is not None else data.held_out
    result = {
        "command": name if is_collapse else f"study {name}",
        "recipe": base.name,
        "data": data.summary,
        "split": split,
        "images": len(images),
        "epochs": [base.train.epochs],
        "rows": results,
        "summary": [summarize(results, label, measures) for label in labels.values()],
        **compare_rows(results, order, "knn" if is_collapse else "linear", "first"),
        "started": started,
    }
    papers = f"paper: {'collapse, k-NN' if is_collapse else 'Avg'}, Table {study.table}"
    ends = {"collapsed": "runs collapsed"} if is_collapse else {}
    return write_comparison(sweep, outcomes, result, {"row": LAYOUTS[study.table].row_title, "paper": papers, **ends})


def last_check(folder: Path) -> dict[str, float | None]:
    """What the monitor measured last."""
    check = [row for row in RunFolder(folder).metrics() if row["kind"] == "monitor"][-1]
    return {key: check.get(key) for key in LAST_CHECK}


def measure_row(folder: Path, evaluator: RunEvaluator, split: str) -> dict[str, float | None]:
    """Measure a run; its results are saved in its folder."""
    trained, _ = RunFolder(folder).read_recipe()
    measured = evaluator.measure(folder, ("knn", "linear", "ratio"), split, DEFAULT_K)
    if isinstance(trained.loss, Align) and RunFolder(folder).projector.is_file():  # Table 1's variance
        evaluator.rows(folder, Measurement(Variance(split="train"), "projector"))
    return {key: measured[key] for key in MEASURES}
