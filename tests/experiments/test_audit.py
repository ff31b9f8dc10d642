"""How well wrong labels are found: the rows, the rules, one run, the tables in the documentation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from experiments.audit import page, runs
from experiments.audit.ranking import roc_area
from supancl.data.label_noise import flip_labels
from supancl.probes.features import Features
from supancl.probes.precision import average_precision
from tests.files import archive, noise

ROOT = Path(__file__).parents[2]


def test_areas_are_those_of_scikit_learn():
    chance = np.random.default_rng(0)
    is_wrong, score = chance.random(500) < 0.2, chance.integers(0, 400, 500) / 40.0
    distinct = chance.permutation(500) / 500.0
    ours = roc_area(torch.from_numpy(score), torch.from_numpy(is_wrong))
    np.testing.assert_allclose(ours, roc_auc_score(is_wrong, score), rtol=1e-12)
    ours = average_precision(torch.from_numpy(distinct), torch.from_numpy(is_wrong))
    np.testing.assert_allclose(ours, average_precision_score(is_wrong, distinct), rtol=1e-12)


def test_every_rule_finds_wrong_labels_of_separate_clusters(monkeypatch):
    monkeypatch.setattr(runs, "CLASSES", 5)
    chance = torch.Generator().manual_seed(0)
    truth = torch.arange(5).repeat(60)
    values = torch.eye(5).repeat(1, 4)[truth] + 0.2 * torch.randn(300, 20, generator=chance)
    labels = flip_labels(truth, 5, 0.2)
    ranks, kept = runs.ranked(Features(values, labels), labels != truth)
    assert min(area for halves in ranks.values() for area, _ in halves) > 0.95
    torch.testing.assert_close(kept["logistic"].float().sum(1), torch.ones(300), atol=1e-2, rtol=0)


def test_rows_are_the_planned_ones_and_their_recipes_record_the_noise():
    assert len(runs.ROWS) == 11
    settings = {name: row.recipe(60) for name, row in runs.ROWS.items()}
    pair = settings["supsiam-0.5-pair-0.2"]
    assert (pair.data.label_noise, pair.data.label_noise_kind, pair.loss.alpha) == (0.2, "pair", 0.5)
    assert settings["simsiam-symmetric-0.2"].data.label_noise == 0.2


def test_a_run_is_trained_on_wrong_labels_and_evaluated_on_right_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "CLASSES", 4)
    images, labels = noise(80, 32, 32, 3), np.arange(80) % 4
    archive(tmp_path / "cifar100.npz", train_images=images, train_labels=labels, test_images=images[:20],
            test_labels=labels[:20])  # fmt: skip
    row = runs.Row("crossentropy", 0.25)
    narrow = row.recipe(1).with_set({"encoder.name": "cnn", "encoder.width": 8, "train.batch_size": 16})
    monkeypatch.setattr(runs.Row, "recipe", lambda self, epochs: narrow)
    found, kept = runs.run(row, tmp_path, tmp_path / "run", 1)
    assert (found["wrong"], found["images"]) == (20, 80)
    assert int(kept["is_wrong"].sum()) == 20
    assert set(found["accuracy"]) == {"linear", "linear on wrong labels", "knn"}
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["recipe"]["data"]["label_noise"] == 0.25


def test_the_pages_hold_the_tables_of_the_kept_results():
    results = page.read_results()
    assert page.found_table(results) in (ROOT / "docs" / "audit.md").read_text()
    assert page.accuracy_table(results) in (ROOT / "RESULTS.md").read_text()


def test_supsiam_and_cross_entropy_are_compared_where_both_have_the_same_wrong_labels():
    accuracies = [("supsiam", 0.5, 0.2, 70.0), ("crossentropy", None, 0.2, 68.5), ("supsiam", 0.5, 0.4, 60.0)]
    results = [
        {
            "method": method,
            "alpha": alpha,
            "noise": noise,
            "kind": "pair",
            "accuracy": {"linear": value, "cifar10": 50.0},
        }
        for method, alpha, noise, value in accuracies
    ]
    assert "20% pair +1.5 / +0.0." in page.noise_findings(results)
    assert "40%" not in page.noise_findings(results)
    assert page.noise_findings(results[:1]) == ""
