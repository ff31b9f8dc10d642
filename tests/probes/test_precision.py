"""Average precision against scikit-learn and against a loop over recalls."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from supancl.probes.answers import average_precision, bootstrap_precision, draw_counts, mean_average_precision


@pytest.mark.parametrize("levels", [5, 10_000])
def test_the_area_is_that_of_scikit_learn_also_with_equal_scores(levels):
    chance = np.random.default_rng(levels)
    for _ in range(20):
        positive, scores = chance.random(60) < 0.3, chance.integers(0, levels, 60).astype(float)
        ours = average_precision(torch.from_numpy(scores), torch.from_numpy(positive))
        assert ours == pytest.approx(average_precision_score(positive, scores), abs=1e-12)


def test_eleven_points_are_the_best_precisions_from_each_recall_on():
    chance = np.random.default_rng(1)
    for _ in range(20):
        positive, scores = chance.random(40) < 0.4, chance.permutation(40).astype(float)
        order = np.argsort(-scores)
        hits = np.cumsum(positive[order])
        precision, recall = hits / np.arange(1, 41), hits / positive.sum()
        expected = np.mean([precision[recall >= level / 10 - 1e-12].max() for level in range(11)])
        ours = average_precision(torch.from_numpy(scores), torch.from_numpy(positive), "11-point")
        assert ours == pytest.approx(expected, abs=1e-12)


def test_classes_without_an_image_do_not_count():
    scores = torch.tensor([[0.9, 0.2, 0.5], [0.1, 0.8, 0.5]])
    targets = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.4, 0.0]])
    assert mean_average_precision(scores, targets) == 100
    assert math.isnan(mean_average_precision(scores, torch.zeros(2, 3)))


# --- draws of images --------------------------------------------------------------------------------------------------


def test_a_draw_is_the_mean_average_precision_of_the_images_that_it_has():
    random = torch.Generator().manual_seed(3)
    scores = torch.randint(0, 6, (20, 3), generator=random) / 6  # with ties
    targets = torch.rand(20, 3, generator=random) < torch.tensor([0.5, 0.2, 0.05])
    targets[0, 2] = True
    draws = bootstrap_precision(scores, targets, draws=30)
    counts = torch.cat(list(draw_counts(20, draws=30)), 1)
    assert counts.sum(0).tolist() == [20] * 30
    for number in range(30):
        rows = torch.repeat_interleave(torch.arange(20), counts[:, number].long())
        assert float(draws[number]) == pytest.approx(mean_average_precision(scores[rows], targets[rows]))


@pytest.mark.parametrize("kind", ["area", "11-point"])
def test_a_class_without_a_positive_image_has_no_precision(kind) -> None:
    assert math.isnan(average_precision(torch.rand(4), torch.zeros(4, dtype=torch.bool), kind))
