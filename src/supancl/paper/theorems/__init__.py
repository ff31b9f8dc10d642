"""Every statement of Sec. 4 and App. A, checked numerically against the shipped loss (`supancl paper theory`)."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable

import numpy
import scipy
import torch

from supancl.paper.theorems import checks as theory_checks
from supancl.paper.theorems import dynamics, predictor
from supancl.paper.theorems.checks import Check, Settings
from supancl.paper.theorems.formulas import Formulas
from supancl.reporter import track

LARGEST_SEED = 2**40 - 1  # sample_seed multiplies it by a million, and torch takes 64 bits
MIN_SAMPLES = 2000  # with fewer, the smallest Monte-Carlo sample may miss a class

GROUPS: dict[str, Callable[[Settings, Formulas], list[Check]]] = {
    "two forms": theory_checks.two_forms,
    "expansion": theory_checks.expansion,
    "expectation": theory_checks.expectation,
    "covariances": theory_checks.covariances,
    "eigenspaces": theory_checks.eigenspaces,
    "optimum": predictor.optimum,
    "coefficients": predictor.coefficients,
    "gains": predictor.gains,
    "conditions": predictor.conditions,
    "distances": predictor.distances,
    "closed gradients": dynamics.closed_gradients,
    "aligned gradients": dynamics.aligned_gradients,
    "decay": dynamics.decay,
}


def run(settings: Settings, formulas: Formulas | None = None) -> list[Check]:
    """Run all checks; the tests pass wrong `formulas` to see that they are noticed."""
    formulas = formulas or Formulas()
    return [check for group in track(GROUPS.values(), "checks of the theory") for check in group(settings, formulas)]


def run_and_time(settings: Settings) -> tuple[list[Check], dict[str, object]]:
    """Run all checks; returns them and the result as JSON."""
    begin = time.perf_counter()
    checks = run(settings)
    return checks, {
        "checks": [check.to_json() for check in checks],
        "passed": all(check.passed is not False for check in checks),
        "seed": settings.seed,
        "samples": settings.samples,
        "seconds": round(time.perf_counter() - begin, 1),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "scipy": scipy.__version__,
        },
    }
