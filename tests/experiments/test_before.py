"""`--before` runs a row in a process of each tree, and calls it slower by the interval of the ratio."""

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def before(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "experiments" / "benchmarks"))
    module = importlib.import_module("before")
    monkeypatch.delitem(sys.modules, "before")
    monkeypatch.setattr(module, "STARTS", 1)
    monkeypatch.setattr(module, "SECONDS", 0)
    return module


def test_a_row_is_compared_and_named_if_it_is_slower(before: ModuleType, monkeypatch, capsys) -> None:
    monkeypatch.setattr(before, "ROWS", {"step": {"digits.supsiam": before.ROWS["step"]["digits.supsiam"]}})
    slower = before.compare("step", str(ROOT))
    row = capsys.readouterr().out.splitlines()[1]
    mean, low, high = map(float, re.findall(r"\d+\.\d{3}", row))
    assert 0 < low <= mean <= high
    assert slower == row.endswith("slower") == (high < 0.98)
    measured = iter([0.96, 0.97, 0.96])
    monkeypatch.setattr(before, "measure", lambda *row: list(measured))
    assert before.compare("step", str(ROOT)) == 1
    with pytest.raises(SystemExit, match="2"):
        before.compare("step", "no-such-tree")
