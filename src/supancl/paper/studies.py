"""The ablations: rows that differ from a recipe in one thing alone, trained on your data and measured alike.

Table 7 and App. F (`supancl paper study`), and Table 8: target pool x momentum branch (`supancl paper collapse`). To
choose an alpha, use `supancl compare`; the study `alpha` only trains the rows of Tables 1, 3 and F.1.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from supancl.config import flattened
from supancl.core.branches import BranchSpec
from supancl.core.losses import Align, Contrast
from supancl.core.methods import METHODS
from supancl.core.pools import PoolSpec
from supancl.errors import BadInput
from supancl.files import jsonable, write_json, write_text
from supancl.paper.numbers import ALPHA, BATCH, COLLAPSE, POOL_DESIGN, POSITIVES
from supancl.probes.knn import DEFAULT_K
from supancl.recipes import Recipe
from supancl.reports.tables import Table, mean_text, plain_table, to_markdown
from supancl.runs.folder import RunFolder
from supancl.runs.provenance import commit, versions
from supancl.sweeps import Sweep
from supancl.sweeps.compare import compare_rows
from supancl.sweeps.runner import (
    Measurement,
    Outcomes,
    Result,
    RunEvaluator,
    check_monitored,
    collect_results,
    open_held_out,
    open_recipe_data,
    summarize,
    train_runs,
)
from supancl.training.run import read_results

BATCHES = (128, 256)  # Table F.3
ENDS = ("collapsed", "failed")
Rows = dict[str, Recipe]
Fields = Mapping[str, Mapping[str, Any]]  # row -> fields that differ from the base
MEASURES = {
    # key -> (title, decimals)
    "knn": ("k-NN %", 2),
    "linear": ("linear %", 2),
    "ratio": ("S_W/S_T", 3),
    "ssl": ("l_ssl", 3),
    "sup": ("l_sup", 3),
}
LAST_CHECK = {
    # key of the monitor's last check -> (title, decimals)
    "knn": ("k-NN %", 2),
    "effective_rank": ("effective rank", 1),
    "std": ("std", 3),
}


@dataclass(frozen=True)
class Study:
    """One ablation: its rows, which recipes it can vary, what is measured, and the paper's numbers."""

    title: str  # of the column with the rows' names
    table: str  # the paper's table
    reference: str  # the others are compared with this row
    varies: Mapping[str, str]  # field -> the flag to use instead of an override
    rows: Callable[[Recipe], Rows]
    check: Callable[[Recipe], None]  # BadInput if the study cannot vary this recipe
    paper: Callable[[str, str], str]  # (row, recipe's name) -> the paper's number in words
    measures: Mapping[str, tuple[str, int]] = field(default_factory=lambda: MEASURES)  # key -> title, decimals


# (pool, EMA) -> method: the four cells of Table 8
COLLAPSE_CELLS: dict[tuple[bool, bool], str] = {
    (False, False): "supsiam-nopool", (True, False): "supsiam",
    (False, True): "supbyol-nopool", (True, True): "supbyol",
}  # fmt: skip


def varied(fields: Callable[[Recipe], Fields]) -> Callable[[Recipe], Rows]:
    """The recipe with the fields of each row."""
    return lambda base: {name: base.with_set(values, because="study") for name, values in fields(base).items()}


def average(numbers: Mapping[str, tuple[float, ...]], key_of: Callable[[str, str], str]) -> Callable[[str, str], str]:
    """The paper's average over 11 data sets; `key_of` maps a row and the recipe's name to the row of `numbers`."""

    def text(row: str, recipe: str) -> str:
        values = numbers.get(key_of(row, recipe))
        return "" if values is None else f"{values[0]:.2f}"

    return text


# --- rows -------------------------------------------------------------------------------------------------------------


def pool_fields(base: Recipe) -> Fields:
    """The sizes are targets per class in Table 7."""
    class_queues = {f"class-queues-{size}": {"pool.kind": "class-queues", "pool.size": size} for size in (80, 20, 5, 1)}
    # prototypes and none have no M targets to draw
    all_samples = {} if flattened(base).get("loss.samples") is None else {"loss.samples": None}
    without = {kind: {"pool.kind": kind, **all_samples} for kind in ("prototypes", "none")}
    return {"queue": {"pool.kind": "queue"}, **class_queues, **without}


