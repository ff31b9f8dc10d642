"""The sweep runner's own words: rows, runs by name, results and their means."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from supancl import recipe
from supancl.errors import BadInput
from supancl.sweeps import runner
from supancl.sweeps.results import collect_results, mean_cells, summarize
from supancl.sweeps.runner import Sweep, describe_memory, describe_remaining, select_rows
from supancl.sweeps.runs import Failure, Runs, TrainedRun
from supancl.training import cost
from supancl.training.cost import estimate_memory, in_gigabytes
from tests.files import assert_mentions, mentions
from tests.tiny import Notes, tiny_data, tiny_recipe

ROWS = {"low": recipe("digits.supsiam"), "high": recipe("digits.supsiam").with_set({"loss.alpha": 1.0})}


@pytest.mark.parametrize(("settings", "flag"), [({"seeds": 0}, "--seeds 0"), ({"jobs": 0}, "--jobs 0")])
def test_a_sweep_of_nothing_is_refused(settings: dict[str, int], flag: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=flag):
        Sweep(tmp_path, **settings)


def test_every_row_is_trained_with_every_seed(tmp_path: Path) -> None:
    runs = Sweep(tmp_path, seeds=2).with_seeds(ROWS, "a test")
    assert list(runs) == ["low-seed-0", "low-seed-1", "high-seed-0", "high-seed-1"]
    assert [run.train.seed for run in runs.values()] == [0, 1, 0, 1]
    assert runs["high-seed-1"].sources["train.seed"] == "a test"


def test_the_memory_of_the_largest_run_is_said_and_one_that_does_not_fit_is_refused_before_any_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, large = tiny_recipe(), tiny_recipe(encoder__width=512)
    needed = [estimate_memory(one, torch.device("cpu")).total for one in (small, large)]
    assert_mentions(describe_memory({"small": small, "large": large}, 2), "memory", in_gigabytes(needed[1]), "2 runs")
    monkeypatch.setattr(cost, "available_memory", lambda device: needed[0])
    monkeypatch.setattr(runner, "train_each", lambda *rest: pytest.fail("a run was trained"))
    sweep = Sweep(tmp_path / "sweep", jobs=1)
    runs = sweep.with_seeds({"small": small, "large": large}, "a test")
    with pytest.raises(BadInput, match=mentions("large-seed-0", "memory")):
        sweep.train(runs, tiny_data())


def test_memory_and_the_time_of_all_runs_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes, now = Notes(), [0.0]

    def train_each(recipes, *rest):
        for name in recipes:
            now[0] += 600
            yield name, Failure("of a test", 4)

    monkeypatch.setattr(runner, "train_each", train_each)
    monkeypatch.setattr(runner.time, "perf_counter", lambda: now[0])
    sweep = Sweep(tmp_path / "sweep", seeds=4, jobs=1, reporter=notes)
    sweep.train(sweep.with_seeds({"small": tiny_recipe()}, "a test"), tiny_data())
    kinds = [note.split(":")[0] for note in notes.notes if note.startswith(("memory", "time"))]
    assert kinds == ["memory", "time"]
    assert_mentions(" ".join(notes.notes), "30 minutes", "3 runs")
    assert describe_remaining(600, runs=4, jobs=4) == describe_remaining(5, runs=4, jobs=1) == ""
    assert_mentions(describe_remaining(600, runs=4, jobs=2), "10 minutes")


def test_rows_are_chosen_by_name_and_stay_in_order() -> None:
    assert list(select_rows(ROWS, "high, low", "study")) == ["low", "high"]
    assert list(select_rows(ROWS, None, "study")) == ["low", "high"]
    with pytest.raises(BadInput, match=mentions("--rows", "hihg", "high")):
        select_rows(ROWS, "hihg", "table")


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
