"""Ranks against scipy's, and the table in its five forms."""

import math

import numpy as np
import pytest
from scipy.stats import rankdata

from supancl.evaluation.suite import Score, rank_encoders, shared_ranks
from supancl.reports.tables import score_table

RESULTS = {
    "simsiam": {"pets": [70.0, 71.0, 72.0], "a_b": 50.0},
    "supsiam": {"pets": [75.0, 75.5, 76.0], "a_b": 50.0},
    "byol|x": {"pets": 60.0, "a_b": 49.0, "dtd": Score(40.0, 0.3, 1)},
}


def test_ranks_are_scipys_average_ranks() -> None:
    table = np.random.default_rng(0).integers(0, 6, (9, 25)).astype(float)
    expected = np.stack([rankdata(-column) for column in table.T], 1)
    assert shared_ranks(table) == pytest.approx(expected)
    found = rank_encoders({f"e{i}": {f"d{j}": value for j, value in enumerate(row)} for i, row in enumerate(table)})
    assert found.average_ranks == pytest.approx(expected.mean(1))
    assert found.averages == pytest.approx(table.mean(1))


def test_seeds_are_averaged_and_marks_follow_the_printed_digits() -> None:
    found = rank_encoders(RESULTS)
    assert found.cells[0][0] == Score(71.0, 1.0, 3)
    assert found.ranked == ("pets", "a_b")  # nobody else has dtd
    assert found.average_ranks == (1.75, 1.25, 3.0)
    assert [row[0] for row in found.marks] == ["second", "best", ""]
    assert [row[1] for row in found.marks] == ["best", "best", "second"]
    near = rank_encoders({"a": {"x": 50.001}, "b": {"x": 50.004}})
    assert near.average_ranks == (1.5, 1.5)


def test_without_a_common_data_set_there_is_no_rank() -> None:
    found = rank_encoders({"a": {"x": 1.0}, "b": {"y": 2.0}})
    assert all(math.isnan(rank) for rank in found.average_ranks)
    assert found.to_json()["rows"][0]["average_rank"] is None
    assert score_table(found).splitlines()[1].split() == ["a", "1.00*"]
