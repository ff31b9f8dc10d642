"""The monitor's last check and `supancl evaluate` measure the same: same pixels, same references, same numbers."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression

from supancl.probes import Features
from supancl.probes.linear import USUAL_RIDGE
from supancl.training.monitor import linear_accuracy
from supancl.training.trainer import Trainer
from tests.helpers import supancl, tiny_data, tiny_recipe
from tests.probes.blobs import blobs

CPU = torch.device("cpu")
SMALL = [
    "--epochs", "3", "--device", "cpu", "--batch-size", "8", "--set", "encoder.name=cnn", "--set", "encoder.width=8",
    "--set", "pool.size=16", "--set", "schedule.warmup_epochs=0", "--set", "train.monitor_every=2",
    "--set", "data.holdout=0.4", "--set", "heads.projector.hidden=[16]", "--set", "heads.projector.out=16",
    "--set", "heads.predictor.hidden=[8]", "--set", "heads.predictor.out=16",
]  # fmt: skip


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes that differ by the direction of their stripes, in images of any shape, most of them not square."""
    root, each = tmp_path_factory.mktemp("photographs"), 30
    draw = np.random.default_rng(0)
    for number, name in enumerate(("across", "down", "slanted")):
        (root / name).mkdir(parents=True)
        for i in range(each):
            height, width = draw.integers(50, 150, 2)
            y, x = np.mgrid[:height, :width]
            phase = (y, x, x + y)[number] / draw.uniform(2.2, 6)
            noise = draw.normal(0, 60, (height, width, 3))
            pixels = 128 + 50 * np.sin(phase)[..., None] * draw.uniform(0.2, 1, 3) + noise
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / name / f"{i}.png")
    return root


def checks(run: Path) -> list[dict]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == "monitor"]


def result(run: Path, name: str) -> dict:
    return json.loads((run / "evaluate" / f"{name}.json").read_text())


@pytest.mark.parametrize("source", ["photographs", "digits"])
def test_evaluate_finds_what_the_last_check_found(source, photographs, tmp_path, capsys):
    run = tmp_path / "run"
    if source == "digits":
        words = ["digits.supsiam", "--epochs", "1", "--device", "cpu", "--set", "encoder.width=16"]
    else:
        words = ["cifar100.supsiam", "--data", photographs, *SMALL]
    assert supancl(capsys, "pretrain", *words, "--out", run).code == 0
    last = checks(run)[-1]
    for protocol in ("knn", "variance"):
        assert supancl(capsys, "evaluate", protocol, run, "--device", "cpu").code == 0
    found = result(run, "knn" if last["knn_k"] == 20 else f"knn-k{last['knn_k']}")
    assert (found["accuracy"], found["k"]) == (last["knn"], last["knn_k"])
    assert found["accuracy_interval"] == last["knn_interval"]
    assert (found["references"], found["queries"]) == (last["knn_references"], last["knn_queries"])
    assert 0 < last["knn"] < 100  # a number that other pixels could change
    assert result(run, "variance")["within"] == pytest.approx(last["s_w"], rel=1e-12)


def test_an_earlier_check_may_take_a_sample(photographs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("supancl.training.monitor.MAX_IMAGES", 25)
    run = tmp_path / "run"
    supancl(capsys, "pretrain", "cifar100.supsiam", "--data", photographs, *SMALL, "--out", run)
    first, last = checks(run)
    assert (first["epoch"], first["knn_references"], first["linear_references"]) == (1, 25, 25)
    assert (last["epoch"], last["knn_references"], last["linear_references"]) == (2, 54, 25)


# --- the linear classifier ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_the_live_classifier_is_scikit_learns_at_that_ridge(seed):
    fit, test = blobs(300, seed=seed), blobs(2000, seed=seed + 100)
    mean, scale = fit.values.mean(0), fit.values.std(0, correction=0)

    def rows(features):
        values = (features.values - mean) / scale
        return torch.cat([values, torch.ones(len(values), 1)], 1).double().numpy()

    strength = 1 / (2 * USUAL_RIDGE * len(fit.labels))
    model = LogisticRegression(C=strength, fit_intercept=False, max_iter=5000, tol=1e-8)
    model.fit(rows(fit), fit.labels.numpy())
    expected = 100 * model.score(rows(test), test.labels.numpy())
    assert linear_accuracy(fit, test, chooses=False) == pytest.approx(expected, abs=0.25)


def test_without_two_classes_or_a_labelled_image_there_is_no_classifier():
    values, one, none = torch.randn(6, 4), torch.zeros(6, dtype=torch.long), torch.full((6,), -1)
    two = torch.arange(6) % 2
    assert np.isnan(linear_accuracy(Features(values, one), Features(values, two)))
    assert np.isnan(linear_accuracy(Features(values, two), Features(values, none)))
    assert linear_accuracy(Features(values, two), Features(values, two + 5)) == 0.0  # classes never met
    ours, others = Features(values, two), Features(values, 5 * two + 3)
    assert linear_accuracy(others, others) == linear_accuracy(ours, ours) > 0  # labels may have gaps


def test_a_check_draws_nothing_from_anybodys_random_numbers():
    data = tiny_data(90)
    trainer = Trainer(tiny_recipe(), data, CPU)
    states = torch.get_rng_state(), trainer.model.generator.get_state(), random.getstate()
    rows = [
        trainer.monitor.measure(trainer.model.branches.encoder, torch.empty(0, 8), None, CPU, last=last)
        for last in (False, True, False)
    ]
    assert rows[0] == rows[2]
    assert torch.equal(torch.get_rng_state(), states[0])
    assert torch.equal(trainer.model.generator.get_state(), states[1])
    assert random.getstate() == states[2]
