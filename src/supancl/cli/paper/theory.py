"""`supancl paper theory`."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table
from rich.text import Text

from supancl.errors import BadInput, CheckFailed
from supancl.paper.theory import LARGEST_SEED, MIN_SAMPLES, run_and_time
from supancl.paper.theory.checks import Check, Settings


def command(args: argparse.Namespace, console: Console) -> dict[str, object]:
    """Print the table and return it; a failed check raises `CheckFailed`, which holds the same result."""
    if args.samples < MIN_SAMPLES:
        raise BadInput(f"--samples {args.samples}: must be at least {MIN_SAMPLES}")
    if not 0 <= args.seed <= LARGEST_SEED:
        raise BadInput(f"--seed {args.seed}: must be from 0 to {LARGEST_SEED}")
    checks, result = run_and_time(Settings(args.seed, args.samples))
    console.print(table(checks))
    failed = [check for check in checks if check.passed is False]
    asserted = sum(check.asserted for check in checks)
    console.print(
        f"{asserted - len(failed)} of {asserted} asserted checks hold; {len(checks) - asserted} figures are "
        f"reported only ({result['seconds']} s, seed {args.seed})"
    )
    if failed:
        first = failed[0]
        raise CheckFailed(
            f"{len(failed)} of {asserted} checks failed, first {first.statement}: {first.quantity}", result
        )
    return result


def table(checks: list[Check]) -> Table:
    grid = Table(title="Theory against the shipped loss")
    for name in ("statement", "quantity"):
        grid.add_column(name, overflow="fold")
    for name in ("predicted", "measured", "error", "tolerance"):
        grid.add_column(name, justify="right", overflow="fold")
    grid.add_column("holds")
    grid.add_column("note", overflow="fold")
    for check in checks:
        verdict = {True: "yes", False: "NO", None: "report"}[check.passed]
        grid.add_row(
            check.statement,
            Text(check.quantity),
            _format_value(check.predicted),
            _format_value(check.measured),
            _format_error(check.error),
            _format_error(check.tolerance),
            verdict,
            Text(check.note),
        )
    return grid


def _format_value(value: float | list[float] | None) -> str:
    if value is None:
        return "-"
    return ", ".join(f"{number:.4f}" for number in value) if isinstance(value, list) else f"{value:.6g}"


def _format_error(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"
