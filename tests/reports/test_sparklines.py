"""Curves as lines of text."""

from hypothesis import given
from hypothesis import strategies as st

from supancl.reports.sparklines import BARS, WIDTH, sparkline


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
