"""Evaluations of images with several labels: mean average precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from supancl.evaluation.encoder import EvaluationOptions
from tests.evaluation.made import bright, knn, linear, run_folder, subject, transferred
from tests.helpers import archive, saved_result

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
