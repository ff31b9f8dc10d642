"""The verdict on real runs after each of their epochs: one that collapses and one that does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from supancl import recipe
from supancl.reports.verdict import find_collapse, find_verdict, read_record
from supancl.training.start import pretrain
from tests.training.test_monitor import COLLAPSING

USUAL = {name: value for name, value in COLLAPSING.items() if not name.startswith("optimizer.")}


def states(path: Path, settings: dict[str, object]) -> list[str]:
    """What a report would have said after each epoch, by the log until then."""
    pretrain(recipe("digits.simsiam").with_set({**settings, "train.monitor_every": 1}), out=path)
    record = read_record(path)
    logs = ([row for row in record.rows if row["step"] <= check["step"]] for check in record.checks)
    found = (find_collapse(replace(record, rows=log, end=None)) for log in logs)
    return ["" if collapse is None else collapse[0] for collapse in found]


def test_a_run_that_collapses(tmp_path: Path) -> None:
    found = states(tmp_path / "run", COLLAPSING)
    assert found[-1] == "collapsed"
    assert find_verdict(read_record(tmp_path / "run")).state == "collapsed"
    assert "collapsing" in found
    assert found[0] == ""
    assert "" not in found[len(found) // 2 :]  # rank and std go up and down on the way


def test_a_run_that_does_not(tmp_path: Path) -> None:
    assert set(states(tmp_path / "run", {**USUAL, "train.epochs": 6})) == {""}
    assert find_verdict(read_record(tmp_path / "run")).state == "finished"
