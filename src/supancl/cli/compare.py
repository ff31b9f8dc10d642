"""`supancl compare`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from supancl.cli.console import line_width
from supancl.cli.flags import recipe_from_flags
from supancl.cli.loggers import sweep_from_flags
from supancl.distributed import require_single_process
from supancl.errors import BadInput, plural
from supancl.reports.comparison import comparison_table, write_comparison
from supancl.reports.tables import to_text_within
from supancl.sweeps.compare import Against, measures_in, train_and_compare
from supancl.sweeps.grid import RowSet, recipe_rows
from supancl.sweeps.runner import check_monitored, check_overrides
from supancl.sweeps.runs import RunsFailed
from supancl.weights.run_folder import next_folder


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    require_single_process("a comparison")
    check_overrides(args.overrides, {"train.seed": "--seeds N"})
    rows = recipe_rows((name, recipe_with_name(name, args)) for name in args.recipes)
    if len(rows.recipes) < 2:
        raise BadInput(f"{args.recipes[0]} alone: name two recipes or more to compare (supancl recipes lists them)")
    epochs = sorted({recipe.train.epochs for recipe in rows.recipes.values()})
    if len(epochs) > 1:
        console.print(f"the recipes train for {' and '.join(map(str, epochs))} epochs; --epochs N gives all the same")
    return run_rows(args, rows, {"row": "recipe"}, "first", console)


def recipe_with_name(name: str, args: argparse.Namespace) -> Any:
    """The recipe with the flags applied; a flag that it cannot take is refused with its name."""
    try:
        return recipe_from_flags(name, args)
    except BadInput as error:
        raise BadInput(str(error) if name in str(error) else f"{name}: {error}") from None


def run_rows(
    args: argparse.Namespace, rows: RowSet, heads: dict[str, str], against: Against, console: Console
) -> dict[str, Any]:
    """Train and compare the rows, print the table and write the results; `heads` are columns that name a row."""
    kind: str = args.command
    for recipe in rows.recipes.values():
        check_monitored(recipe)
    out = Path(args.out or next_folder(kind))
    sweep = sweep_from_flags(args, out, console)
    console.print(
        f"{plural(len(rows.recipes), 'row')} with {plural(args.seeds, 'seed')}: "
        f"{plural(len(rows.recipes) * args.seeds, 'run')} in {out}"
    )
    result, runs = train_and_compare(rows.recipes, rows.labels, sweep, against, kind)
    measures = measures_in(result)
    table = comparison_table(result, heads, measures)
    optional = [title for key, (title, _) in reversed(list(measures.items())) if not key.startswith("linear")]
    console.print(to_text_within(table, line_width(console), optional, "results.md"), end="")
    for line in result["findings"]:
        console.print(line)
    write_comparison(result, table, measures, out)
    console.print(f"runs and results.json, .md, .tex, .png in {out}; {result['seconds']:.0f} s")
    if runs.failed:
        raise RunsFailed(runs.failed, result, out)
    return result
