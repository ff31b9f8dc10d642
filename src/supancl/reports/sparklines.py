"""Curves of a run as lines of text, for the end of a run on the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 32  # characters of a curve
MIN_POINTS = 3  # of fewer, the lines of the epochs say as much
CURVES = {
    "loss": "loss", "effective_rank": "rank", "s_w/s_t": "S_W/S_T", "knn": "k-NN", "knn_map": "k-NN mAP",
    "linear": "linear",
}  # fmt: skip


def sparkline(values: Sequence[float]) -> str:
    """The values as bars from the lowest to the highest; of more than WIDTH, means of neighbours.

    >>> sparkline([0, 1, 2, 7]), sparkline([3, 3])
    ('▁▂▃█', '▁▁')
    """
    count = min(WIDTH, len(values))
    bounds = [len(values) * i // count for i in range(count + 1)]
    means = [math.fsum(values[low:high]) / (high - low) for low, high in pairwise(bounds)]
    low, high = min(means), max(means)
    heights = [(mean - low) / (high - low) if high > low else 0.0 for mean in means]
    return "".join(BARS[round(height * (len(BARS) - 1))] for height in heights)


def describe_curves(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each curve of the log: its name, its bars, its first and last value."""
    lines = []
    for key, title in CURVES.items():
        kind = "train" if key == "loss" else "monitor"
        values = [
            float(row[key])
            for row in rows
            if row["kind"] == kind and isinstance(row.get(key), (int, float)) and math.isfinite(row[key])
        ]
        if len(values) >= MIN_POINTS:
            lines.append(f"{title:<9}{sparkline(values):<{WIDTH}}  {values[0]:.3g} -> {values[-1]:.3g}")
    return lines
