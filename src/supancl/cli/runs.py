"""`supancl runs list|prune`."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from supancl.cli.console import Terminal, duration
from supancl.errors import plural
from supancl.reports.tables import Table, to_text
from supancl.weights.run_list import ListedRun, list_runs


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    return {"list": show_list, "prune": prune}[args.action](args, console)


def show_list(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    folder = Path(args.folder)
    runs = list_runs(folder)
    text = to_text(runs_table(runs, folder)) if runs else f"no run below {folder}\n"
    if max(map(len, text.splitlines())) > console.width:
        text = to_text(runs_table(runs, folder, narrow=True))
    console.print(text, end="")
    return {"folder": str(folder), "runs": [asdict(run) | {"path": str(run.path)} for run in runs]}


def runs_table(runs: list[ListedRun], folder: Path, narrow: bool = False) -> Table:
    """One row per run; accuracies are those of the last check, or of `supancl evaluate` if higher."""
    columns = ["run", "state", *["recipe", "data"] * (not narrow), "epochs", "size", "age", "k-NN", "linear"]
    rows = [
        [
            str(run.path.relative_to(folder)) if run.path != folder else str(run.path),
            run.state,
            *[run.recipe, Path(run.data).name or run.data] * (not narrow),
            format_epochs(run),
            format_bytes(run.nbytes),
            format_age(run.last_written),
            *("" if value is None else f"{value:.1f}" for value in (run.knn, run.linear)),
        ]
        for run in runs
    ]
    notes = [f"{run.path}: {run.problem}; it can be resumed once that is restored" for run in runs if run.problem]
    notes += ["recipe and data of each run: in a wider terminal, or with --json"] * narrow
    return Table(columns, rows, "l" * (len(columns) - 5) + "rrrrr", notes=notes)


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


def prune(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from supancl.weights.pruning import delete, plan_pruning  # here, because `runs list` needs no torch

    terminal = Terminal(console)
    plan = plan_pruning(Path(args.folder), caches=not args.keep_caches)
    for remark in plan.remarks:
        terminal.warn(remark)
    for deletion in plan.deletions:
        count = f"{plural(deletion.files, 'checkpoint')}, " if deletion.kind == "checkpoints" else ""
        console.print(f"{deletion.path}: {count}{format_bytes(deletion.nbytes)} ({deletion.why})")
    deleted = [deletion for deletion in plan.deletions if args.yes]
    for deletion in list(deleted):
        if why := delete(deletion):
            terminal.warn(why)
            deleted.remove(deletion)
    total = format_bytes(sum(deletion.nbytes for deletion in (deleted if args.yes else plan.deletions)))
    if not plan.deletions:
        console.print(f"nothing to delete below {args.folder}")
    elif args.yes:
        console.print(f"deleted {total}")
    else:
        console.print(
            f"{total} could be deleted, and nothing was: add --yes. A run without a checkpoint can be evaluated and "
            "used, and start others (--init, --from), but not be extended"
        )
    as_json = [deletion._asdict() | {"path": str(deletion.path)} for deletion in plan.deletions]
    return {"folder": args.folder, "deletions": as_json, "deleted": len(deleted), "remarks": plan.remarks}
