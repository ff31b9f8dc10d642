"""The collapse ablation: four cells that differ in pool and EMA alone, each with a verdict."""

import json
from pathlib import Path

import pytest

from supancl import recipe
from supancl.cli import main
from supancl.core.methods import METHODS
from supancl.paper.studies import COLLAPSE_CELLS, cell_recipe
from supancl.training.monitor import COLLAPSED_RANK

SMALL = ["--epochs", "1", "--set", "data.limit=256", "--set", "encoder.width=16", "--device", "cpu"]


@pytest.mark.parametrize(("pool", "ema"), COLLAPSE_CELLS)
def test_a_cell_is_the_row_of_the_method_table(pool: bool, ema: bool) -> None:
    base = recipe("cifar100.supsiam")
    built = cell_recipe(base, pool, ema)
    row = METHODS[COLLAPSE_CELLS[pool, ema]]
    assert built.method == COLLAPSE_CELLS[pool, ema]
    assert built.branches.target == row.branches.target
    assert built.pool.kind == row.pool.kind
    for section in ("heads", "loss", "optimizer", "views", "schedule", "train", "encoder"):
        assert getattr(built, section) == getattr(base, section)


def test_a_cell_that_collapses_is_called_so(tmp_path: Path) -> None:
    out = tmp_path / "study"
    # three quarters of every weight are taken at each step; a target that follows slowly keeps its rank all the same
    harsh = ["--set", "optimizer.name=adamw", "--set", "optimizer.weight_decay=25", "--set", "optimizer.lr=0.03"]
    harsh += ["--set", "schedule.warmup_epochs=0", "--epochs", "4"]
    assert (
        main(["paper", "collapse", "digits.supsiam", "--out", str(out), "--jobs", "1", "--quiet", *SMALL, *harsh]) == 0
    )
    rows = json.loads((out / "results.json").read_text())["rows"]
    assert [row["collapsed"] for row in rows] == ["ema" not in row["row"] for row in rows]
    assert max(row["effective_rank"] for row in rows if row["collapsed"]) < COLLAPSED_RANK
    assert min(row["effective_rank"] for row in rows if not row["collapsed"]) > COLLAPSED_RANK
