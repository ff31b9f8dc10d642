"""Seed statistics and intervals against scipy's, and what is said where there are too few values."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
import torch
from scipy import stats

from supancl.stats import (
    Interval,
    episode_half_width,
    mean_interval,
    paired_accuracy_interval,
    wilson_interval,
)

OURS = [70.1, 70.9, 70.2, 71.4]


def test_the_interval_of_a_mean_is_students() -> None:
    low, high = stats.t.interval(0.95, 3, loc=statistics.fmean(OURS), scale=stats.sem(OURS))
    assert mean_interval(OURS) == pytest.approx((statistics.fmean(OURS), low, high))
    assert mean_interval([1.0]) == Interval(1.0, -math.inf, math.inf)


def test_intervals_over_episodes() -> None:
    accuracies = torch.tensor([60.0, 80.0, 70.0, 90.0])
    assert episode_half_width(accuracies) == pytest.approx(1.96 * np.std(accuracies.numpy()) / 2)


# --- accuracies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("correct", "images"), [(0, 1), (1, 1), (3, 12), (12, 12), (0, 7), (70, 450), (449, 450)])
def test_wilsons_interval_is_the_set_of_accuracies_that_the_score_test_accepts(correct: int, images: int) -> None:
    found = wilson_interval(100 * correct / images, images)
    expected = stats.binomtest(correct, images).proportion_ci(0.95, "wilson")
    assert found[1:] == pytest.approx((100 * expected.low, 100 * expected.high), abs=1e-9)
    assert 0 <= found.low <= found.mean <= found.high <= 100


def naive_paired(ours: list[bool], theirs: list[bool]) -> tuple[float, float, float]:
    """Agresti and Min: half an image more in each cell of the 2 x 2 table, then the normal interval."""
    table = {(a, b): 0.5 for a in (True, False) for b in (True, False)}
    for pair in zip(ours, theirs, strict=True):
        table[pair] += 1
    total, only_ours, only_theirs = len(ours) + 2, table[True, False], table[False, True]
    centre = (only_ours - only_theirs) / total
    error = math.sqrt(only_ours + only_theirs - (only_ours - only_theirs) ** 2 / total) / total
    half = stats.norm.ppf(0.975) * error
    low, high = max(-1, centre - half), min(1, centre + half)
    return (sum(ours) - sum(theirs)) / len(ours) * 100, 100 * low, 100 * high


@pytest.mark.parametrize("images", [1, 5, 40, 450])
def test_a_difference_on_the_same_images_is_agresti_and_mins(images: int) -> None:
    random = np.random.default_rng(images)
    ours, theirs = ((random.random(images) < share).tolist() for share in (0.7, 0.5))
    assert paired_accuracy_interval(ours, theirs) == pytest.approx(naive_paired(ours, theirs), abs=1e-9)
    equal = paired_accuracy_interval(ours, ours)
    assert equal.mean == 0
    assert equal.low < 0 < equal.high  # equal answers on few images do not prove equal encoders
