"""The collapse ablation: four cells that differ in pool and EMA alone, each with a verdict."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from supancl import recipe
from supancl.cli import main
from supancl.core.methods import COLLAPSE_CELLS, METHODS
from supancl.paper.collapse import MEASURES, cell_recipe, table_row
from supancl.paper.numbers import COLLAPSE
from supancl.training.monitor import COLLAPSED_RANK
from tests.files import assert_refused

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


@pytest.mark.parametrize(("pool", "ema"), COLLAPSE_CELLS)
def test_a_cell_without_a_pool_draws_no_targets_of_it(pool: bool, ema: bool) -> None:
    base = recipe("cifar100.supsiam").with_set({"loss.samples": 4})
    built = cell_recipe(base, pool, ema)
    assert built.loss == (base.loss if pool else replace(base.loss, samples=None))
    assert built.sources["loss.samples"] == (base.sources["loss.samples"] if pool else "collapse study")


def test_the_four_cells_are_trained_judged_and_set_beside_the_paper(tmp_path: Path, capsys) -> None:
    out = tmp_path / "study"
    assert main(["paper", "collapse", "digits.supsiam", "--out", str(out), "--jobs", "1", *SMALL]) == 0
    rows = json.loads((out / "collapse.json").read_text())["rows"]
    assert [(row["pool"], row["ema"]) for row in rows] == list(COLLAPSE_CELLS)
    assert all(0 <= row["knn"] <= 100 and row["effective_rank"] > 0 for row in rows)
    printed = capsys.readouterr().out
    for _, knn in COLLAPSE.values():
        assert f"{knn:.2f}" in printed


def test_a_cell_that_collapses_is_called_so(tmp_path: Path) -> None:
    out = tmp_path / "study"
    # three quarters of every weight are taken at each step; a target that follows slowly keeps its rank all the same
    harsh = ["--set", "optimizer.name=adamw", "--set", "optimizer.weight_decay=25", "--set", "optimizer.lr=0.03"]
    harsh += ["--set", "schedule.warmup_epochs=0", "--epochs", "4"]
    assert (
        main(["paper", "collapse", "digits.supsiam", "--out", str(out), "--jobs", "1", "--quiet", *SMALL, *harsh]) == 0
    )
    rows = json.loads((out / "collapse.json").read_text())["rows"]
    assert [row["collapsed"] for row in rows] == [not row["ema"] for row in rows]
    assert max(row["effective_rank"] for row in rows if row["collapsed"]) < COLLAPSED_RANK
    assert min(row["effective_rank"] for row in rows if not row["collapsed"]) > COLLAPSED_RANK


def test_a_cell_whose_runs_failed_has_no_verdict() -> None:
    found = [
        {
            "pool": pool,
            "ema": ema,
            "seed": seed,
            "knn": 50.0,
            "effective_rank": 20.0,
            "std": 1.0,
            "collapsed": False,
            "failed": None,
        }
        for pool, ema in COLLAPSE_CELLS
        for seed in range(2)
    ]
    lost = {**dict.fromkeys(MEASURES), "collapsed": None, "failed": "why"}
    assert table_row(found, (True, False))[2:] == [
        "no",
        "50.00 ± 0.00",
        "20.0 ± 0.0",
        "1.000 ± 0.000",
        "no",
        "73.92",
    ]
    for row in found:
        if not row["pool"] and (row["ema"] or row["seed"] == 0):
            row |= lost
    assert table_row(found, (False, True))[2:] == ["-", "-", "-", "-", "no", "73.32", "2 of 2"]
    assert table_row(found, (False, False))[2:] == ["no", "50.00", "20.0", "1.000", "yes", "1.00", "1 of 2"]
    assert table_row(found, (True, True))[-1] == "no"


@pytest.mark.parametrize("name", ["digits.simsiam", "cifar100.simclr"])
def test_a_recipe_without_a_supervised_target_is_refused(name: str, capsys, tmp_path: Path) -> None:
    assert main(["paper", "collapse", name, "--data", "digits", "--out", str(tmp_path / "x")]) == 2
    assert name in capsys.readouterr().err


@pytest.mark.parametrize(("more", "line"), [
    (["--seed", "3"], ("train.seed", "--seeds N")),
    (["--on-collapse", "stop"], ("train.on_collapse", "stop", "k-NN", "warn")),
])  # fmt: skip
def test_what_would_be_ignored_or_end_the_study_is_refused(more: list[str], line: str, capsys, tmp_path: Path) -> None:
    assert main(["paper", "collapse", "digits.supsiam", *more, "--out", str(tmp_path / "x")]) == 2
    assert_refused(capsys.readouterr().err, *line)
    assert not (tmp_path / "x").exists()
