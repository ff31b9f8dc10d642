"""Curves as lines of text."""

import math

from hypothesis import given
from hypothesis import strategies as st

from supancl.reports.sparklines import BARS, WIDTH, describe_curves, sparkline
from tests.files import TINY, archive, supancl


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300))
def test_a_curve_fits_and_is_as_high_as_its_values(values):
    line = sparkline(values)
    assert len(line) == min(len(values), WIDTH)
    assert set(line) <= set(BARS)
    if len(values) <= WIDTH and max(values) > min(values):
        assert line[values.index(max(values))] == BARS[-1]
        assert line[values.index(min(values))] == BARS[0]


def test_a_rise_is_a_rise():
    line = sparkline([float(i) for i in range(1000)])
    assert line == "".join(sorted(line))
    assert (line[0], line[-1]) == (BARS[0], BARS[-1])


def test_values_that_are_no_numbers_are_left_out():
    rows = [{"kind": "monitor", "knn": knn} for knn in (10.0, None, math.nan, 20.0, 40.0)]
    (line,) = describe_curves(rows)
    assert line.split() == ["k-NN", "▁▃█", "10", "->", "40"]
    assert describe_curves(rows[:4]) == []


def test_a_run_ends_with_its_curves(tmp_path, capsys):
    said = supancl(capsys, "pretrain", "digits.supsiam", "--data", archive(tmp_path / "data.npz"), *TINY,
                   "--epochs", "3", "--out", tmp_path / "run")  # fmt: skip
    lines = said.out.splitlines()
    names = [line.split()[0] for line in lines if set(line) & set(BARS)]
    assert names == ["loss", "rank", "S_W/S_T", "k-NN", "linear"]
    assert lines[-1].startswith("done")
    assert max(len(line) for line in lines if set(line) & set(BARS)) <= 80
