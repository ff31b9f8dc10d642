"""What a person is told: how far a run is where there is no terminal, that it is finished, which version this is."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch

import supancl as package
from supancl.cli import entry
from supancl.reports.terminal import SafeConsole, table
from tests.files import TINY, class_folders, supancl


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


def test_a_terminal_that_lacks_a_character_gets_a_question_mark(tmp_path: Path, monkeypatch) -> None:
    photos, sheets = class_folders(tmp_path / "photos", ("日本", "other")), tmp_path / "sheets"
    said = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(said, "ascii"))
    monkeypatch.setattr("sys.argv", ["supancl", "data", "show", str(photos), "--out", str(sheets)])
    with pytest.raises(SystemExit) as ended:
        entry()
    assert ended.value.code == 0
    assert b"??" in said.getvalue()


@pytest.mark.parametrize("cell", ["12.0 ± 0.5", "/a/long/folder/of/images/and/its/name", "x" * 70])
def test_a_table_loses_nothing_in_a_narrow_terminal(cell: str) -> None:
    text = io.StringIO()
    console = SafeConsole(stderr=False)
    console.file, console.width = text, 60
    console.print(table("a title", ["name", "second column", "third"], [["row", cell, cell], ["other", "1", "2"]]))
    assert "…" not in text.getvalue()
    for word in {"name", "second", "third", "row", "other", *cell.split()}:
        assert word in text.getvalue()
