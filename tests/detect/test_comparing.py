"""Runs side by side."""

import json
from dataclasses import replace

import pytest
from PIL import Image

from supancl.cli import main
from supancl.detect.comparing import compare_runs, open_finished_runs
from supancl.detect.layouts import DetectData
from supancl.detect.saving import DetectFolder
from supancl.detect.spec import DetectSpec

SPEC = DetectSpec(batch_size=10, iters=40)


def written(path, encoder, seed, score, **changes):
    """A run folder as training leaves it, without its weights."""
    folder = DetectFolder(path)
    folder.create()
    spec = replace(SPEC, seed=seed, **changes)
    folder.write_settings({"spec": spec, "data": DetectData("data"), "encoder": encoder})
    rows = [
        {"kind": "train", "step": 20, "loss": 2.0, "images_per_second": 100.0},
        {"kind": "test", "step": 20, "AP": score / 2, "AP50": score, "AP75": 0.0, "peak_memory_gb": 3.0},
        {"kind": "train", "step": 40, "loss": 1.0, "images_per_second": 50.0},
        {"kind": "test", "step": 40, "AP": score, "AP50": 2 * score, "AP75": 1.0, "peak_memory_gb": 4.0},
    ]
    folder.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    classes = {"cat": {"AP50": 2 * score}, "dog": {"AP50": None}}
    folder.write_evaluation(
        "detect", {"AP": score, "AP50": 2 * score, "AP75": 1.0, "classes": classes, "images": 4, "boxes": 9}
    )
    return path


@pytest.fixture
def runs(tmp_path):
    for seed, (ours, nothing) in enumerate([(10.0, 4.0), (14.0, 6.0)]):
        written(tmp_path / "ours" / f"seed-{seed}", "/somewhere/crops", seed, ours)
        written(tmp_path / f"nothing-{seed}", "random:resnet18", seed, nothing)
    return tmp_path


def test_mean_spread_and_cost(runs):
    tested = [
        *open_finished_runs(str(runs / "ours")),
        *open_finished_runs(str(runs / "nothing-0")),
        *open_finished_runs(f"none={runs / 'nothing-1'}"),
    ]
    assert [run.name for run in tested] == ["crops", "crops", "random:resnet18", "none"]
    groups = compare_runs(tested)["groups"]
    assert groups["crops"]["spread"]["AP"] == {"mean": 12.0, "std": pytest.approx(8**0.5), "n": 2}
    assert groups["crops"]["classes_AP50"] == {"cat": 24.0, "dog": None}
    assert groups["none"]["spread"]["AP"]["std"] is None
    # 20 steps of 10 images at 100 images a second, then 20 at 50
    assert groups["crops"]["seconds"] == pytest.approx(2 + 4)
    assert groups["crops"]["images_per_second"] == pytest.approx(400 / 6)
    assert groups["crops"]["memory_gb"] == 4.0


def test_as_typed(runs):
    words = ["detect", "compare", f"nothing={runs / 'nothing-0'}", f"nothing={runs / 'nothing-1'}", str(runs / "ours")]
    assert main([*words, "--out", str(runs / "table"), "--json", str(runs / "told.json")]) == 0
    assert list(json.loads((runs / "told.json").read_text())["groups"]) == ["nothing", "crops"]
    page = (runs / "table" / "compare.md").read_text()
    assert "12.00 ± 2.83" in page
    for name in ("curves.png", "classes.png"):
        with Image.open(runs / "table" / name) as picture:
            assert min(picture.size) > 100
    assert main(["detect", "compare", str(runs / "nowhere"), "--out", str(runs / "table")]) == 2
