"""Several encoders on several data sets: means over seeds, average rank, best and second best."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from supancl.errors import BadInput
from supancl.stats import seed_stats_numpy

Mark = Literal["", "best", "second"]


class Score(NamedTuple):
    """A mean in percent over `runs`; `uncertainty` is the deviation over seeds, half a 95% interval, or None."""

    mean: float
    uncertainty: float | None = None
    runs: int = 1

    def to_json(self) -> dict[str, Any]:
        return {"mean": self.mean, "spread": self.uncertainty, "runs": self.runs}


@dataclass(frozen=True)
class Ranking:
    """Rows are encoders, columns data sets, in the order of the input; a cell is None where there is no result.

    Averages and average ranks are over `ranked`, the data sets that count and have a result of every encoder; NaN if
    there is none. A single encoder has no marks, and tables omit its rank.
    """

    encoders: tuple[str, ...]
    datasets: tuple[str, ...]
    cells: tuple[tuple[Score | None, ...], ...]
    marks: tuple[tuple[Mark, ...], ...]
    ranked: tuple[str, ...]
    averages: tuple[float, ...]
    average_ranks: tuple[float, ...]
    digits: int

    @property
    def compares(self) -> bool:
        return len(self.encoders) > 1

    @property
    def has_ranks(self) -> bool:
        return self.compares and bool(self.ranked)

    def seeds(self, row: int) -> str:
        """` (n = 3)` after the name of a mean over seeds, ` (n = 1 to 3)` if some data sets have fewer, else empty.

        It distinguishes a deviation over seeds from the interval of a single few-shot result.
        """
        runs = [cell.runs for cell in self.cells[row] if cell is not None]
        if max(runs, default=1) == 1:
            return ""
        return f" (n = {runs[0]})" if len(set(runs)) == 1 else f" (n = {min(runs)} to {max(runs)})"

    def to_json(self) -> dict[str, Any]:
        rows = [
            {
                "encoder": name,
                "scores": {
                    data: None if cell is None else cell.to_json()
                    for data, cell in zip(self.datasets, cells, strict=True)
                },
                "average": _number(average),
                "average_rank": _number(rank) if self.compares else None,
            }
            for name, cells, average, rank in zip(
                self.encoders, self.cells, self.averages, self.average_ranks, strict=True
            )
        ]
        return {"datasets": list(self.datasets), "ranked": list(self.ranked), "rows": rows}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def score(values: float | Score | Sequence[float]) -> Score:
    """The Score of one number, or of several seeds: their mean and sample deviation.

    >>> score([70.0, 71.0, 72.0])
    Score(mean=71.0, uncertainty=1.0, runs=3)
    """
    if isinstance(values, Score):
        return values
    numbers = np.atleast_1d(np.asarray(values, dtype=np.float64))
    if not len(numbers) or not np.isfinite(numbers).all():
        raise BadInput(f"scores {values!r}: give at least one, and only finite numbers; leave missing results out")
    mean, sd = seed_stats_numpy(numbers.tolist())
    return Score(mean, None if len(numbers) == 1 else sd, len(numbers))


def rank_encoders(
    results: Mapping[str, Mapping[str, float | Score | Sequence[float]]],
    datasets: Sequence[str] | None = None,
    digits: int = 2,
    unranked: Collection[str] = (),
) -> Ranking:
    """Rank `results[encoder][data set]`: 1 is the highest score, and ties share the mean of their ranks.

    Scores are ranked and marked as printed, at `digits` decimals, so that a table never contradicts itself. `unranked`
    data sets have columns, but no marks, and count in no average.

    >>> scores = {"a": {"pets": 80, "dtd": 60}, "b": {"pets": 80, "dtd": 50}, "c": {"pets": 70, "dtd": 55}}
    >>> rank_encoders(scores).average_ranks
    (1.25, 2.25, 2.5)
    """
    if not results:
        raise BadInput("no encoder to rank; give at least one result")
    columns = tuple(dict.fromkeys(data for row in results.values() for data in row) if datasets is None else datasets)
    cells = tuple(tuple(score(row[data]) if data in row else None for data in columns) for row in results.values())
    table = np.array([[math.nan if cell is None else round(cell.mean, digits) for cell in row] for row in cells])
    table = table.reshape(len(cells), len(columns))
    table[:, [data in unranked for data in columns]] = math.nan
    is_ranked = ~np.isnan(table).any(0)
    ranks = shared_ranks(table[:, is_ranked])
    exact = np.array([[math.nan if cell is None else cell.mean for cell in row] for row in cells]).reshape(table.shape)
    has_ranked = bool(is_ranked.any())
    return Ranking(
        tuple(results),
        columns,
        cells,
        _marks(table),
        tuple(np.array(columns)[is_ranked].tolist()) if has_ranked else (),
        tuple(exact[:, is_ranked].mean(1).tolist()) if has_ranked else (math.nan,) * len(cells),
        tuple(ranks.mean(1).tolist()) if has_ranked else (math.nan,) * len(cells),
        digits,
    )


def shared_ranks(table: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Ranks within each column; 1 is the highest, and ties share their mean rank."""
    higher = (table[None] > table[:, None]).sum(1)
    equal = (table[None] == table[:, None]).sum(1)
    ranks: np.ndarray[Any, np.dtype[np.float64]] = higher + (equal + 1) / 2
    return ranks


def _marks(table: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[tuple[Mark, ...], ...]:
    """Mark the highest printed value of each column, and the second highest; ties share a mark."""
    marks: list[list[Mark]] = [["" for _ in row] for row in table]
    for column in range(table.shape[1]) if len(table) > 1 else ():
        values = sorted({value for value in table[:, column].tolist() if not math.isnan(value)}, reverse=True)
        for position, mark in enumerate(("best", "second")[: len(values)]):
            for row in np.flatnonzero(table[:, column] == values[position]).tolist():
                marks[row][column] = "best" if mark == "best" else "second"
    return tuple(map(tuple, marks))