def memory_fields(base: Recipe) -> Fields:
    """Each batch size without and with a memory bank: the pool of Table F.3's rows marked *."""
    bank = {"pool.kind": "queue", "pool.size": base.pool.size, "loss.against": "both-views+pool"}
    fields: dict[str, Mapping[str, Any]] = {}
    for size in BATCHES:
        batch_size = {"train.batch_size": size}
        fields |= {f"batch-{size}": batch_size, f"batch-{size}-memory": {**batch_size, **bank}}
    return fields


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


def cell_name(key: tuple[bool, bool]) -> str:
    """`pool+ema`, `pool`, `ema` or `neither`."""
    return "+".join(name for name, on in zip(("pool", "ema"), key, strict=True) if on) or "neither"


def cell_rows(base: Recipe) -> Rows:
    """The four cells of Table 8."""
    return {cell_name(key): cell_recipe(base, *key) for key in COLLAPSE_CELLS}


PAPERS_CELLS = {
    cell_name(key): f"{'yes' if collapsed else 'no'}, {knn:.2f}" for key, (collapsed, knn) in COLLAPSE.items()
}


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
    """Refuse a recipe that has no four cells, or whose runs would stop before their verdict."""
    check_align(base)
    if base.train.on_collapse == "stop":
        raise BadInput("train.on_collapse = 'stop' would end a run before its k-NN is measured; leave it at warn")
    check_monitored(base)


def _batch_key(row: str, recipe: str) -> str:
    """The paper has these rows for SupCon, SupCon with a memory bank and SupSiam."""
    _, size, *memory = row.split("-")
    return f"{size} {recipe.partition('.')[2].partition('-')[0]}{'-pool' if memory else ''}"


STUDIES: dict[str, Study] = {
    "pool": Study(
        "pool",
        "7",
        "queue",
        {"pool.kind": "rows"},
        varied(pool_fields),
        check_align,
        average(POOL_DESIGN, lambda row, recipe: row.replace("queues-", "queues ")),
    ),
    "positives": Study(
        "positives",
        "F.2",
        "M-all",
        {"loss.samples": "rows"},
        varied(lambda base: {f"M-{samples or 'all'}": {"loss.samples": samples} for samples in (1, 4, 16, None)}),
        partial(check_align, pools=("queue", "class-queues")),
        average(POSITIVES, lambda row, recipe: row.removeprefix("M-")),
    ),
    "batch": Study(
        "batch",
        "F.3",
        "batch-128",
        {"train.batch_size": "rows"},
        # the learning rate scales with the batch automatically: `optimizer.lr` belongs to `reference_batch`
        varied(lambda base: {f"batch-{size}": {"train.batch_size": size} for size in BATCHES}),
        lambda base: None,
        average(BATCH, _batch_key),
    ),
    "memory": Study(
        "batch, memory bank",
        "F.3",
        "batch-128",
        {"train.batch_size": "rows", "loss.against": "rows", "pool.kind": "rows"},
        varied(memory_fields),
        check_supcon,
        average(BATCH, _batch_key),
    ),
    "alpha": Study(
        "alpha",
        "F.1",
        "alpha-0.5",
        {"loss.alpha": "rows"},
        varied(lambda base: {f"alpha-{alpha:g}": {"loss.alpha": alpha} for alpha in (0.0, 0.2, 0.5, 0.8, 1.0)}),
        partial(check_align, pools=("queue", "class-queues", "prototypes"), supervised=False),
        average(ALPHA, lambda row, recipe: row.removeprefix("alpha-")),
    ),
    "collapse": Study(
        "pool, EMA",
        "8",
        "pool",
        {},
        cell_rows,
        check_cells,
        lambda row, recipe: PAPERS_CELLS[row],
        LAST_CHECK,
    ),
}


# --- a study: trained, measured, compared -----------------------------------------------------------------------------


