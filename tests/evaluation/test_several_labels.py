"""Evaluations of images with several labels: mean average precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from supancl import pretrain
from supancl.data.opening import from_arrays
from supancl.evaluation import data as sources
from supancl.evaluation.encoder import EvaluationOptions
from supancl.probes.answers import mean_average_precision
from tests.evaluation.made import bright, knn, linear, run_folder, subject, transferred
from tests.files import archive, saved_result
from tests.tiny import tiny_recipe

CPU = torch.device("cpu")
BASELINES = EvaluationOptions(CPU, baselines=True)
NAMES = ["0", "1", "2", "3", "bright", "never"]
PROTOCOLS = {
    "knn": lambda run, data: knn(run, data, k=(5,)),
    "linear": linear,
    "transfer": lambda run, data: transferred(run, data, view="margin"),
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
    result = knn(run, k=(1, 3), temperature=1e9)
    data = sources.open_evaluation_data(run, None, "held-out", several_labels=True)
    train = data.data.train.take((data.data.train.labels >= 0).nonzero()[:, 0])
    assert result["references"] == len(train) == 114
    unit = [torch.nn.functional.normalize(run.features(split).values, dim=1) for split in (data.images, train)]
    nearest = (unit[0] @ unit[1].T).topk(3).indices
    train_labels, test_labels = (torch.zeros(len(split), 6) for split in (train, data.images))
    for matrix, split in ((train_labels, train), (test_labels, data.images)):
        for row, pairs in enumerate(split.all_labels.pairs.tolist()):
            for number, weight in pairs:
                if number >= 0:
                    matrix[row, int(number)] = weight
    votes = (train_labels / train_labels.sum(1, keepdim=True))[nearest]
    for k in (1, 3):
        expected = mean_average_precision((1e4 * votes[:, :k].mean(1)).round(), test_labels)  # equal votes are equal
        assert result["by_k"][str(k)] == pytest.approx(expected)
    assert result["map"] == result["by_k"]["1"]


def test_the_ridge_is_chosen_by_the_rules_of_one_label(run, tmp_path, monkeypatch):
    monkeypatch.setattr("supancl.probes.linear.MIN_TO_CHOOSE", 1)
    own = run_folder(tmp_path / "held", source=str(several(tmp_path / "a.npz", test=60)), data__holdout=0.2)
    assert linear(subject(own))["chosen_on"] == "other half"
    assert linear(subject(own), split="test")["chosen_on"] == "held-out"
    other = several(tmp_path / "other.npz", train=100)
    assert linear(run, str(other))["chosen_on"] == "10% of training"


def test_the_last_check_of_a_run_is_knn(tmp_path):
    images, labels = bright(80, 4)
    data = from_arrays(images, weights(labels)[:, :5], classes=NAMES[:5])
    run = pretrain(tiny_recipe("supsiam"), data, tmp_path / "run")
    last = run.metrics[-1]
    assert last["knn"] is None or last["knn"] != last["knn"]
    assert last["knn_references"] == 64
    path = archive(tmp_path / "data.npz", train_images=images, train_labels=weights(labels)[:, :5])
    result = knn(subject(run.folder), str(path))
    assert last["knn_k"] == result["k"]
    assert last["knn_map"] == pytest.approx(result["map"], abs=0.01)
