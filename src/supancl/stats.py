"""Means over seeds and 95% intervals: of a mean, a difference, all differences together, an accuracy, episodes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


class SeedStats(NamedTuple):
    """Mean and sample standard deviation over seeds; nan if there are too few values."""

    mean: float
    sd: float


class Interval(NamedTuple):
    """A mean, or a difference of means, with its 95% interval."""

    mean: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


Tone = Literal["good", "unclear", "bad"]


class Quality(NamedTuple):
    """Clearly better than chance and all baselines (good), not better (bad), or neither; and why."""

    tone: Tone
    text: str
    is_above_chance: bool = True  # clearly


FEW_IMAGES = 100  # below this an interval of an accuracy may be 20 points wide: more images are looked for
TOO_FEW_IMAGES = 10  # below this it may be 60 points wide: no verdict
NORMAL_QUANTILE = statistics.NormalDist().inv_cdf(0.975)


# --- seeds ------------------------------------------------------------------------------------------------------------


def seed_stats(values: Sequence[float]) -> SeedStats:
    """Mean and standard deviation; the deviation is nan for one value or if a value is nan.

    >>> seed_stats([70.0, 71.0, 72.0]), seed_stats([70.0]), seed_stats([])
    (SeedStats(mean=71.0, sd=1.0), SeedStats(mean=70.0, sd=nan), SeedStats(mean=nan, sd=nan))
    """
    has_deviation = len(values) > 1 and not any(math.isnan(value) for value in values)
    return SeedStats(
        statistics.fmean(values) if values else math.nan, statistics.stdev(values) if has_deviation else math.nan
    )


def seed_stats_numpy(values: Sequence[float]) -> SeedStats:
    """As `seed_stats`, summed by NumPy: the last bit may differ, and toy.json depends on it."""
    numbers = np.asarray(values, dtype=np.float64)
    return SeedStats(float(numbers.mean()), float(numbers.std(ddof=1)) if len(numbers) > 1 else math.nan)


# --- Student's t ------------------------------------------------------------------------------------------------------


def t_quantile(freedom: float, picked_of: int = 1) -> float:
    """Half a 95% interval in standard errors; Bonferroni's for the largest of `picked_of` differences."""
    from scipy import stats

    return float(stats.t.ppf(1 - 0.025 / picked_of, freedom))


def t_half_width(sd: float, n: int) -> float:
    """Half the 95% interval of a mean of n values with this standard deviation; infinite for one value."""
    return t_quantile(n - 1) * sd / math.sqrt(n) if n > 1 else math.inf


def mean_interval(values: Sequence[float]) -> Interval:
    """Student's interval of a mean; for seed-by-seed differences this is the paired interval.

    >>> [round(value, 2) for value in mean_interval([1.0, 2.0, 3.0])]
    [2.0, -0.48, 4.48]
    """
    mean, sd = seed_stats(values)
    half = t_half_width(sd, len(values))
    return Interval(mean, mean - half, mean + half)


# --- all differences at once ------------------------------------------------------------------------------------------


def tukey_half_width(rows: Sequence[Sequence[float]]) -> float:
    """Half the 95% interval of a difference of two rows' means, valid for all pairs of rows together.

    Tukey's, with the columns (seeds) as blocks: all rows have the same ones. With a separate interval per pair, a
    quarter of all studies of five equal rows would call one worse than the best. For two rows: Student's, paired.
    """
    count, columns = len(rows), len(rows[0])
    if count < 2 or columns < 2:
        return math.inf
    table = np.asarray(rows, dtype=np.float64)
    residuals = table - table.mean(1, keepdims=True) - table.mean(0, keepdims=True) + table.mean()
    freedom = (count - 1) * (columns - 1)
    error = math.sqrt(float((residuals**2).sum()) / freedom / columns)
    return _tukey_quantile(count, freedom) * error


@cache
def _tukey_quantile(rows: int, freedom: int) -> float:
    """The 95% point of the studentized range; cached, because integrating it takes a tenth of a second."""
    from scipy import stats

    return float(stats.studentized_range.ppf(0.95, rows, freedom))


# --- images and episodes ----------------------------------------------------------------------------------------------


def wilson_interval(percent: float, images: float) -> Interval:
    """Wilson's interval of an accuracy in percent on this many images; unlike 1.96 sigma it never leaves [0, 100].

    >>> [round(value, 1) for value in wilson_interval(100.0, 12)]
    [100.0, 75.8, 100.0]
    """
    if images <= 0 or math.isnan(percent):
        return Interval(math.nan, 0.0, 100.0)
    p, shrinkage = percent / 100, NORMAL_QUANTILE**2 / images
    centre = (p + shrinkage / 2) / (1 + shrinkage)
    half = math.sqrt(shrinkage * (p * (1 - p) + shrinkage / 4)) / (1 + shrinkage)
    low, high = max(0.0, 100 * (centre - half)), min(100.0, 100 * (centre + half))
    return Interval(percent, min(percent, low), max(percent, high))  # rounding must not exclude 0 or 100 themselves


