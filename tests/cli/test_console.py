"""What a person is told: how far a run is where there is no terminal, that it is finished, which version this is."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

import supancl as package
from supancl import pretrain
from supancl.cli import entry, main
from supancl.cli.console import SafeConsole, Terminal, duration, table
from supancl.reports import terminal as telling
from supancl.reports.terminal import MAX_SILENCE
from supancl.reports.wrapping import wrap_line
from tests.files import TINY, class_folders, supancl
from tests.tiny import tiny_data, tiny_recipe


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A time that goes on when it is told to."""
    now = [100.0]
    monkeypatch.setattr(telling.time, "perf_counter", lambda: now[0])
    return now


def written(terminal: bool = False, quiet: bool = False) -> tuple[Terminal, io.StringIO]:
    text = io.StringIO()
    return Terminal(Console(file=text, force_terminal=terminal, quiet=quiet, soft_wrap=True, highlight=False)), text


def begun(terminal: Terminal, step: int = 0, steps: int = 1000) -> None:
    terminal.on_start(tiny_recipe(train__epochs=4), tiny_data(), Path("run"), "cpu", step, steps)


ROW = {"kind": "train", "loss": -0.73125, "images_per_second": 1520.4}


def test_within_an_epoch_a_file_gets_a_line_every_half_minute(clock) -> None:
    terminal, text = written()
    begun(terminal, step=100)
    before = len(text.getvalue().splitlines())
    for step in range(101, 401):
        clock[0] += 1.0
        terminal.on_step(step, ROW if step % 10 == 0 else None)
    lines = text.getvalue().splitlines()[before:]
    assert len(lines) == 300 / MAX_SILENCE
    assert lines[0] == "epoch 1 of 4, step 130 of 1,000, loss -0.7312, 1520 img/s, about 14 min left"
    assert lines[-1] == "epoch 2 of 4, step 400 of 1,000, loss -0.7312, 1520 img/s, about 10 min left"


def test_the_line_of_an_epoch_is_word_enough_for_the_next_half_minute(clock) -> None:
    terminal, text = written()
    begun(terminal)
    clock[0] += MAX_SILENCE - 1
    terminal.on_step(1, ROW)
    terminal.on_epoch({"epoch": 0})
    clock[0] += MAX_SILENCE - 1
    terminal.on_step(2, None)
    assert "step" not in text.getvalue()
    clock[0] += 1
    terminal.on_step(3, None)
    assert "epoch 1 of 4, step 3 of 1,000, loss" in text.getvalue()


def test_without_a_row_of_the_log_the_step_alone_is_told(clock) -> None:
    terminal, text = written()
    begun(terminal, step=5)
    clock[0] += MAX_SILENCE
    terminal.on_step(4, None)  # went back to a checkpoint: no pace to judge by
    assert text.getvalue().splitlines()[-1] == "epoch 1 of 4, step 4 of 1,000"


@pytest.mark.parametrize("how", ["quiet", "terminal"])
def test_nothing_of_it_where_nobody_wants_it_or_a_bar_shows_it(how: str, clock) -> None:
    terminal, text = written(terminal=how == "terminal", quiet=how == "quiet")
    begun(terminal)
    clock[0] += MAX_SILENCE
    terminal.on_step(9, ROW)
    terminal.on_end()
    assert "epoch 1 of 4, step" not in text.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (89, "89 s"), (100, "2 min"), (7000, "117 min"), (7200, "2 h 0 min"), (172_700, "47 h 58 min"),
     (200_000, "2 d 7 h")],
)  # fmt: skip
def test_a_duration_in_the_units_a_person_would_use(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_run_that_goes_on_when_it_is_finished_says_so(tmp_path: Path) -> None:
    pretrain(tiny_recipe(), tiny_data(), tmp_path / "run")
    terminal, text = written()
    pretrain(None, tiny_data(), tmp_path / "run", resume=True, reporter=terminal)
    assert f"{tmp_path / 'run'} is finished, at step 10 of 10" in text.getvalue()
    assert f"--extend {tmp_path / 'run'} --epochs N" in text.getvalue()
    assert "continuing" not in text.getvalue()


def test_the_way_out_of_a_finished_run_can_be_gone(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    class_folders(tmp_path / "data")
    command = ("pretrain", "digits.supsiam", *TINY, "--data", "data")
    assert supancl(capsys, *command, "--out", "run").code == 0
    assert supancl(capsys, *command, "--resume", "--out", "run").out.count("is finished, at step 2 of 2") == 1
    assert supancl(capsys, *command, "--epochs", "2", "--init", "run", "--out", "other").code == 0


def test_the_version_is_one_line(capsys) -> None:
    said = supancl(capsys, "--version")
    assert said == (0, f"supancl {package.__version__} (torch {torch.__version__})\n", "")


def test_without_a_command_the_help_is_shown_and_nothing_was_done(capsys) -> None:
    assert main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("usage: supancl")
    for name in ("pretrain", "recipes", "evaluate", "--version"):
        assert name in said.err


def test_a_terminal_that_lacks_a_character_gets_a_question_mark(tmp_path: Path, monkeypatch) -> None:
    photos, sheets = class_folders(tmp_path / "photos", ("日本", "other")), tmp_path / "sheets"
    said = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(said, "ascii"))
    monkeypatch.setattr("sys.argv", ["supancl", "data", "show", str(photos), "--out", str(sheets)])
    with pytest.raises(SystemExit) as ended:
        entry()
    assert ended.value.code == 0
    assert b"??" in said.getvalue()


def test_words_are_not_broken_at_80_columns() -> None:
    line = "contact sheets: runs/show-001/images.png and, of the views of cifar100.supsiam, runs/show-001/views.png"
    shown = wrap_line(line, 80)
    assert all(len(part) <= 80 for part in shown.splitlines())
    assert shown.split() == line.split()
    command = "supancl evaluate knn 'a folder' --data other"
    shown = wrap_line(f"done: encoder in runs/x/encoder.safetensors; evaluate it with: {command}", 60)
    assert command in shown.splitlines()[-1]


@pytest.mark.parametrize("cell", ["12.0 ± 0.5", "/a/long/folder/of/images/and/its/name", "x" * 70])
def test_a_table_loses_nothing_in_a_narrow_terminal(cell: str) -> None:
    text = io.StringIO()
    console = SafeConsole(stderr=False)
    console.file, console.width = text, 60
    console.print(table("a title", ["name", "second column", "third"], [["row", cell, cell], ["other", "1", "2"]]))
    assert "…" not in text.getvalue()
    for word in {"name", "second", "third", "row", "other", *cell.split()}:
        assert word in text.getvalue()


@pytest.mark.parametrize(("method", "terms"), [("simsiam", False), ("byol", False), ("supsiam", True)])
def test_an_epoch_shows_the_terms_that_the_loss_has(method: str, terms: bool) -> None:
    terminal, text = written()
    terminal.on_start(tiny_recipe(method), tiny_data(), Path("run"), "cpu", 0, 10)
    terminal.on_step(1, ROW | {"ssl": -0.5, "sup": -0.5})
    terminal.on_epoch({"epoch": 0})
    assert ("  ssl -0.500  sup -0.500" in text.getvalue()) == terms
    assert "loss -0.731" in text.getvalue()
