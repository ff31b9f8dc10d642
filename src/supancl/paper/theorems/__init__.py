"""Every statement of Sec. 4 and App. A, checked numerically against the shipped loss (`supancl paper theory`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from supancl.paper.theorems import dynamics, expectation, predictor
from supancl.paper.theorems.checks import Check, Settings
from supancl.reporter import track
from supancl.reports.tables import Table, plain_table
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


def theory_table(checks: list[Check]) -> Table:
    """A row per check."""

    def number(value: float | list[float] | None, form: str) -> str:
        if isinstance(value, list):
            return ", ".join(f"{each:.4f}" for each in value)
        return "-" if value is None else f"{value:{form}}"

    columns = ["statement", "quantity", "predicted", "measured", "error", "tolerance", "holds", "note"]
    rows = []
    for check in checks:
        numbers = [number(check.predicted, ".6g"), number(check.measured, ".6g")]
        numbers += [number(check.error, ".1e"), number(check.tolerance, ".1e")]
        holds = {True: "yes", False: "NO", None: "report"}[check.passed]
        rows.append([check.statement, check.quantity, *numbers, holds, check.note])
    return plain_table("Theory against the shipped loss", columns, rows)