def paired_accuracy_interval(
    ours: Sequence[float], theirs: Sequence[float], weights: Sequence[float] | None = None, comparisons: int = 1
) -> Interval:
    """ours - theirs in points of accuracy, of two classifiers of the same images: which were answered correctly.

    Agresti and Min's interval: two images are added of which half is right for one and wrong for the other, so that
    even a few equal answers leave an uncertainty. `weights` of images, such as those of a mean over classes, are
    scaled to a mean of 1. Intervals of several `comparisons` hold together (Bonferroni's).

    >>> [round(value, 1) for value in paired_accuracy_interval([True] * 15 + [False] * 5, [True] * 5 + [False] * 15)]
    [50.0, 22.8, 68.1]
    """
    gaps = np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64)
    count = len(gaps)
    if not count:
        return Interval(math.nan, -100.0, 100.0)
    scale = np.ones(count) if weights is None else np.asarray(weights, dtype=np.float64) / np.mean(weights)
    mean = float((scale * gaps).mean())
    shrunk = mean * count / (count + 2)
    squares = float((scale**2 * (gaps - shrunk) ** 2).sum()) + 1 + 2 * shrunk**2
    half = statistics.NormalDist().inv_cdf(1 - 0.025 / comparisons) * math.sqrt(squares) / (count + 2)
    return Interval(100 * mean, 100 * max(-1.0, shrunk - half), 100 * min(1.0, shrunk + half))


def quality(images: float, interval: Interval, chance: float, baselines: Mapping[str, Interval]) -> Quality:
    """How good an encoder is, by its accuracy on so many images and its differences from `baselines` on the same ones.

    >>> quality(500, Interval(60.0, 55.0, 65.0), 10.0, {"random weights": Interval(8.0, 5.0, 11.0)})
    Quality(tone='good', text='better than random weights by 8.0 [5.0, 11.0] points', is_above_chance=True)
    >>> quality(500, Interval(23.0, 19.0, 27.0), 33.0, {}).text
    'not clearly above chance (33.0%)'
    """
    if images < TOO_FEW_IMAGES:
        return Quality("unclear", f"too few images to say: {images:g} of at least {TOO_FEW_IMAGES}", False)
    is_above_chance, is_better = interval.low > chance, {name: gap.low > 0 for name, gap in baselines.items()}
    *others, last = baselines or [""]  # the last one is the start, of a run that has one
    shown = [name for name in (last, *others) if name and (name == last or not is_better[name])]
    parts = [_describe_gap(name, baselines[name]) for name in shown]
    if not is_above_chance or not parts:
        parts.append(f"{'better than' if is_above_chance else 'not clearly above'} chance ({chance:.1f}%)")
    tone: Tone = "good" if is_above_chance and baselines and all(is_better.values()) else "unclear"
    if interval.mean <= chance or any(gap.mean <= 0 for gap in baselines.values()):
        tone = "bad"
    return Quality(tone, "; ".join(parts), is_above_chance)


def _describe_gap(name: str, gap: Interval) -> str:
    if not gap.excludes_zero:
        return f"no clear difference from {name}: {gap.mean:+.1f} [{gap.low:.1f}, {gap.high:.1f}] points"
    word, low, high = ("better", gap.low, gap.high) if gap.mean > 0 else ("worse", -gap.high, -gap.low)
    return f"{word} than {name} by {abs(gap.mean):.1f} [{low:.1f}, {high:.1f}] points"


def percentile_interval(value: float, draws: np.ndarray) -> Interval:
    """The interval between the 2.5% and 97.5% percentiles of bootstrap draws, and the value itself.

    >>> [round(end, 3) for end in percentile_interval(50.0, np.arange(101.0))]
    [50.0, 2.5, 97.5]
    """
    measured = draws[~np.isnan(draws)]
    if not len(measured):
        return Interval(value, math.nan, math.nan)
    low, high = np.quantile(measured, (0.025, 0.975)).tolist()
    return Interval(value, low, high)


def episode_half_width(accuracies: Tensor) -> float:
    """Half the 95% interval over few-shot episodes as papers report it: 1.96 sigma / sqrt(n), sigma without n - 1."""
    return 1.96 * float(accuracies.double().std(correction=0)) / math.sqrt(len(accuracies))


def duration(seconds: float) -> str:
    """A duration in its two largest units.

    >>> duration(42), duration(3 * 3600 + 5 * 60)
    ('42 s', '3 h 5 min')
    """
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
