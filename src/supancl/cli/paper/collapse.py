"""`supancl paper collapse`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from supancl.cli.console import Terminal, table
from supancl.cli.flags import recipe_from_flags
from supancl.distributed import by_one
from supancl.errors import counted
from supancl.paper.collapse import check_base, laid_out, train_cells
from supancl.sweeps.runner import Sweep, check_overrides
from supancl.sweeps.runs import RunsFailed
from supancl.weights.run_folder import next_folder


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    by_one("a study")
    base = recipe_from_flags(args.recipe, args)
    check_overrides(args.overrides, {"train.seed": "--seeds N"})
    check_base(base)
    out = Path(args.out or next_folder("collapse"))
    sweep = Sweep(out, args.seeds, args.jobs, args.retry, Terminal(console))
    sweep.check_folder(base)
    result, runs = train_cells(base, sweep)
    epochs, seeds = counted(base.train.epochs, "epoch"), counted(args.seeds, "seed")
    title = f"{base.name}, {epochs}, alpha {result['alpha']:g}, {seeds}"
    console.print(table(title, *laid_out(result["rows"])))
    console.print(f"runs and collapse.json in {out}")
    if runs.failed:
        raise RunsFailed(runs.failed, result, out)
    return result
