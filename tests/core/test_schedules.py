"""Learning rate and momentum at each step."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from supancl.core.specs import ScheduleSpec, ema_momentum, learning_rate

EPOCHS, STEPS, PEAK = 10, 5, 0.4


def rates(spec, epochs=EPOCHS, steps=STEPS, peak=PEAK, predictor=False):
    schedule = learning_rate(spec, peak, epochs, steps, predictor)
    return [schedule(step) for step in range(epochs * steps)]


def test_the_cosine_is_its_formula_at_every_step():
    expected = [PEAK * (1 + math.cos(math.pi * step / (EPOCHS * STEPS))) / 2 for step in range(EPOCHS * STEPS)]
    assert rates(ScheduleSpec()) == pytest.approx(expected, rel=1e-12)


def test_warm_up_rises_linearly_to_the_peak_and_the_cosine_starts_there():
    warm = 4 * STEPS
    values = rates(ScheduleSpec(warmup_epochs=4))
    assert values[:warm] == pytest.approx([PEAK * (step + 1) / warm for step in range(warm)], rel=1e-12)
    rest = EPOCHS * STEPS - warm
    expected = [PEAK * (1 + math.cos(math.pi * step / rest)) / 2 for step in range(rest)]
    assert values[warm:] == pytest.approx(expected, rel=1e-12)
    assert values[warm - 1] == pytest.approx(PEAK)
    assert 0 < values[-1] < PEAK * 0.01


@pytest.mark.parametrize("granularity", ["step", "epoch"])
@pytest.mark.parametrize("warmup", [0, 4])
def test_the_predictor_is_constant_through_warm_up_and_decay(granularity, warmup):
    spec = ScheduleSpec(warmup_epochs=warmup, granularity=granularity)
    assert rates(spec, predictor=True) == [PEAK] * (EPOCHS * STEPS)


@pytest.mark.parametrize("warmup", [0, 4])
def test_by_epoch_the_rate_changes_once_an_epoch_along_the_same_curve(warmup):
    values = rates(ScheduleSpec(warmup_epochs=warmup, granularity="epoch"))
    epochs = [values[e * STEPS : (e + 1) * STEPS] for e in range(EPOCHS)]
    assert all(len(set(epoch)) == 1 for epoch in epochs)
    once = rates(ScheduleSpec(warmup_epochs=warmup), steps=1)
    assert [epoch[0] for epoch in epochs] == pytest.approx(once, rel=1e-12)


@pytest.mark.parametrize(("start", "steps"), [(0.996, 100), (0.99, 7), (0.0, 4)])
def test_ema_momentum_rises_to_one_along_the_cosine_of_the_notes(start, steps):
    momentum = ema_momentum(start, 1.0, steps)
    for t in range(steps + 1):
        assert momentum(t) == pytest.approx(1 - (1 - start) * (1 + math.cos(math.pi * t / steps)) / 2, abs=1e-15)
    assert momentum(0) == pytest.approx(start, abs=1e-15)
    assert momentum(steps) == 1.0
    assert all(momentum(t) <= momentum(t + 1) for t in range(steps))


def test_an_extended_run_decays_from_its_restart_without_a_second_warm_up() -> None:
    spec = ScheduleSpec(warmup_epochs=2, restart_epoch=10, restart_rate=0.25)
    rate = learning_rate(spec, peak=0.8, epochs=20, steps_per_epoch=4)
    for step in range(40, 80):
        progress = (step / 4 - 10) / 10
        assert rate(step) == pytest.approx(0.8 * 0.25 * 0.5 * (1 + math.cos(math.pi * progress)))
    constant = learning_rate(replace(spec, decay="constant"), peak=0.8, epochs=20, steps_per_epoch=4)
    assert [constant(step) for step in (40, 79)] == [0.2, 0.2]
