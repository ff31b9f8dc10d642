"""Loggers: every row reaches the service once, whatever happens to the run, and no service ends a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from supancl import loggers, pretrain
from supancl.loggers import LOGGERS, LoggedRun, RunLogger
from supancl.runs.folder import RunFolder
from tests.helpers import Notes, assert_one_line, supancl, tiny_data, tiny_recipe


class KeptLogger(RunLogger):
    """A service in memory: runs by their id, each a list of (step, numbers)."""

    name = "wandb"
    runs: ClassVar[dict[str, list[tuple[int, dict[str, float]]]]] = {}
    opened: ClassVar[list[LoggedRun]] = []
    endings: ClassVar[list[bool]] = []
    fails_in: ClassVar[str] = ""

    def open(self, run: LoggedRun, run_id: str | None) -> str:
        self.fail("open")
        self.opened.append(run)
        run_id = run_id or f"run-{len(self.runs)}"
        self.runs.setdefault(run_id, [])
        return run_id

    def send(self, rows: Any) -> None:
        if rows and rows[-1][0] >= 3:
            self.fail("send")
        self.runs[self.run_id].extend(rows)

    def close(self, is_finished: bool) -> None:
        self.fail("close")
        self.endings.append(is_finished)

    def fail(self, place: str) -> None:
        if self.fails_in == place:
            raise OSError(28, "No space left on device")


@pytest.fixture(autouse=True)
def service(monkeypatch: pytest.MonkeyPatch) -> type[KeptLogger]:
    for name, empty in (("runs", {}), ("opened", []), ("endings", []), ("fails_in", "")):
        monkeypatch.setattr(KeptLogger, name, empty)
    monkeypatch.setattr(loggers, "SECONDS_BETWEEN", 0.0)
    return KeptLogger


def logged(rows: list[tuple[int, dict[str, float]]]) -> dict[tuple[int, str], float]:
    return {(step, name): number for step, numbers in rows for name, number in numbers.items()}


def in_metrics(folder: Path) -> dict[tuple[int, str], float]:
    return {
        (row["step"], f"{row['kind']}/{name.replace('/', '_over_')}"): value
        for row in RunFolder(folder).metrics()
        for name, value in row.items()
        if isinstance(value, (int, float)) and name not in ("step",)
    }


@pytest.mark.parametrize("place", ["open", "send", "close"])
def test_a_service_that_fails_is_reported_once_and_training_goes_on(
    tmp_path: Path, service: Any, monkeypatch: Any, place: str
) -> None:
    monkeypatch.setattr(service, "fails_in", place)
    notes = Notes()
    run = pretrain(tiny_recipe(), tiny_data(), tmp_path / "run", reporter=KeptLogger(notes))
    assert len(run.metrics) == 12
    (warning,) = notes.warnings
    assert_one_line(warning, "logger wandb")
    monkeypatch.setattr(service, "fails_in", "")
    pretrain(None, tiny_data(), tmp_path / "run", resume=True, reporter=KeptLogger(notes))
    (rows,) = service.runs.values()
    assert logged(rows) == in_metrics(tmp_path / "run")  # what was missing came later
    assert len(notes.warnings) == 1


def test_nothing_is_written_through_a_link_in_a_run_folder(tmp_path: Path, service: Any) -> None:
    pretrain(tiny_recipe(train__epochs=1), tiny_data(), tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run" / "loggers").symlink_to(tmp_path / "elsewhere")
    notes = Notes()
    pretrain(None, tiny_data(), tmp_path / "run", resume=True, reporter=KeptLogger(notes))
    assert len(notes.warnings) == 1
    assert not service.opened
    assert not list((tmp_path / "elsewhere").iterdir())


# --- the command line -------------------------------------------------------------------------------------------------

TINY = ["digits.supsiam", "--epochs", "1", "--device", "cpu", "--set", "encoder.width=8", "--set", "data.limit=64"]


def test_the_runs_of_a_sweep_are_logged_each_in_its_folder(
    tmp_path: Path, service: Any, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr(loggers, "find_spec", lambda name: object())
    monkeypatch.setitem(LOGGERS, "wandb", service)
    line = ["compare", *TINY, "--set", "loss.alpha=0,1", "--seeds", "1", "--jobs", "1", "--out", tmp_path / "sweep"]
    monkeypatch.setattr(service, "fails_in", "close")
    said = supancl(capsys, *line, "--logger", "wandb", "--logger", "wandb", "--quiet")
    assert said.code == 0
    assert [run.name for run in service.opened] == ["alpha-0.0-seed-0", "alpha-1.0-seed-0"]
    assert len(service.runs) == 2
    for run, rows in zip(service.opened, service.runs.values(), strict=True):
        assert logged(rows) == in_metrics(run.folder)
    assert said.err.count("warning: ") == 2
