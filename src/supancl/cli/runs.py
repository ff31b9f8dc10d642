"""`supancl runs`."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from supancl.cli.console import duration, line_width
from supancl.reports.tables import Table, to_text_within
from supancl.weights.run_list import ListedRun, list_runs


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    folder = Path(args.folder)
    runs = list_runs(folder)
    if runs:
        optional = ("recipe", "data", "age", "size")
        table = runs_table(runs, folder)
        console.print(to_text_within(table, line_width(console), optional, "--json FILE"), end="")
    else:
        console.print(f"no run below {folder}")
    return {"folder": str(folder), "runs": [asdict(run) | {"path": str(run.path)} for run in runs]}


def runs_table(runs: list[ListedRun], folder: Path) -> Table:
    """One row per run; accuracies are those of `supancl evaluate`, or else of the last check while training."""
    columns = ["run", "state", "recipe", "data", "epochs", "size", "age", "k-NN", "linear", "of"]
    rows = [
        [
            str(run.path.relative_to(folder)) if run.path != folder else str(run.path),
            run.state,
            run.recipe,
            Path(run.data).name or run.data,
            format_epochs(run),
            format_bytes(run.nbytes),
            format_age(run.last_written),
            *(
                "" if value is None else f"{'mAP ' * run.has_several_labels}{value:.1f}"
                for value in (run.knn, run.linear)
            ),
            "" if run.tested_images is None else f"{run.tested_images:,}",
        ]
        for run in runs
    ]
    notes = ["k-NN, linear: % of as many held-out images"] * any(run.tested_images is not None for run in runs)
    notes += [f"{run.path}: {run.problem}; it can be resumed once that is restored" for run in runs if run.problem]
    return Table(columns, rows, "l" * (len(columns) - 6) + "rrrrrr", notes=notes)


def format_epochs(run: ListedRun) -> str:
    if run.epochs is None:
        return ""
    return str(run.epochs) if run.epochs_done >= run.epochs else f"{run.epochs_done}/{run.epochs}"


def format_age(last_written: float) -> str:
    """The larger unit of the time since then: 3 d."""
    if last_written != last_written:
        return ""
    return " ".join(duration(max(0.0, time.time() - last_written)).split()[:2])


def format_bytes(nbytes: int) -> str:
    """A size with its unit.

    >>> format_bytes(1_234_567), format_bytes(2_500_000_000), format_bytes(800)
    ('1.2 MB', '2.5 GB', '1 kB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if nbytes >= size:
            return f"{nbytes / size:,.1f} {unit}"
    return f"{nbytes / 1e3:.0f} kB"
