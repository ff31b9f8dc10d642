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
    PooledDeviation,
    accuracy_half_width,
    difference_interval,
    episode_half_width,
    mean_interval,
    pooled_deviation,
    seed_stats,
    seed_stats_numpy,
    tukey_half_width,
    welch_interval,
)

OURS, THEIRS = [70.1, 70.9, 70.2, 71.4], [68.0, 69.1, 68.5]


def test_the_two_spellings_of_a_mean_agree_up_to_rounding_and_keep_their_bits() -> None:
    assert seed_stats(OURS) == (statistics.fmean(OURS), statistics.stdev(OURS))
    assert seed_stats(OURS, statistics.mean).mean == statistics.mean(OURS)
    assert seed_stats_numpy(OURS) == (np.mean(OURS), np.std(OURS, ddof=1))
    assert seed_stats(OURS) == pytest.approx(seed_stats_numpy(OURS), rel=1e-14)


@pytest.mark.parametrize(("values", "mean"), [([], math.nan), ([2.0], 2.0), ([1.0, math.nan], math.nan)])
def test_too_few_values_have_no_deviation(values: list[float], mean: float) -> None:
    assert seed_stats(values) == pytest.approx((mean, math.nan), nan_ok=True)
    assert values == [] or math.isnan(mean) or math.isnan(seed_stats_numpy(values).sd)


def test_the_interval_of_a_mean_is_students() -> None:
    low, high = stats.t.interval(0.95, 3, loc=statistics.fmean(OURS), scale=stats.sem(OURS))
    assert mean_interval(OURS) == pytest.approx((statistics.fmean(OURS), low, high))
    assert mean_interval(OURS, seed_stats_numpy) == pytest.approx(mean_interval(OURS))
    assert mean_interval([1.0]) == Interval(1.0, -math.inf, math.inf)


@pytest.mark.parametrize(("interval", "equal_variances"), [(difference_interval, True), (welch_interval, False)])
def test_the_interval_of_a_difference_is_scipys(interval, equal_variances: bool) -> None:
    expected = stats.ttest_ind(OURS, THEIRS, equal_var=equal_variances).confidence_interval(0.95)
    found = interval(OURS, THEIRS)
    assert found[1:] == pytest.approx((expected.low, expected.high))
    assert found.mean == statistics.fmean(OURS) - statistics.fmean(THEIRS)
    bonferroni = stats.ttest_ind(OURS, THEIRS, equal_var=equal_variances).confidence_interval(1 - 0.05 / 4)
    assert interval(OURS, THEIRS, picked_of=4)[1:] == pytest.approx((bonferroni.low, bonferroni.high))


def test_a_difference_of_single_values_needs_the_spread_of_others() -> None:
    assert difference_interval([70.0], [68.0]) == Interval(2.0, -math.inf, math.inf)
    half = stats.t.ppf(0.975, 8) * 0.2 * 2**0.5
    assert difference_interval([70.0], [68.0], PooledDeviation(0.2, 8)) == pytest.approx((2, 2 - half, 2 + half))
    assert pooled_deviation([[1.0], [2.0]]) is None


@pytest.mark.parametrize(
    ("low", "high", "excludes"), [(0.1, 1, True), (-1, -0.1, True), (-1, 1, False), (0, 1, False), (-1, 0, False)]
)
def test_whether_zero_is_excluded(low: float, high: float, excludes: bool) -> None:
    assert Interval(0.0, low, high).excludes_zero is excludes


def test_of_one_row_or_one_seed_nothing_is_known() -> None:
    assert tukey_half_width([[1.0, 2.0]]) == tukey_half_width([[1.0], [2.0]]) == math.inf


def test_intervals_over_images_and_episodes() -> None:
    assert accuracy_half_width(5_000, 50.0) == pytest.approx(1.96 * math.sqrt(50 * 50 / 5_000), rel=1e-4)
    assert accuracy_half_width(100, 30.0, 60.0) == pytest.approx(
        math.hypot(accuracy_half_width(100, 30.0), accuracy_half_width(100, 60.0))
    )
    accuracies = torch.tensor([60.0, 80.0, 70.0, 90.0])
    assert episode_half_width(accuracies) == pytest.approx(1.96 * np.std(accuracies.numpy()) / 2)
