"""What each ablation of the paper varies: rows are recipes that differ from the base in nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from supancl.config import flattened
from supancl.core.losses import Align, Contrast
from supancl.errors import BadInput
from supancl.paper.numbers import ALPHA, BATCH, POOL_DESIGN, POSITIVES
from supancl.recipes import Recipe

CLASS_QUEUES = (80, 20, 5, 1)  # targets per class in Table 7
SAMPLES = (1, 4, 16, None)  # M in Table F.2; None is all
BATCHES = (128, 256)  # Table F.3
ALPHAS = (0.0, 0.2, 0.5, 0.8, 1.0)  # Tables 1, 3 and F.1

Rows = dict[str, Recipe]


@dataclass(frozen=True)
class Study:
    """One ablation: its rows, which recipes it can vary, and the paper's averages."""

    help: str
    title: str  # title of the column with the rows' names
    paper: str
    table: str  # the table that `supancl paper table` makes from its runs
    reference: str  # the others are compared with this row
    varies: Mapping[str, str]  # field -> the flag to use instead of an override
    rows: Callable[[Recipe], Rows]
    check: Callable[[Recipe], None]  # BadInput if the study cannot vary this recipe
    average: Callable[[str, str], float | None]  # (row, recipe's name) -> the paper's Avg over 11 data sets


def check_alpha(base: Recipe) -> None:
    """Refuse a recipe in which alpha cannot be varied."""
    if not isinstance(base.loss, Align) or base.heads.predictor is None:
        raise BadInput(f"{base.name} has no alpha; use a simsiam, supsiam, byol or supbyol recipe")
    if base.pool.kind == "none":
        raise BadInput(f"{base.name} has no pool; use supsiam or supbyol, or pool.kind=queue")


def pool_rows(base: Recipe) -> Rows:
    fields: dict[str, dict[str, Any]] = {"queue": {"pool.kind": "queue"}}
    fields |= {f"class-queues-{size}": {"pool.kind": "class-queues", "pool.size": size} for size in CLASS_QUEUES}
    # prototypes and none have no M targets to draw
    all_samples = {} if flattened(base).get("loss.samples") is None else {"loss.samples": None}
    fields |= {kind: {"pool.kind": kind, **all_samples} for kind in ("prototypes", "none")}
    return make_rows(base, fields)


def positive_rows(base: Recipe) -> Rows:
    return make_rows(base, {f"M-{samples or 'all'}": {"loss.samples": samples} for samples in SAMPLES})


def alpha_rows(base: Recipe) -> Rows:
    return make_rows(base, {f"alpha-{alpha:g}": {"loss.alpha": alpha} for alpha in ALPHAS})


def batch_rows(base: Recipe) -> Rows:
    """The learning rate scales with the batch automatically: `optimizer.lr` belongs to `reference_batch`."""
    return make_rows(base, {f"batch-{size}": {"train.batch_size": size} for size in BATCHES})


def memory_rows(base: Recipe) -> Rows:
    """Each batch size without and with a memory bank: the pool of Table F.3's rows marked *."""
    bank = {"pool.kind": "queue", "pool.size": base.pool.size, "loss.against": "both-views+pool"}
    fields: dict[str, dict[str, Any]] = {}
    for size in BATCHES:
        batch_field = {"train.batch_size": size}
        fields |= {f"batch-{size}": batch_field, f"batch-{size}-memory": {**batch_field, **bank}}
    return make_rows(base, fields)


def make_rows(base: Recipe, fields: Mapping[str, Mapping[str, Any]]) -> Rows:
    return {name: base.with_set(values, because="study") for name, values in fields.items()}


# --- which recipes a study can vary -----------------------------------------------------------------------------------


def check_supervised_target(base: Recipe) -> None:
    if not isinstance(base.loss, Align) or base.heads.predictor is None:
        raise BadInput(f"{base.name} is not a SupSiam or SupBYOL recipe; this study varies their supervised target")
    if not base.loss.supervised:
        raise BadInput(f"{base.name} has alpha = 1, so it has no supervised target; use supsiam or supbyol")


def check_pool(base: Recipe) -> None:
    check_supervised_target(base)
    if base.pool.kind not in ("queue", "class-queues"):
        raise BadInput(
            f"{base.name} has pool.kind = {base.pool.kind!r}, which has no M targets to draw; "
            "use supsiam or supbyol, or pool.kind=queue"
        )


def check_supcon(base: Recipe) -> None:
    loss = base.loss
    is_supcon = isinstance(loss, Contrast) and loss.supervised and loss.against == "both-views"
    if not is_supcon or base.pool.kind != "none":
        raise BadInput(f"{base.name} is not a SupCon recipe without a pool; use one, such as cifar100.supcon")


# --- the paper's averages ---------------------------------------------------------------------------------------------


def _average(rows: Mapping[str, tuple[float, ...]], key: str) -> float | None:
    return rows[key][0] if key in rows else None


def pool_average(row: str, recipe: str) -> float | None:
    return _average(POOL_DESIGN, row.replace("queues-", "queues "))


def batch_average(row: str, recipe: str) -> float | None:
    """The paper has these rows for SupCon, SupCon with a memory bank and SupSiam."""
    _, size, *memory = row.split("-")
    method = recipe.partition(".")[2].partition("-")[0]
    return _average(BATCH, f"{size} {method}{'-pool' if memory else ''}")


STUDIES: dict[str, Study] = {
    "pool": Study(
        "the target pool's design (Table 7), and none",
        "pool",
        "Table 7",
        "table7",
        "queue",
        {"pool.kind": "rows"},
        pool_rows,
        check_supervised_target,
        pool_average,
    ),
    "positives": Study(
        "M, the number of positives drawn from the pool (Table F.2)",
        "positives",
        "Table F.2",
        "f2",
        "M-all",
        {"loss.samples": "rows"},
        positive_rows,
        check_pool,
        lambda row, recipe: _average(POSITIVES, row.removeprefix("M-")),
    ),
    "batch": Study(
        "batch size 128 and 256 (Table F.3)",
        "batch",
        "Table F.3",
        "f3",
        "batch-128",
        {"train.batch_size": "rows"},
        batch_rows,
        lambda base: None,
        batch_average,
    ),
    "memory": Study(
        "SupCon with a memory bank at both batch sizes (Table F.3)",
        "batch, memory bank",
        "Table F.3",
        "f3",
        "batch-128",
        {"train.batch_size": "rows", "loss.against": "rows", "pool.kind": "rows"},
        memory_rows,
        check_supcon,
        batch_average,
    ),
    "alpha": Study(
        "alpha, trained on all classes (Tables 1, 3, F.1); to choose one, use `supancl alpha`",
        "alpha",
        "Table F.1",
        "f1",
        "alpha-0.5",
        {"loss.alpha": "rows"},
        alpha_rows,
        check_alpha,
        lambda row, recipe: _average(ALPHA, row.removeprefix("alpha-")),
    ),
}
