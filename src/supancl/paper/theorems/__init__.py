"""Every statement of Sec. 4 and App. A, checked numerically against the shipped loss (`supancl paper theory`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from supancl.paper.theorems import dynamics, expectation, predictor
from supancl.paper.theorems.checks import Check, Settings
from supancl.reporter import track
from supancl.runs.provenance import versions

LARGEST_SEED = 2**40 - 1  # sample_seed multiplies it by a million, and torch takes 64 bits
MIN_SAMPLES = 2000  # with fewer, the smallest Monte-Carlo sample may miss a class

GROUPS: dict[str, Callable[[Settings], list[Check]]] = {
    "two forms": expectation.two_forms,
    "expansion": expectation.expansion,
    "expectation": expectation.expectation,
    "covariances": expectation.covariances,
    "eigenspaces": expectation.eigenspaces,
    "optimum": predictor.optimum,
    "coefficients": predictor.coefficients,
    "gains": predictor.gains,
    "conditions": predictor.conditions,
    "distances": predictor.distances,
    "closed gradients": dynamics.closed_gradients,
    "aligned gradients": dynamics.aligned_gradients,
    "decay": dynamics.decay,
}


def run_and_time(settings: Settings) -> tuple[list[Check], dict[str, Any]]:
    """Run all checks; returns them and the result as JSON."""
    begin = time.perf_counter()
    checks = [check for group in track(GROUPS.values(), "checks of the theory") for check in group(settings)]
    return checks, {
        "checks": [check.to_json() for check in checks],
        "passed": all(check.passed is not False for check in checks),
        "seed": settings.seed,
        "samples": settings.samples,
        "seconds": round(time.perf_counter() - begin, 1),
        "versions": versions(),
    }
