"""Checked sections: types, ranges, unions by kind, dotted fields, JSON in both directions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supancl.config import (
    Count,
    Fraction,
    Natural,
    NotNegative,
    Positive,
    Within,
    checked,
    from_json,
    parse_json,
    replaced,
    to_json,
    validated,
)
from supancl.core.branches import BranchSpec, HeadSpec
from supancl.core.encoders import EncoderSpec
from supancl.core.losses import Align, Contrast, Loss
from supancl.core.methods import METHODS
from supancl.core.pools import PoolSpec
from supancl.core.specs import MLP, ScheduleSpec
from supancl.data.views.specs import Crops, Masks, ViewSpec
from supancl.errors import BadInput
from tests.helpers import mentions, property_test

INF, NAN = float("inf"), float("nan")


@dataclass(frozen=True)
class Inner:
    rate: Fraction = 0.5
    hidden: tuple[Count, ...] = (8,)
    pair: tuple[float, float] = (0.0, 1.0)
    label: str = "a"
    fast: bool = False
    limit: Count | None = None


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner = Inner()
    loss: Loss = Align()
    extra: Inner | None = None


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (1, float, 1.0), (1.5, float, 1.5), (3, int, 3), (3.0, int, 3), (True, bool, True), ("x", str, "x"),
        (None, type(None), None), (None, int | None, None), (4, int | None, 4), (0, Fraction, 0.0), (1, Fraction, 1.0),
        (0, NotNegative, 0.0), (1e-9, Positive, 1e-9), (1, Count, 1), (0, Natural, 0), (None, Count | None, None),
        ("b", Literal["a", "b"], "b"), ([1, 2], tuple[Count, ...], (1, 2)), ([], tuple[Count, ...], ()),
        ([1, 2], tuple[float, float], (1.0, 2.0)), ("cat", int | str, "cat"),
        (0.9, Annotated[float, Within(0, 0.9)], 0.9), (".5", float, 0.5), ("1_000", Count, 1000), ("7", str, "7"),
        ({"a": "b"}, Mapping[str, str], {"a": "b"}),
    ],
)  # fmt: skip
def test_a_fitting_value_is_taken_in_the_type_of_its_field(value, hint, expected):
    taken = checked(value, hint, "field")
    assert taken == expected
    assert type(taken) is type(expected)


@pytest.mark.parametrize(
    ("value", "hint", "message"),
    [
        ("one", float, ("'one'", "finite")), (True, float, ("finite",)), (NAN, float, ("finite",)),
        pytest.param(10**400, float, ("finite",), id="an integer beyond any float"),
        (1.5, int, ("1.5", "whole number")), (1, bool, ("bool",)), (1, str, ("str",)),
        (1.01, Fraction, ("[0, 1]",)), (0, Positive, ("above 0",)), (0, Count | None, ("at least 1",)),
        ("c", Literal["a", "b"], ("one of a, b",)), (3, tuple[Count, ...], ("list",)),
        ([1, 0], tuple[Count, ...], ("field[1]", "0", "at least 1")), ([1], tuple[float, float], ("2 entries",)),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_bad_input_that_says_what_would(value, hint, message):
    with pytest.raises(BadInput, match=mentions(*message)) as caught:
        checked(value, hint, "field")
    assert "field" in str(caught.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.sampled_from(["kind", "alpha", "x"]), children, max_size=3)
    ),
    max_leaves=6,
)
every_hint = st.sampled_from(
    [float, int, bool, str, Fraction, Positive, Count | None, tuple[Count, ...], tuple[float, float], Literal["a", "b"],
     Loss, ViewSpec, MLP, MLP | None, Inner, int | str]
)  # fmt: skip


@property_test
@given(json_values, every_hint)
def test_any_json_value_is_taken_or_is_bad_input(value, hint):
    try:
        taken = checked(value, hint, "field")
    except BadInput:
        return
    assert checked(taken, hint, "field") == taken


@pytest.mark.parametrize(
    "section",
    [
        Inner(), Inner(rate=0.1, hidden=(1, 2), limit=3), Outer("o", loss=Contrast(), extra=Inner()),
        PoolSpec("queue", 12),
        ScheduleSpec(warmup_epochs=4), EncoderSpec("cnn", width=12), BranchSpec("momentum", 0.9, 0.9), Crops(), Masks(),
        HeadSpec(), HeadSpec(predictor=MLP((512,), 2048)), MLP(), *METHODS.values(),
    ],
    ids=lambda section: type(section).__name__,
)  # fmt: skip
def test_a_section_survives_json_unchanged(section):
    text = json.dumps(to_json(section), allow_nan=False)
    assert from_json(type(section), json.loads(text), "") == section


@pytest.mark.parametrize(
    ("dotted", "value", "expected"),
    [
        ("name", "other", Outer("other")),
        ("inner.rate", 1, Outer("o", Inner(rate=1.0))),
        ("inner.hidden", [4, 5], Outer("o", Inner(hidden=(4, 5)))),
        ("inner.limit", 3, Outer("o", Inner(limit=3))),
        ("loss.alpha", 0.25, Outer("o", loss=Align(alpha=0.25))),
        ("extra", None, Outer("o")),
        ("extra.rate", 1, Outer("o", extra=Inner(rate=1.0))),  # a section that was off is on, the rest of it as it is
    ],
)
def test_a_dotted_field_is_replaced_and_nothing_else(dotted, value, expected):
    before = Outer("o")
    after = replaced(before, dotted, value)
    assert after == expected
    assert before == Outer("o")


def test_a_section_made_by_hand_is_validated_to_its_depth():
    assert validated(Outer("o", Inner(rate=1)), "") == Outer("o", Inner(rate=1.0))
    assert type(validated(Outer("o", Inner(rate=1)), "").inner.rate) is float
    for broken, message in (
        (Outer("o", Inner(rate=2.0)), "inner.rate"),
        (Outer("o", extra=Inner(limit=0)), "extra.limit"), (Outer(3), "name = 3"),  # type: ignore[arg-type]
    ):  # fmt: skip
        with pytest.raises(BadInput, match=message):
            validated(broken, "")


def test_json_is_parsed_to_a_bounded_depth_and_length():
    assert parse_json("[" * 90 + "]" * 90) is not None
    for text in ("[" * 5000, "[" * 500 + "]" * 500, '{"a":' * 200 + "1" + "}" * 200, "9" * 5000):
        with pytest.raises(ValueError):
            parse_json(text)
