"""Tables 3, 5, 6, 7, F.1, F.2, F.3 and G.1: one command from data to cells, and cells that follow their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from supancl.cli import main
from tests.paper.made import DIGITS, TRAIN, colours, edit, make_benchmarks, ours, table

CNN = ("--set", "encoder.name=cnn", "--set", "views.size=16", "--set", "heads.projector.hidden=[16]")
VIT = ["--set", "encoder.name=timm:vit_tiny_patch16_224", "--set", "views.size=16", "--epochs", "1", "--device", "cpu"]
VIT += ["--set", "heads.projector.hidden=[16]", "--set", "heads.predictor.hidden=[16]", "--jobs", "1"]
VIT += ["--set", "schedule.warmup_epochs=0", "--set", "data.limit=256"]


class Case(NamedTuple):
    """A table in its smallest form: its rows, flags, and the data sets of its columns."""

    name: str
    rows: tuple[str, ...]
    flags: tuple[str, ...] = DIGITS
    sets: tuple[str, ...] = ("dogs",)
    kind: str = "transfer"


CASES = (
    Case("3", ("alpha-0", "alpha-1"), DIGITS, ("cub200", "dogs", "pets")),
    Case("5", ("supsiam", "byol")),
    Case("6", ("supbyol",), DIGITS, ("dtd",), "fewshot"),
    Case("7", ("queue", "class-queues-5")),
    Case("F.1", ("alpha-0.2",)),
    Case("F.2", ("M-4", "M-all")),
    Case(
        "F.3",
        ("supcon-batch-128", "supcon-batch-256-memory"),
        ("--family", "cifar100", "--set", "data.limit=256", *TRAIN, *CNN),
    ),
    Case("G.1", ("moco3", "supbyol"), tuple(VIT)),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"table {case.name}")
def test_data_to_cells_in_one_command(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_benchmarks(tmp_path / "benchmarks", monkeypatch, *case.sets)
    data = colours(tmp_path / "own.npz", 3, 256, 12, side=16) if case.name in ("F.3", "G.1") else "digits"
    out = tmp_path / "out"
    made = table(
        case.name,
        tmp_path,
        "--data",
        data,
        "--benchmarks",
        root,
        *case.flags,
        "--rows",
        ",".join(case.rows),
        "--out",
        out,
    )
    assert made["plan"] == {f"{row}-seed-0": "done" for row in case.rows}
    found = ours(made)
    sections = ["5w1s", "5w5s"] if case.kind == "fewshot" else [""]
    for row in case.rows:
        for section in sections:
            for data_set in case.sets:
                name = "-".join(part for part in (case.kind, data_set, section) if part)
                kept = json.loads((out / f"{row}-seed-0" / "evaluate" / f"{name}.json").read_text())
                assert found[section, row][f"{case.kind}:{data_set}"] == kept["accuracy"]
                assert not kept["partial"]
    # the table follows its files
    row = case.rows[0]
    name = "-".join(part for part in (case.kind, case.sets[0], sections[0]) if part)
    edit(out / f"{row}-seed-0" / "evaluate" / f"{name}.json", lambda kept: kept | {"accuracy": 12.25})
    changed = ours(table(case.name, tmp_path, out))
    assert changed[sections[0], row][f"{case.kind}:{case.sets[0]}"] == 12.25
    assert main(["paper", "table", case.name, str(out), "--out", str(tmp_path / "table.txt"), "--quiet"]) == 0
    assert "12.25" in (tmp_path / "table.txt").read_text()


def test_a_second_call_goes_on(tmp_path: Path, monkeypatch) -> None:
    """A run that is missing is trained, a result that is missing measured, and nothing else is touched."""
    root = make_benchmarks(tmp_path / "benchmarks", monkeypatch, "dogs")
    command = ["paper", "table", "7", "--data", "digits", "--benchmarks", root, *DIGITS, "--out", tmp_path / "out"]
    words = [str(word) for word in command]
    assert main([*words, "--rows", "queue", "--dry-run"]) == 0
    assert not (tmp_path / "out").exists()
    assert main([*words, "--rows", "queue"]) == 0
    (tmp_path / "out" / "queue-seed-0" / "evaluate" / "transfer-dogs.json").unlink()
    weights = (tmp_path / "out" / "queue-seed-0" / "encoder.safetensors").stat().st_mtime_ns
    assert main([*words, "--rows", "queue,prototypes"]) == 0
    assert (tmp_path / "out" / "queue-seed-0" / "encoder.safetensors").stat().st_mtime_ns == weights
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").rglob("*") if file.name != "table.txt"}
    assert main([*words, "--rows", "queue,prototypes"]) == 0
    after = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").rglob("*") if file.name != "table.txt"}
    assert before == after
