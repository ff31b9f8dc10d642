"""`supancl paper table NAME --data ...` trains and lays out; `supancl paper figure 3` draws. See also tests/paper."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from supancl.cli import main
from tests.tables_and_figures.made import DIGITS, TRAIN

CELL = ("paper", "table", "8", "--data", "digits", *DIGITS)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_table_is_trained_laid_out_and_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*CELL, "--out", "made", "--json", "table.json"]
    assert main([*words, "--rows", "pool"]) == 0
    said = capsys.readouterr().out
    assert said.index("to train") < said.index("images/s") < said.index("trained pool-seed-0")  # plan, time, runs
    kept = json.loads(Path("made/pool-seed-0/evaluate/knn.json").read_text())
    lines = json.loads(Path("table.json").read_text())["lines"]
    assert [line["ours"]["knn"]["mean"] for line in lines if line["ours"]] == [kept["accuracy"]]
    assert f"{kept['accuracy']:.2f}" in Path("made/table.txt").read_text()
    assert main([*words, "--rows", "pool,ema"]) == 0
    said = capsys.readouterr().out
    assert "trained ema-seed-0" in said
    assert "trained pool-seed-0" not in said
    assert set(json.loads(Path("table.json").read_text())["plan"].values()) == {"done"}


def test_failed_runs_are_named_in_the_error_and_in_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    bad = ("--set", "optimizer.lr=1000000", "--set", "optimizer.weight_decay=1")
    assert main([*CELL, *bad, "--rows", "pool", "--out", "made", "--json", "table.json"]) == 4
    assert "pool-seed-0" in capsys.readouterr().err
    assert json.loads(Path("table.json").read_text())["rows"] == ["pool-seed-0"]


def test_a_folder_that_may_not_be_read_beside_a_run_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    from supancl.paper.tables.runs import holds_detectors

    def refuse(self: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "is_file", refuse)
    assert not holds_detectors(Path("closed"))


def test_figure_3_is_drawn_from_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pretrain", "digits.supsiam", *TRAIN[:-2], "--set", "data.limit=128", "--out", "run", "--quiet"]) == 0
    draw = ["paper", "figure", "3", "mine=run", "--per-class", "6", "--classes"]
    assert main([*draw, "0,1,2", "--groups", "round=0", "--out", "figure.png", "--quiet"]) == 0
    assert Path("figure.png").read_bytes().startswith(b"\x89PNG")
    shown = json.loads(Path("figure.json").read_text())
    assert [row["name"] for row in shown["classes"]] == ["0", "1", "2"]
    assert len(shown["labels"]) == 18
    assert [panel["title"] for panel in shown["panels"]] == ["mine"]
    for classes, named in (("0,11", "11"), ("0", "two")):
        assert main([*draw, classes, "--out", "other.png"]) == 2
        assert named in capsys.readouterr().err
    assert not Path("other.png").exists()
