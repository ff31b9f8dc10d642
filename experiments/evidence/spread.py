"""Means over seeds, differences between methods, and the words that go with them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from scipy import stats


class Pooled(NamedTuple):
    """The deviation between seeds of one method, pooled over the methods that have several."""

    deviation: float
    freedom: int


class Gap(NamedTuple):
    """A difference of means with its 95% interval; without one where nothing says how seeds differ."""

    mean: float
    low: float | None = None
    high: float | None = None
    borrowed: bool = False  # the spread is that of other methods' seeds, for want of own ones

    def text(self, decimals: int = 2) -> str:
        if self.low is None or self.high is None:
            return f"{self.mean:+.{decimals}f} (one seed)"
        return f"{self.mean:+.{decimals}f} [{self.low:+.{decimals}f}, {self.high:+.{decimals}f}]{'*' * self.borrowed}"

    @property
    def verdict(self) -> str:
        """helps, hurts, or what cannot be told."""
        if self.low is None or self.high is None:
            return "cannot be told with one seed"
        return "helps" if self.low > 0 else "hurts" if self.high < 0 else "cannot be told apart"

    @property
    def is_told(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.verdict in ("helps", "hurts")


def t_reach(freedom: float, picked_of: int = 1) -> float:
    """How many deviations a 95% interval reaches; for the best of several Bonferroni's, which allows for picking."""
    return float(stats.t.ppf(1 - 0.025 / picked_of, freedom))


def mean_text(values: Sequence[float], decimals: int = 2) -> str:
    """Mean and half its 95% t-interval over seeds; a single value as it is.

    >>> mean_text([70.0, 71.0, 72.0])
    '71.00 ± 2.48'
    >>> mean_text([70.0]), mean_text([])
    ('70.00', '-')
    """
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):.{decimals}f}"
    return mean if len(values) == 1 else f"{mean} ± {half_interval(values):.{decimals}f}"


def half_interval(values: Sequence[float]) -> float:
    """Half the 95% t-interval of the mean of two values or more."""
    return t_reach(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def pooled(groups: Iterable[Sequence[float]]) -> Pooled | None:
    """None where no group has two values.

    >>> pooled([[1.0, 3.0], [5.0, 5.0], [9.0]])
    Pooled(deviation=1.0, freedom=2)
    """
    several = [values for values in groups if len(values) > 1]
    freedom = sum(len(values) - 1 for values in several)
    if not freedom:
        return None
    squares = sum((value - statistics.fmean(values)) ** 2 for values in several for value in values)
    return Pooled(math.sqrt(squares / freedom), freedom)


def over_images(ours: float, theirs: float, images: int) -> Gap:
    """A difference of two accuracies in percent, with the 95% interval that so many test images leave.

    >>> over_images(60.0, 1.0, 10_000).text()
    '+59.00 [+58.02, +59.98]'
    """
    parts = sum(percent * (100 - percent) for percent in (ours, theirs)) / images
    reach = float(stats.norm.ppf(0.975)) * math.sqrt(parts)
    return Gap(ours - theirs, ours - theirs - reach, ours - theirs + reach)


def gap(ours: Sequence[float], theirs: Sequence[float], others: Pooled | None = None, picked_of: int = 1) -> Gap | None:
    """ours - theirs. With two seeds or more on both sides the interval is Student's for two samples of equal spread;
    else the spread of the other methods' seeds is borrowed, where two degrees of freedom of it are known. `picked_of`:
    between how many such differences this one was picked by its size."""
    if not ours or not theirs:
        return None
    mean = statistics.fmean(ours) - statistics.fmean(theirs)
    own = pooled([ours, theirs]) if min(len(ours), len(theirs)) > 1 else None
    used = own or (others if others is not None and others.freedom >= 2 else None)
    if used is None:
        return Gap(mean)
    reach = t_reach(used.freedom, picked_of) * used.deviation * math.sqrt(1 / len(ours) + 1 / len(theirs))
    return Gap(mean, mean - reach, mean + reach, own is None)
