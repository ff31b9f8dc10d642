"""Few labels, coarse labels, long tails: the rows, one small run of each kind, the tables in the documentation."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from experiments.labels import page, runs
from supancl.data.splits import DataSpec
from tests.files import archive

ROOT = Path(__file__).parents[2]
SMALL = {"encoder.name": "cnn", "encoder.width": 8, "train.batch_size": 16, "heads.projector.hidden": [16],
         "heads.projector.out": 16}  # fmt: skip


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    """Four classes of 60 training images, each a shade of grey with noise."""
    chance, labels = np.random.default_rng(0), np.arange(240) % 4
    images = (60 * labels[:, None, None, None] + chance.integers(0, 60, (240, 32, 32, 3))).astype(np.uint8)
    archive(tmp_path / "cifar100.npz", train_images=images, train_labels=labels, test_images=images[:40],
            test_labels=labels[:40])  # fmt: skip
    return tmp_path


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    original = runs.Row.recipe

    def narrow(self, epochs, images):
        usual = original(self, epochs, images)
        shown = {name: value for name, value in SMALL.items() if name in usual.fields()}
        if self.method == "crossentropy":
            shown = {name: value for name, value in shown.items() if not name.startswith("heads")}
        return usual.with_set({**shown, "train.device": "cpu"})

    monkeypatch.setattr(runs.Row, "recipe", narrow)


def test_rows_are_the_planned_ones_and_the_most_valuable_come_first():
    names = list(runs.ROWS)
    assert names[:3] == ["supsiam-10%", "semi-10%", "crossentropy-10%"]
    for share in ("1%", "10%", "100%"):
        assert {f"supsiam-{share}", f"crossentropy-{share}", f"simsiam-{share}"} <= set(names)
    assert "semi-100%" not in names  # it would be supsiam
    assert len([name for name in names if name.startswith(("supsiam-10%", "semi-10%"))]) == 6
    assert len([name for name in names if "tail" in name]) == 4
    assert "supsiam-coarse" in names


def test_recipes_of_rows_differ_in_what_their_names_say():
    known = {field.name for field in fields(DataSpec)}
    for name, row in runs.ROWS.items():
        if all(setting.removeprefix("data.") in known for setting, _ in row.settings if setting.startswith("data.")):
            chosen = row.recipe(100, 4500)
            assert (chosen.train.epochs, chosen.data.holdout, chosen.train.seed) == (100, 0.1, row.seed), name
    few, tail = runs.ROWS["semi-1%"].recipe(100, 450), runs.ROWS["supsiam-tail-class-queues"].recipe(100, 9500)
    assert (few.data.labelled, few.pool.size, few.loss.kind) == (0.01, 1024, "semi")
    assert (tail.data.imbalance, tail.pool.kind, tail.pool.size) == (100, "class-queues", 20)
    assert runs.ROWS["supsiam-tail-balanced"].recipe(100, 9500).data.balanced


def test_a_run_with_few_labels_is_evaluated_with_these_and_with_all(cifar: Path, small, tmp_path: Path):
    row = runs.Row("semi-25%", "semi", 0.25)
    found = runs.run(row, cifar, tmp_path / "run", 1)
    assert (found["images"], found["labels"]) == (216, 56)  # a quarter of each class, rounded up
    assert set(found["accuracy"]) == {"linear, all labels", "linear, its labels", "knn, its labels",
                                      "class means, its labels"}  # fmt: skip
    assert min(found["accuracy"].values()) > 50  # shades are easy, also for a network of one epoch
    assert {"hardware", "versions", "seconds", "seed"} <= set(found)
    assert runs.run(row, cifar, tmp_path / "run", 1)["seconds"] is None  # trained already


def test_cross_entropy_takes_as_many_steps_on_the_labelled_images_alone(cifar: Path, small):
    all_of_them, _ = runs.prepare(runs.Row("a", "supsiam", 0.25), cifar, 4)
    alone, data = runs.prepare(runs.Row("b", "crossentropy", 0.25), cifar, 4)
    assert int((data.train.labels < 0).sum()) == 0
    assert len(data.train) == 56
    steps = alone.train.epochs * (56 // 16)
    assert 0 <= steps - all_of_them.train.epochs * (216 // 16) < 3


def test_a_long_tail_is_judged_by_class(cifar: Path, small, tmp_path: Path):
    row = runs.Row("tail", "supsiam", settings=(("data.imbalance", 10), ("data.balanced", True)))
    found = runs.run(row, cifar, tmp_path / "run", 1)
    assert found["images"] < 216
    assert found["by_class_size"]["linear"]["tail"]["classes"] >= 1
    assert 0 <= found["balanced"]["class means"] <= 100


def test_finished_rows_are_skipped_and_others_written(cifar: Path, small, tmp_path: Path, monkeypatch, capsys):
    out = tmp_path / "out"
    out.mkdir()
    (out / "simsiam-10%.json").write_text("{}")
    words = ["runs", "--data", str(cifar), "--out", str(out), "--epochs", "1", "--only", "simsiam-10%", "simsiam-100%"]
    monkeypatch.setattr(sys, "argv", words)
    runs.main()
    assert (out / "simsiam-10%.json").read_text() == "{}"
    assert json.loads((out / "simsiam-100%.json").read_text())["labels"] == 216
    assert (out / "runs" / "simsiam" / "finished.json").exists()
    assert "simsiam-100%" in capsys.readouterr().out


def test_the_page_holds_the_tables_of_the_kept_results():
    text = (ROOT / "docs" / "labels.md").read_text()
    for name, section in page.sections().items():
        assert f"<!-- {name} -->\n{section}<!-- end {name} -->" in text, name


def test_tables_appear_with_their_results(tmp_path: Path):
    assert set(page.sections(tmp_path).values()) == {page.few_line(tmp_path)} == {""}
    accuracy = {"linear, all labels": 70.0, "linear, its labels": 50.0, "knn, its labels": 45.0, "cifar10": 80.0}
    groups = {name: {"head": {"classes": 3, "accuracy": 60.0}} for name in ("linear", "knn", "class means")}
    balanced = dict.fromkeys(groups, 40.0)
    for name, row in runs.ROWS.items():
        result = {"method": row.method, "labelled": row.labelled, "seed": row.seed, "settings": dict(row.settings),
                  "batch": 256, "labels": 4500, "hardware": "a GPU", "accuracy": accuracy, "balanced": balanced,
                  "by_class_size": groups, "versions": {"torch": "2.0"}, "commit": "abc"}  # fmt: skip
        (tmp_path / f"{name}.json").write_text(json.dumps(result))
    step = {"name": "4 labels", "rate": 900.0, "ratio": 0.9, "middle_half": [0.8, 0.95], "rounds": 3}
    speed = {"rows": [step], "hardware": "a GPU", "versions": {"torch": "2.0"}, "commit": "abc"}
    (tmp_path / "label_steps.json").write_text(json.dumps(speed))
    rates = {"cifar-resnet18": [[[1000.0, 990.0], [1000.0, 1010.0], [1000.0, 1001.0]]]}
    (tmp_path / "two_trees.json").write_text(json.dumps({"trees": ["old", "abc"], "rates": rates, "batch": 256}))
    made = page.sections(tmp_path)
    several = "50.0 (50.0-50.0) | 45.0 (45.0-45.0) | 70.0 (70.0-70.0) | 80.0 (80.0-80.0)"
    assert f"| 10%: 4,500 | semi | {several} | 3 |" in made["few labels"]
    assert "`semi` - SupSiam is +0.0 [+0.0, +0.0] points" in page.few_line(tmp_path)
    equal = "+0.0 [+0.0, +0.0]"
    assert f"| 10%: 4,500 | semi - supsiam | {' | '.join([equal] * 4)} | 3 |" in made["few labels"]
    assert f"{len(runs.ROWS)} of {len(runs.ROWS)} planned rows are measured.\n" in made["few labels"]
    assert "| crossentropy | class means | 40.0 | 60.0 |  |  |  |" in made["long tail"]
    assert "| fine and 20 coarse classes | 70.0 | 45.0 | 80.0 |" in made["coarse labels"]
    assert "| 1 | 1,001 | commit old, which knew no others | 1.0010 | 0.9900-1.0100 (3 turns) |" in made["label speed"]
    assert "| 4 | 900 | 1 label | 0.9000 | 0.8000-0.9500 (middle half of 3 rounds) |" in made["label speed"]
    (tmp_path / "semi-10%-seed-2.json").unlink()
    assert page.sections(tmp_path)["few labels"].endswith("left: `semi-10%-seed-2`.\n")


def test_steps_with_one_label_several_and_few_take_turns(tmp_path: Path, capsys):
    folder = ROOT / "experiments" / "benchmarks"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        spec = importlib.util.spec_from_file_location("label_steps", folder / "label_steps.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        records = module.main(["--device", "cpu", "--tiny", "--rounds", "2", "--seconds", "0", "--json",
                               str(tmp_path / "kept.json")])  # fmt: skip
    assert [record["name"] for record in records] == ["4 labels", "semi, 10% of labels"]
    assert all(record["ratio"] > 0 for record in records)
    assert json.loads((tmp_path / "kept.json").read_text())["rows"][0]["least"] == 0.97
    assert "of 1 label" in capsys.readouterr().out
