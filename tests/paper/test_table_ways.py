"""Which of several measurements a table takes: probes, splits, layers and detectors are never mixed in a ranking."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from supancl import recipe
from supancl.config import to_json
from supancl.detection import detect_spec
from supancl.evaluation import TRAINED_IMAGES
from supancl.paper.results import Entry
from supancl.runs.folder import RunFolder
from tests.paper.test_tables import IMAGENET, laid, make_run


def linear(value: float, probe: str = "lbfgs", split: str = "held-out", judged: str = "train") -> dict[str, Any]:
    return {
        "protocol": "linear",
        "base": "linear",
        "probe": probe,
        "split": split,
        "judged": judged,
        "accuracy": value,
        "chosen_on": "other half",
    }


def cells(filled: Any, column: str) -> dict[str, float]:
    return {line.row: line.ours[column].mean for line in filled.lines if column in line.ours}


# --- probes and splits ------------------------------------------------------------------------------------------------


def test_the_probe_of_table_4_is_the_papers_where_both_were_run(tmp_path: Path) -> None:
    both = {"linear": linear(80.0), "linear-sgd": linear(79.0, "sgd")}
    run = make_run(tmp_path / "a", recipe(IMAGENET), both)
    assert cells(laid("4", run), "linear") == {"supsiam": 79.0}
    assert cells(laid("1", run), "linear") == {"alpha-0.5": 80.0}


def test_seeds_of_different_probes_are_not_averaged(tmp_path: Path) -> None:
    for seed, result in enumerate((linear(70.0), linear(72.0), linear(10.0, "sgd"))):
        make_run(tmp_path / f"{seed}", recipe(IMAGENET).with_set({"train.seed": seed}), {"linear": result})
    (line,) = (line for line in laid("4", *sorted(tmp_path.iterdir())).lines if line.ours)
    assert (line.ours["linear"].mean, line.ours["linear"].n) == (71.0, 2)


@pytest.mark.parametrize("table", ["1", "8"])
def test_a_result_on_test_images_comes_before_one_on_held_out_images(table: str, tmp_path: Path) -> None:
    column = "linear" if table == "1" else "knn"
    held_out = linear(80.0) | {"protocol": column, "base": column}
    run = make_run(tmp_path / "a", recipe("cifar100.supsiam"), {column: held_out})
    assert set(cells(laid(table, run), column).values()) == {80.0}
    RunFolder(run).write_evaluation(f"{column}-test", held_out | {"split": "test", "judged": "test", "accuracy": 77.0})
    assert set(cells(laid(table, run), column).values()) == {77.0}


def test_ridges_chosen_on_other_kinds_of_images_are_not_ranked_together(tmp_path: Path) -> None:
    of = {
        "supsiam": linear(70.0),
        "simsiam": linear(60.0),
        "byol": linear(90.0) | {"chosen_on": TRAINED_IMAGES},
    }
    for method, result in of.items():
        make_run(tmp_path / method, recipe(f"imagenet100.{method}"), {"linear": result})
    filled = laid("4", *sorted(tmp_path.iterdir()))
    assert {line.row: line.rankings.get("linear") for line in filled.lines if line.ours} == {
        "supsiam": 0,
        "simsiam": 1,
        "byol": None,
    }


def test_what_was_measured_before_the_run_was_trained_further_is_in_no_table(tmp_path: Path, monkeypatch) -> None:
    run = make_run(tmp_path / "a", recipe(IMAGENET), {"linear": linear(80.0) | {"weights": "of before"}})
    assert cells(laid("1", run), "linear") == {"alpha-0.5": 80.0}  # evaluations may travel without their encoder
    monkeypatch.setattr(Entry, "encoder_checksum", "of now")
    assert cells(laid("1", run), "linear") == {}


# --- CIFAR, crossed ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    ["cifar100@data", "data/cifar100.npz", "torchvision:CIFAR100@data", "hf:uoft-cs/cifar100"],
)
def test_crossed_data_are_known_by_their_name(source: str, tmp_path: Path) -> None:
    crossed = linear(55.0) | {"base": "linear-cifar100-1a2b3c", "source": source, "data": source}
    both = {"linear-cifar100-1a2b3c": crossed, "linear": linear(90.0)}
    run = make_run(tmp_path / "a", recipe("cifar10.supsiam"), both)
    (line,) = (line for line in laid("H.1", run).lines if line.ours)
    assert {column: score.mean for column, score in line.ours.items()} == {
        "linear:cifar10": 90.0,
        "linear:cifar100": 55.0,
    }


# --- variance ---------------------------------------------------------------------------------------------------------


def test_projector_features_of_training_images_come_first(tmp_path: Path) -> None:
    held_out = {"protocol": "variance", "within": 0.3, "ratio": 0.6, "split": "held-out", "layer": "pooled"}
    run = make_run(tmp_path / "a", recipe(IMAGENET), {"variance": held_out})
    assert cells(laid("1", run), "within") == {"alpha-0.5": 0.3}
    projector = held_out | {"base": "variance", "layer": "projector", "split": "train", "within": 0.1, "ratio": 0.2}
    RunFolder(run).write_evaluation("variance-train-layer-projector", projector)
    other = held_out | {"base": "variance", "layer": "layer3", "within": 9.0, "ratio": 9.0}
    RunFolder(run).write_evaluation("variance-layer-layer3", other)
    filled = laid("1", run)
    assert cells(filled, "within") == {"alpha-0.5": 0.1}
    assert cells(filled, "ratio") == {"alpha-0.5": pytest.approx(20.0)}


# --- detectors --------------------------------------------------------------------------------------------------------


def make_detector(folder: Path, encoder: str, ap: float, seed: int = 0, weights: str = "", **fields: Any) -> Path:
    """A detector's folder as far as the tables read it."""
    spec = detect_spec("c4", {"seed": seed, "iters": 4, **fields})
    settings = {"schema_version": 1, "spec": to_json(spec), "encoder": encoder, "weights": weights, "classes": ["a"]}
    settings |= {"data": {"root": "/data", "year": "2012", "test": "", "images": ""}, "fingerprint": "f"}
    (folder / "evaluate").mkdir(parents=True)
    (folder / "detect.json").write_text(json.dumps(settings))
    scores = {"AP": ap, "AP50": ap + 20, "AP75": ap, "classes": {}, "images": 2, "data": "VOC2012 val in /data"}
    (folder / "evaluate" / "detect.json").write_text(json.dumps(scores))
    return folder


def test_a_detector_fills_table_4_of_the_run_it_began_from(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "a", recipe(IMAGENET))
    detector = make_detector(tmp_path / "d", str(run / "encoder.safetensors"), 50.0)
    for given in ((run, detector), (detector,)):  # the run that it names is found
        filled = laid("4", *given)
        assert (cells(filled, "ap"), cells(filled, "ap50")) == ({"supsiam": 50.0}, {"supsiam": 70.0})
    file = detector / "evaluate" / "detect.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"AP": 12.5}))
    assert cells(laid("4", run, detector), "ap") == {"supsiam": 12.5}


def test_a_detector_of_a_moved_run_is_known_by_its_weights(tmp_path: Path, monkeypatch) -> None:
    run = make_run(tmp_path / "runs" / "a", recipe(IMAGENET))
    monkeypatch.setattr(Entry, "encoder_checksum", "aaaa")
    moved = make_detector(tmp_path / "moved", "/gone/run", 50.0, weights="aaaa")
    assert cells(laid("4", run, moved), "ap") == {"supsiam": 50.0}
    stale = make_detector(tmp_path / "stale", str(run), 60.0, weights="bbbb")
    assert not cells(laid("4", run, stale), "ap")
