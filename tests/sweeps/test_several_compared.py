"""`supancl compare` and `sweep` of images with several labels: their mAP in the table, the files and the sentences."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from supancl.stats import mean_interval
from tests.evaluation.made import bright
from tests.helpers import archive, supancl

SMALL = [
    "--epochs", "1", "--batch-size", "16", "--device", "cpu", "--jobs", "1", "--set", "encoder.width=8",
    "--set", "pool.size=16", "--set", "schedule.warmup_epochs=0", "--set", "data.holdout=0.25", "--out", "out",
]  # fmt: skip


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with several.npz: four brightnesses, and dark or light."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SUPANCL_CACHE", str(tmp_path / "cache"))
    images, labels = bright(160, 4)
    matrix = np.eye(6)[labels] + 0.5 * np.eye(6)[4 + (labels >= 2)]
    names = ["a", "b", "c", "d", "dark", "light"]
    archive(tmp_path / "several.npz", train_images=images, train_labels=matrix, class_names=names)
    return tmp_path


def test_compare_gives_the_map_of_each_recipe_with_paired_intervals(place, capsys):
    words = ["compare", "digits.simsiam", "digits.supsiam", "--data", "several.npz", "--seeds", 2, *SMALL]
    said = supancl(capsys, *words)
    assert said.code == 0, said.err
    result = json.loads(Path("out/results.json").read_text())
    assert result["compared_by"] == "linear mAP"
    for row in result["rows"]:
        assert not {"knn", "linear", "ratio"} & row.keys()
        run = f"out/{row['row']}-seed-{row['seed']}"
        evaluated = supancl(capsys, "evaluate", "knn", run, "--no-baselines", "--device", "cpu", "--json", "knn.json")
        assert evaluated.code == 0, evaluated.err
        knn = json.loads(Path("knn.json").read_text())
        assert row["knn_map"] == knn["map"]
    values = {name: [row["linear_map"] for row in result["rows"] if row["row"] == name] for name in words[1:3]}
    gaps = np.subtract(values["digits.supsiam"], values["digits.simsiam"]).tolist()
    (difference,) = result["differences"]
    assert (difference["mean"], difference["low"], difference["high"]) == pytest.approx(mean_interval(gaps))
    assert f"{np.mean(values['digits.supsiam']):.2f}" in Path("out/results.md").read_text()
