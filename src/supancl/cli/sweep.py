"""`supancl sweep`."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from supancl.cli.compare import run_rows
from supancl.cli.flags import recipe_from_flags
from supancl.distributed import require_single_process
from supancl.errors import BadInput
from supancl.sweeps.grid import grid_rows, parse_grid, short_names
from supancl.sweeps.runner import check_overrides


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    require_single_process("a sweep")
    grid = parse_grid(args.grid)
    if "train.seed" in grid:
        raise BadInput("--grid train.seed: every combination has the seeds of --seeds N; leave it out of the grid")
    check_overrides(args.overrides, {**{field: f"--grid {field}=A,B" for field in grid}, "train.seed": "--seeds N"})
    base = recipe_from_flags(args.recipe, args)
    return run_rows(args, grid_rows(base, grid), short_names(grid), "best", console)
