"""`supancl paper table`."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from supancl.cli.console import line_width, table
from supancl.cli.flags import recipe_from_flags
from supancl.cli.loggers import sweep_from_flags
from supancl.distributed import require_single_process
from supancl.errors import BadInput, plural
from supancl.files import why_unwritable, write_text
from supancl.paper.tables.cells import FilledTable, fill
from supancl.paper.tables.formats import FORMATS, as_text
from supancl.paper.tables.layouts import LAYOUTS, Layout, table_name
from supancl.paper.tables.make import check_plan, complete
from supancl.paper.tables.plan import FAILED, Plan, Request, make_plan
from supancl.paper.tables.runs import read_entries
from supancl.sweeps.runner import Sweep
from supancl.sweeps.runs import RunsFailed

ENDINGS = {"text": "txt", "markdown": "md", "latex": "tex", "csv": "csv"}


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Fill the table from runs; or train and evaluate its rows first; or print the paper's numbers alone."""
    layout = LAYOUTS[table_name(args.name)]
    for_training = (args.overrides, args.benchmarks, args.family, args.recipe, args.rows, args.compat)
    trains = any((*for_training, args.dry_run, args.retry, args.jobs, args.seeds != 1))
    if trains and args.runs:
        raise BadInput(
            f"{args.runs[0]}: a table is filled from RUN or trained, not both; omit RUN to train the "
            "table's rows, or omit the flags for training"
        )
    return make_table(layout, args, console) if trains else lay_out(layout, args, console)


def lay_out(layout: Layout, args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Print the table of these runs, or write it to a file."""
    out = Path(args.out) if args.out else None
    if out is not None and out.is_dir():
        raise BadInput(f"--out {out}: is a folder; give a file")
    if out is not None and (why := why_unwritable(out.parent)):
        raise BadInput(f"--out {out}: cannot be written ({why}); name another file")
    filled = fill(layout, read_entries(args.runs))
    if out is None:
        print_table(filled, args.format, console)
    else:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(FORMATS[args.format](filled), encoding="utf-8")
        except OSError as error:
            raise BadInput(f"--out {out}: cannot be written ({error.strerror}); name another file") from None
        console.print(f"Table {layout.name} in {out}")
    return filled.to_json()


def print_table(filled: FilledTable, form: str, console: Console) -> None:
    """Print the table; text is fitted to the terminal, other formats are meant for a file."""
    text = as_text(filled, line_width(console)) if form == "text" else FORMATS[form](filled)
    console.print(text, end="")


def make_table(layout: Layout, args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Train and evaluate what is missing, then fill the table; the same command again continues."""
    require_single_process("a table")
    out = Path(args.out or f"runs/table-{layout.name}")
    sweep = sweep_from_flags(args, out, console)
    build = partial(recipe_from_flags, args=args)
    request = Request(build, args.overrides, args.rows, args.family, args.recipe, args.benchmarks)
    plan = make_plan(layout, request, sweep)
    check_plan(plan, sweep)
    states = show_plan(plan, sweep, console)
    if args.dry_run:
        return {"table": layout.name, "out": str(out), "plan": states}
    filled, failed = complete(plan, states, sweep)
    print_table(filled, args.format, console)
    write_text(out / f"table.{ENDINGS[args.format]}", FORMATS[args.format](filled))
    console.print(f"runs and table.{ENDINGS[args.format]} in {out}")
    result = filled.to_json() | {"out": str(out), "plan": {run.name: plan.state(run) for run in plan.runs}}
    if failed:
        raise RunsFailed(failed, result | {"rows": [run.name for run in plan.runs]}, out)
    return result


def show_plan(plan: Plan, sweep: Sweep, console: Console) -> dict[str, str]:
    """Print the runs with their states and the remaining time; returns the states."""
    states = {run.name: plan.state(run) for run in plan.runs}
    rows = [[run.name, run.recipe.name, states[run.name]] for run in plan.runs]
    console.print(table(f"Table {plan.layout.name}: {plural(len(rows), 'run')}", ["run", "recipe", "state"], rows))
    console.print(plan.estimate(sweep.jobs_for(plan.runs[0].recipe)))
    if plan.without_recipe:
        console.print(f"not trained, because there is no recipe: {', '.join(plan.without_recipe)}")
    failed_before = [name for name, state in states.items() if state == FAILED]
    if failed_before and not sweep.retry:
        console.print(f"failed before; --retry trains them again: {', '.join(failed_before)}")
    return states
