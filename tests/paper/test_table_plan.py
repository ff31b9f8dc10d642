"""What `supancl paper table NAME --data ...` would train: the paper's rows as runs, and refusals beforehand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from supancl.cli import main
from supancl.paper.layouts import LAYOUTS, table_name
from supancl.paper.make import hold_out_for_ridge
from supancl.paper.numbers import PAPER


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def plan(*words: str) -> dict[str, str]:
    assert main(["paper", "table", *words, "--dry-run", "--json", "plan.json", "--quiet"]) == 0
    found: dict[str, str] = json.loads(Path("plan.json").read_text())["plan"]
    assert not Path("runs").exists()
    return found


@pytest.mark.parametrize("name", sorted(PAPER.keys() - {"2", "G.1", "H.1"}))
def test_the_plan_has_the_papers_rows(name: str) -> None:
    found = plan(name, "--family", "digits", "--data", "digits", "--seeds", "2")
    rows = next(iter(PAPER[name].rows.values()))
    assert found == {f"{row}-seed-{seed}": "to train" for row in rows for seed in (0, 1)}


def test_table_g1_has_vits_and_h1_both_cifars() -> None:
    assert set(plan("G.1", "--data", "digits")) == {f"{m}-seed-0" for m in ("moco3", "supmoco", "byol", "supbyol")}
    Path("root").mkdir()
    six = ("simclr", "supcon", "simsiam", "supsiam", "byol", "supbyol")
    found = set(plan("H.1", "--benchmarks", "root"))
    assert found == {f"{family}-{method}-seed-0" for family in ("cifar10", "cifar100") for method in six}


@pytest.mark.parametrize(("name", "kept_out"), [("1", 0.1), ("h1", 0.1), ("4", None), ("5", None), ("8", None)])
def test_images_are_kept_out_where_a_ridge_is_chosen(name: str, kept_out: float | None) -> None:
    from supancl import recipe

    layout = LAYOUTS[table_name(name)]
    assert hold_out_for_ridge(layout, recipe("cifar100.supsiam")).data.holdout == kept_out
    asked = recipe("cifar100.supsiam").with_set({"data.holdout": 0.2})
    assert hold_out_for_ridge(layout, asked).data.holdout == 0.2
