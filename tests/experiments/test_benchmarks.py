"""Every benchmark runs in miniature; `--before` calls a row slower by the interval of the ratio."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "experiments" / "benchmarks"

TINY = {
    "data": ["--images", "4", "--rounds", "1", "--memory", "10"],
    "detect": ["--quick", "--device", "cpu", "--arch", "fpn"],
    "evaluate": ["--quick", "--only", "knn", "--threads", "1"],
    "scaling": ["--device", "cpu", "--parts", "classes", "ranks", "--most-gib", "0.001"],
    "step": ["--rows", "imagenet", "--tiny", "--device", "cpu", "--rounds", "1", "--seconds", "0.01"],
    "views": ["--device", "cpu", "--rounds", "1", "--seconds", "0", "--only", "32", "--cores", "1"],
}


def test_every_benchmark_is_run_here() -> None:
    scripts = {path.stem for path in BENCHMARKS.glob("*.py") if 'if __name__ == "__main__"' in path.read_text()}
    assert scripts - {"before"} == set(TINY)


@pytest.mark.parametrize("name", TINY)
def test_a_benchmark_measures_one_tiny_row(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *TINY[name], "--json", str(tmp_path / "kept.json")])
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")  # as one of them sets it
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    importlib.import_module(name).main()
    assert json.loads((tmp_path / "kept.json").read_text())


def test_what_runs_in_another_tree_imports_public_names_alone() -> None:
    text = "".join((BENCHMARKS / f"{name}.py").read_text() for name in ("before", "jpegs"))
    assert set(re.findall(r"^(?:import|from) (supancl\S*|common)", text, re.MULTILINE)) == {"supancl"}


@pytest.fixture
def before(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
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
