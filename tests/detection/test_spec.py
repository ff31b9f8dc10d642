"""The recipe: the protocol's numbers, scaling, overrides."""

import dataclasses
import json
from pathlib import Path

import pytest

from supancl.detection import FPN_DEFAULTS, OWN_CHOICE, SOURCES, DetectSpec, detect_spec, learning_rate

# chosen here: what a run needs and no protocol says
OWN = {"test_batch", "test_limit", "seed", "device", "precision", "workers", "memory_gb", "log_every", "eval_every",
       "checkpoint_every"}  # fmt: skip


def test_every_value_says_where_it_comes_from():
    names = {field.name for field in dataclasses.fields(DetectSpec)}
    assert set(SOURCES) == names - OWN
    assert set(FPN_DEFAULTS) < names


def test_a_short_run_scales_its_schedule():
    spec = detect_spec("c4", {"iters": 1200})
    assert (spec.steps, spec.warmup, spec.precise_bn) == ((900, 1100), 100, 120)
    assert detect_spec("c4", {"iters": 240}).warmup == 24
    own = detect_spec("c4", {"iters": 1200, "steps": [1000], "warmup": 7, "precise_bn": 0})
    assert (own.steps, own.warmup, own.precise_bn) == ((1000,), 7, 0)


@pytest.mark.parametrize("step", [0, 1, 50, 99, 100, 17999, 18000, 21999, 22000, 23999])
def test_the_rate_follows_its_definition(step):
    expected = 0.02
    if step < 100:
        expected *= 1 / 1000 + (1 - 1 / 1000) * step / 100
    if step >= 18000:
        expected *= 0.1
    if step >= 22000:
        expected *= 0.1
    assert learning_rate(detect_spec(), step) == pytest.approx(expected, rel=1e-12)


def test_the_page_shows_every_value_and_its_source():
    page = (Path(__file__).parents[2] / "docs" / "detection.md").read_text()
    for field in dataclasses.fields(DetectSpec):
        value = json.dumps(getattr(DetectSpec(), field.name))
        assert f"| `{field.name}` | `{value}` | {SOURCES.get(field.name, OWN_CHOICE)} |" in page
