"""The sweep runner's own words: rows, runs by name, results and their means."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from supancl.sweeps.results import collect_results, mean_cells, summarize

from supancl import recipe
from supancl.errors import BadInput
from supancl.sweeps import runner
from supancl.sweeps.runner import Sweep
from supancl.sweeps.runs import Failure, Runs, TrainedRun
from supancl.training import cost
from supancl.training.memory import estimate_memory
from tests.tiny import tiny_data, tiny_recipe

ROWS = {"low": recipe("digits.supsiam"), "high": recipe("digits.supsiam").with_set({"loss.alpha": 1.0})}


def test_every_row_is_trained_with_every_seed(tmp_path: Path) -> None:
    runs = Sweep(tmp_path, seeds=2).with_seeds(ROWS, "a test")
    assert list(runs) == ["low-seed-0", "low-seed-1", "high-seed-0", "high-seed-1"]
    assert [run.train.seed for run in runs.values()] == [0, 1, 0, 1]
    assert runs["high-seed-1"].sources["train.seed"] == "a test"


def test_a_run_that_does_not_fit_into_memory_is_refused_before_any_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, large = tiny_recipe(), tiny_recipe(encoder__width=512)
    needed = [estimate_memory(one, torch.device("cpu")).total for one in (small, large)]
    monkeypatch.setattr(cost, "available_memory", lambda device: needed[0])
    monkeypatch.setattr(runner, "train_each", lambda *rest: pytest.fail("a run was trained"))
    sweep = Sweep(tmp_path / "sweep", jobs=1)
    runs = sweep.with_seeds({"small": small, "large": large}, "a test")
    with pytest.raises(BadInput, match="large-seed-0"):
        sweep.train(runs, tiny_data())


def test_a_run_that_failed_is_counted_and_in_no_mean(tmp_path: Path) -> None:
    sweep, labels = Sweep(tmp_path, seeds=2), {"low": {"row": "low"}, "high": {"row": "high"}}
    trained = {
        name: TrainedRun(one, torch.nn.Identity(), [{"linear": value}], False)
        for (name, one), value in zip(sweep.with_seeds(ROWS, "a test").items(), (60.0, 70.0, 80.0, None), strict=True)
    }
    failed = {"low-seed-1": Failure("no number", 4)}
    runs = Runs({name: run for name, run in trained.items() if name not in failed}, failed)
    results = collect_results(sweep, runs, labels, ["linear"], lambda run, folder: run.metrics[0])
    assert [result["linear"] for result in results] == [60.0, None, 80.0, None]
    assert [result["failed"] for result in results] == [None, "no number", None, None]
    low, high = (summarize(results, label, ["linear"], ("failed",)) for label in labels.values())
    assert (low["n"], low["failed"], low["linear"]) == (2, 1, 60.0)
    assert mean_cells(low, {"linear": ("linear %", 1)}) == ["60.0"]
    assert (high["failed"], math.isnan(high["linear"])) == (0, True)  # one seed could not be measured
