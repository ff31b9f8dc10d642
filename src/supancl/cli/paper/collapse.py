"""`supancl paper collapse`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from supancl.cli.console import table
from supancl.cli.flags import recipe_from_flags
from supancl.cli.loggers import sweep_from_flags
from supancl.distributed import require_single_process
from supancl.errors import plural
from supancl.paper.collapse import check_base, table_cells, train_cells
from supancl.sweeps.runner import check_overrides
from supancl.sweeps.runs import RunsFailed
from supancl.weights.run_folder import next_folder


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    require_single_process("a study")
    base = recipe_from_flags(args.recipe, args)
    check_overrides(args.overrides, {"train.seed": "--seeds N"})
    check_base(base)
    out = Path(args.out or next_folder("collapse"))
    sweep = sweep_from_flags(args, out, console)
    sweep.check_folder(base)
    result, runs = train_cells(base, sweep)
    epochs, seeds = plural(base.train.epochs, "epoch"), plural(args.seeds, "seed")
    title = f"{base.name}, {epochs}, alpha {result['alpha']:g}, {seeds}"
    console.print(table(title, *table_cells(result["rows"])))
    console.print(f"runs and collapse.json in {out}")
    if runs.failed:
        raise RunsFailed(runs.failed, result, out)
    return result
