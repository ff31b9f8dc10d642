"""Evaluations of images with several labels (mean average precision) and of hierarchies (accuracy on each level)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from supancl import pretrain
from supancl.data.levels import list_levels
from supancl.data.opening import from_arrays
from supancl.data.splits import Source
from supancl.evaluation import (
    EpisodeSettings,
    EvaluationOptions,
    FineTuning,
    evaluate_few_shot,
    evaluate_finetuning,
    evaluate_knn,
    evaluate_linear,
    evaluate_transfer,
    evaluate_variance,
    sources,
)
from supancl.evaluation.audit import audit_labels
from supancl.evaluation.predicting import PredictSettings, predict_labels
from supancl.probes.precision import mean_average_precision
from supancl.reports.maps import MapRequest, choose_images
from tests.evaluation.made import bright, run_folder, subject
from tests.files import archive, saved_result
from tests.tiny import tiny_recipe

CPU = torch.device("cpu")
BASELINES = EvaluationOptions(CPU, baselines=True)
NAMES = ["0", "1", "2", "3", "bright", "never"]
PROTOCOLS = {
    "knn": lambda run, data: evaluate_knn(run, data, ks=(5,)),
    "linear": evaluate_linear,
    "transfer": lambda run, data: evaluate_transfer(run, data, view="margin"),
}


def weights(labels: np.ndarray) -> np.ndarray:
    """The brightness of an image, and whether it is in the upper half; some of weight 0.5, no image of class 5."""
    matrix = np.zeros((len(labels), 6))
    matrix[np.arange(len(labels)), labels] = 1
    matrix[:, 4] = 0.5 * (labels >= 2)
    return matrix


def several(path, train: int = 120, test: int = 60, unlabelled: int = 0):
    arrays = {"class_names": NAMES}
    for seed, (name, size) in enumerate((("train", train), ("test", test))):
        images, labels = bright(size, 4, seed)
        arrays |= {f"{name}_images": images, f"{name}_labels": weights(labels)}
    arrays["train_labels"][:unlabelled] = -1
    return archive(path, **arrays)


@pytest.fixture
def run(tmp_path):
    path = several(tmp_path / "several.npz", unlabelled=6)
    return subject(run_folder(tmp_path / "run", seed=3, source=str(path), described=True), BASELINES)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_result_is_the_map_with_everything_that_says_how_much_it_means(run, tmp_path, protocol):
    path = str(tmp_path / "several.npz")
    result = PROTOCOLS[protocol](run, path)
    assert "accuracy" not in result
    assert result["map"] > result["chance"] + 10
    low, high = result["map_interval"]
    assert low < result["map"] < high
    assert abs(result["map_11_point"] - result["map"]) < 10
    assert result["untested_classes"] == 1
    assert result["tested_images"] == 60
    assert result["classes"] == 5
    assert result["chance"] == pytest.approx(100 * (4 * 0.25 + 0.5) / 5)
    (random,) = result["baselines"]
    assert random["difference"] == pytest.approx(result["map"] - random["map"])
    assert random["map_interval"][0] < random["map"]
    assert "accuracy" not in random
    name = {"knn": "knn-k5", "linear": "linear", "transfer": "transfer-several-margin"}[protocol]
    assert saved_result(tmp_path / "run" / "evaluate" / f"{name}.json")["map"] == result["map"]


def test_knn_by_hand(run, tmp_path):
    """Votes of labelled references only; weight 0.5 counts half in a vote, and as a label in the test."""
    result = evaluate_knn(run, ks=(1, 3), temperature=1e9)
    data = sources.open_evaluation_data(run, None, "held-out", several_labels=True)
    train = data.data.train.take((data.data.train.labels >= 0).nonzero()[:, 0])
    assert result["references"] == len(train) == 114
    unit = [torch.nn.functional.normalize(run.features(split).values, dim=1) for split in (data.images, train)]
    nearest = (unit[0] @ unit[1].T).topk(3).indices
    train_labels, test_labels = (torch.zeros(len(split), 6) for split in (train, data.images))
    for matrix, split in ((train_labels, train), (test_labels, data.images)):
        for row, pairs in enumerate(split.pairs.tolist()):
            for number, weight in pairs:
                if number >= 0:
                    matrix[row, int(number)] = weight
    votes = (train_labels / train_labels.sum(1, keepdim=True))[nearest]
    for k in (1, 3):
        expected = mean_average_precision((1e4 * votes[:, :k].mean(1)).round(), test_labels)  # equal votes are equal
        assert result["by_k"][str(k)] == pytest.approx(expected)
    assert result["map"] == result["by_k"]["1"]


def test_leave_one_out_and_a_class_without_training_images(run, tmp_path):
    assert evaluate_knn(run, ks=(3,), leave_one_out=True)["references"] == 60
    images, labels = bright(60, 4, 1)
    new = weights(labels)
    new[0, 5] = 1
    train = weights(bright(120, 4)[1])
    path = archive(
        tmp_path / "new.npz",
        train_images=bright(120, 4)[0],
        train_labels=train,
        test_images=images,
        test_labels=new,
        class_names=NAMES,
    )
    assert evaluate_knn(run, str(path), ks=(3,))["untested_classes"] == 0
    for protocol in PROTOCOLS.values():
        assert protocol(run, str(path))["untested_classes"] == 0


def test_the_ridge_is_chosen_by_the_rules_of_one_label(run, tmp_path):
    own = run_folder(tmp_path / "held", source=str(several(tmp_path / "a.npz", test=60)), data__holdout=0.2)
    assert evaluate_linear(subject(own))["chosen_on"] == "other half"
    assert evaluate_linear(subject(own), split="test")["chosen_on"] == "held-out"
    other = several(tmp_path / "other.npz", train=100)
    assert evaluate_linear(run, str(other))["chosen_on"] == "10% of training"


def test_the_last_check_of_a_run_is_evaluate_knn(tmp_path):
    images, labels = bright(80, 4)
    data = from_arrays(images, weights(labels)[:, :5], classes=NAMES[:5])
    run = pretrain(tiny_recipe("supsiam"), data, tmp_path / "run")
    last = run.metrics[-1]
    assert last["knn"] is None or last["knn"] != last["knn"]
    assert last["knn_references"] == 72
    path = archive(tmp_path / "data.npz", train_images=images, train_labels=weights(labels)[:, :5])
    result = evaluate_knn(subject(run.folder), str(path), ks=None)
    assert last["knn_k"] == result["k"]
    assert last["knn_map"] == pytest.approx(result["map"], abs=0.01)


# --- hierarchies ------------------------------------------------------------------------------------------------------

LEVELS = (1, 1, 1, 1, 0, 0)  # four brightnesses, dark and light
PATHS = ["dark/0", "dark/1", "light/2", "light/3", "dark", "light"]


@pytest.fixture
def hierarchy(tmp_path, monkeypatch):
    """A run and its data: four brightnesses on level 1, dark and light on level 0, and one image without a level 1."""
    opened = sources.open_source

    def open_with_levels(*arguments, **named) -> Source:
        source = opened(*arguments, **named)
        return replace(source, levels=LEVELS) if len(source.classes) == 6 else source

    monkeypatch.setattr(sources, "open_source", open_with_levels)
    arrays = {"class_names": PATHS}
    for seed, (name, size) in enumerate((("train", 120), ("val", 60), ("test", 60))):
        images, labels = bright(size, 4, seed)
        matrix = np.zeros((size, 6))
        matrix[np.arange(size), labels] = 1
        matrix[np.arange(size), 4 + (labels >= 2)] = 1
        arrays |= {f"{name}_images": images, f"{name}_labels": matrix}
    for name in ("val_labels", "test_labels"):
        arrays[name][0, :4] = 0
    path = archive(tmp_path / "levels.npz", **arrays)
    return subject(run_folder(tmp_path / "run", seed=3, source=str(path), described=True), BASELINES), path


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_each_level_is_the_evaluation_of_its_labels_alone(hierarchy, tmp_path, protocol):
    run, path = hierarchy
    with np.load(path) as content:
        arrays = dict(content)
    result = PROTOCOLS[protocol](run, str(path))
    assert [(level["level"], level["classes"], level["images"]) for level in result["levels"]] == [
        (0, 2, 60),
        (1, 4, 59),
    ]
    assert result["accuracy"] == result["levels"][1]["accuracy"]
    assert result["levels"][1]["accuracy_interval"] == result["accuracy_interval"]
    assert result["classes"] == 4
    for level, columns in ((0, slice(4, 6)), (1, slice(0, 4))):
        alone = {name: arrays[name][:, columns] for name in ("train_labels", "val_labels", "test_labels")}
        labels = {name: np.where(matrix.any(1), matrix.argmax(1), -1) for name, matrix in alone.items()}
        flat = archive(
            tmp_path / f"flat{level}.npz", **{**arrays, **labels, "class_names": arrays["class_names"][columns]}
        )
        own = subject(run_folder(tmp_path / f"run{level}", seed=3, source=str(flat)))
        expected = PROTOCOLS[protocol](own, str(flat))
        assert "levels" not in expected
        assert result["levels"][level]["accuracy"] == pytest.approx(expected["accuracy"], abs=1e-6)


def test_what_needs_one_label_takes_the_leaves(hierarchy):
    run, path = hierarchy
    assert evaluate_variance(run)["spread"].keys() == set(PATHS[:4])
    tuned = evaluate_finetuning(run, settings=FineTuning(epochs=1, lrs=(0.01,)))
    assert (tuned["classes"], tuned["queries"]) == (4, 59)
    shots = evaluate_few_shot(run, str(path), EpisodeSettings(ways=4, shots=1, queries=2, episodes=5))
    assert shots["classes"] == 4
    predicted = predict_labels(run, str(path), PredictSettings(every_image=True))
    assert set(predicted.classes) == set(PATHS[:4])
    assert predicted.summary["compared"] == 238
    audit = audit_labels(run)
    assert audit.images.classes == tuple(PATHS[:4])
    assert audit.summary["labelled"] == 238


def test_the_images_held_out_are_those_of_the_run(tmp_path, monkeypatch):
    """They are drawn by all levels together, not by the labels that are judged."""
    images, labels = bright(100, 4)
    matrix = np.eye(6)[labels] + np.eye(6)[4 + (labels >= 2)]
    data = replace(from_arrays(images, matrix, classes=PATHS), levels=LEVELS)
    trained = pretrain(tiny_recipe("supsiam"), data, tmp_path / "run")
    assert trained.metrics[-1]["knn_queries"] == len(data.held_out)
    path = archive(tmp_path / "data.npz", train_images=images, train_labels=matrix, class_names=PATHS)
    opened = sources.open_source
    monkeypatch.setattr(sources, "open_source", lambda *args: replace(opened(*args), levels=LEVELS))
    evaluation = sources.open_evaluation_data(subject(trained.folder), str(path), "held-out")
    assert torch.equal(evaluation.images.index, data.held_out.index)
    result = evaluate_knn(subject(trained.folder), str(path), ks=None)
    assert trained.metrics[-1]["knn"] == pytest.approx(result["accuracy"])
    assert trained.metrics[-1]["linear"] > 25


def test_levels_of_a_source_number_their_own_classes():
    images, labels = bright(20, 4)
    matrix = np.eye(6)[labels] + np.eye(6)[4 + (labels >= 2)]
    data = replace(from_arrays(images, matrix, classes=PATHS), levels=LEVELS)
    coarse, fine = (level.take(data) for level in list_levels(data))
    assert (coarse.classes, fine.classes) == (("dark", "light"), tuple(PATHS[:4]))
    rows = data.train.index
    assert coarse.train.labels.tolist() == (labels[rows] >= 2).astype(int).tolist()
    assert fine.train.labels.tolist() == labels[rows].tolist()
    assert list_levels(fine) == []


def test_maps_and_audits_know_the_images_that_the_run_held_out(tmp_path, monkeypatch):
    images, labels = bright(100, 4)
    matrix = np.eye(6)[labels] + np.eye(6)[4 + (labels >= 2)]
    path = str(archive(tmp_path / "data.npz", train_images=images, train_labels=matrix, class_names=PATHS))
    opened = sources.open_source
    monkeypatch.setattr(sources, "open_source", lambda *args: replace(opened(*args), levels=LEVELS))
    run = subject(run_folder(tmp_path / "run", source=path, described=True))
    held_out = sources.data_for(run, None).held_out
    audited = audit_labels(run).images
    source = sources.read_source(run, sources.spec_for(run, path), "margin")
    shown, is_held_out = choose_images(run, source, MapRequest(path))
    assert audited.classes == shown.classes == tuple(PATHS[:4])
    assert sorted(held_out.index.tolist()) == is_held_out.nonzero()[:, 0].tolist()
    assert audited.split_names.count("held-out") == len(held_out) > 0