def train_rows(name: str, base: Recipe, rows: Rows, sweep: Sweep, on_test: bool) -> tuple[Result, Table, Outcomes]:
    """Train and measure the rows of a study; returns the content of its .json, its table, and how the runs ended."""
    started, study, split = time.perf_counter(), STUDIES[name], "test" if on_test else "held-out"
    is_collapse = name == "collapse"  # Table 8: nothing is chosen, and the monitor's last check is the measurement
    if on_test or is_collapse:
        data = open_recipe_data(base)
        if on_test and data.test is None:
            raise BadInput(f"on_test: {base.data.source} has no test split; omit on_test")
    else:
        with_holdout, data = open_held_out(base, "study")
        if with_holdout is not base:
            holdout = {"data.holdout": with_holdout.data.holdout}
            rows = {row: recipe.with_set(holdout, because="study") for row, recipe in rows.items()}
    because, papers = ("collapse study", "collapse, k-NN") if is_collapse else ("study", "Avg")
    outcomes, evaluator = train_runs(sweep, sweep.with_seeds(rows, because), data), RunEvaluator(base.train.device)

    def measure(folder: Path) -> dict[str, float | None]:
        if not is_collapse:
            return measure_row(folder, evaluator, split)
        check = [row for row in RunFolder(folder).metrics() if row["kind"] == "monitor"][-1]
        return {key: check.get(key) for key in LAST_CHECK}

    cells = {cell_name(key): {"pool": key[0], "ema": key[1]} for key in COLLAPSE_CELLS}
    labels = {row: {"row": row, **(cells[row] if is_collapse else {})} for row in rows}
    results = collect_results(sweep, outcomes, labels, study.measures, measure)
    order = sorted(rows, key=lambda row: row != study.reference)  # the others are compared with the first
    compares = len(rows) > 1 and not is_collapse
    result: Result = {
        "study": name,
        "paper": f"Table {study.table}",
        "recipe": base.name,
        "data": data.summary,
        "epochs": base.train.epochs,
        "seeds": list(range(sweep.seeds)),
        # a run that failed has no verdict
        "rows": [row | {"collapsed": None} if row["failed"] and is_collapse else row for row in results],
        "summary": [summarize(results, {"row": row}, study.measures) for row in rows],
        "differences": compare_rows(results, order, "linear", "first")["findings"] if compares else [],
        "seconds": time.perf_counter() - started,
        "versions": versions(),
        "commit": commit(),
    }
    lines = [
        [
            entry["row"],
            *(mean_text(entry[key], entry[f"{key}_half_interval"], n) for key, (_, n) in study.measures.items()),
            *(f"{entry[end]} of {entry['n']}" for end in ENDS),
            study.paper(entry["row"], base.name),
        ]
        for entry in result["summary"]
    ]
    images = data.test if on_test and data.test is not None else data.held_out
    title = f"{name} study of {base.name}, epochs: {base.train.epochs}, seeds: {sweep.seeds}"
    title += f", images: {len(data.train)} training, {len(images)} {split}"
    columns = [
        study.title,
        *(title for title, _ in study.measures.values()),
        *ENDS,
        f"paper: {papers}, Table {study.table}",
    ]
    table = plain_table(title, columns, lines)
    remarks = "".join(f"\n- {line}" for line in result["differences"])
    file = sweep.out / ("collapse.json" if is_collapse else "study.json")
    write_text(file.with_suffix(".md"), f"{title}\n\n{to_markdown(replace(table, caption=''))}{remarks}\n")
    write_json(file, result)
    return result, table, outcomes


def measure_row(folder: Path, evaluator: RunEvaluator, split: str) -> dict[str, float | None]:
    """Measure a run and save the result as evaluate/study.json in its folder."""
    trained, _ = RunFolder(folder).read_recipe()
    measured = evaluator.measure(folder, ("knn", "linear", "ratio"), split, DEFAULT_K)
    if isinstance(trained.loss, Align) and RunFolder(folder).projector.is_file():  # Table 1's variance
        evaluator.rows(folder, Measurement("variance", "train", layer="projector"))
    content = jsonable({"protocol": "study", "data": trained.data.source, "split": split, **measured})
    if read_results(folder).get("study") != content:
        RunFolder(folder).write_evaluation("study", content)
    return {key: content[key] for key in MEASURES}
