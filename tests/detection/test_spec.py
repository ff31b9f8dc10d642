"""The recipe: the protocol's numbers, scaling, overrides."""

import dataclasses
import json
from pathlib import Path

import pytest

from supancl.detection import OWN_CHOICE, SOURCES, DetectSpec, detect_spec, learning_rate


def test_a_short_run_scales_its_schedule():
    spec = detect_spec("c4", {"iters": 1200})
    assert (spec.steps, spec.warmup, spec.precise_bn) == ((900, 1100), 100, 120)
    assert detect_spec("c4", {"iters": 240}).warmup == 24
    own = detect_spec("c4", {"iters": 1200, "steps": [1000], "warmup": 7, "precise_bn": 0})
    assert (own.steps, own.warmup, own.precise_bn) == ((1000,), 7, 0)


@pytest.mark.parametrize("step", [0, 50, 99, 100, 17999, 18000, 22000])
def test_the_rate_follows_its_definition(step):
    expected = 0.02 * 0.1 ** ((step >= 18000) + (step >= 22000))
    if step < 100:
        expected *= 1 / 1000 + (1 - 1 / 1000) * step / 100
    assert learning_rate(detect_spec(), step) == pytest.approx(expected, rel=1e-12)


def test_the_page_shows_every_value_and_its_source():
    page = (Path(__file__).parents[2] / "docs" / "detection.md").read_text()
    for field in dataclasses.fields(DetectSpec):
        value = json.dumps(getattr(DetectSpec(), field.name))
        assert f"| `{field.name}` | `{value}` | {SOURCES.get(field.name, OWN_CHOICE)} |" in page
