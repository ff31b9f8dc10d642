"""Means over seeds, differences between methods, and the words that go with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from supancl.stats import Pooled, accuracy_half_width, difference_interval, seed_stats, t_half_width


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
    def excludes_zero(self) -> bool:
        return self.verdict in ("helps", "hurts")


def mean_text(values: Sequence[float], decimals: int = 2) -> str:
    """Mean and half its 95% t-interval over seeds; a single value as it is.

    >>> mean_text([70.0, 71.0, 72.0])
    '71.00 ± 2.48'
    >>> mean_text([70.0]), mean_text([])
    ('70.00', '-')
    """
    if not values:
        return "-"
    mean, sd = seed_stats(values)
    half = "" if len(values) == 1 else f" ± {t_half_width(sd, len(values)):.{decimals}f}"
    return f"{mean:.{decimals}f}{half}"


def over_images(ours: float, theirs: float, images: int) -> Gap:
    """A difference of two accuracies in percent, with the 95% interval that so many test images leave.

    >>> over_images(60.0, 1.0, 10_000).text()
    '+59.00 [+58.02, +59.98]'
    """
    half = accuracy_half_width(images, ours, theirs)
    return Gap(ours - theirs, ours - theirs - half, ours - theirs + half)


def gap(ours: Sequence[float], theirs: Sequence[float], others: Pooled | None = None, picked_of: int = 1) -> Gap | None:
    """ours - theirs. With two seeds or more on both sides the interval is Student's for two samples of equal spread;
    else the spread of the other methods' seeds is borrowed, where two degrees of freedom of it are known. `picked_of`:
    between how many such differences this one was picked by its size."""
    if not ours or not theirs:
        return None
    if min(len(ours), len(theirs)) > 1:
        return Gap(*difference_interval(ours, theirs, picked_of=picked_of))
    if others is not None and others.freedom >= 2:
        return Gap(*difference_interval(ours, theirs, others, picked_of), borrowed=True)
    return Gap(seed_stats(ours).mean - seed_stats(theirs).mean)
