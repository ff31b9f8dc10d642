"""`supancl paper collapse`."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from supancl.cli.console import Terminal, table
from supancl.cli.flags import add_recipe_flags, add_run_flags, recipe_from_flags
from supancl.core.losses import Align
from supancl.core.methods import COLLAPSE_CELLS
from supancl.distributed import by_one
from supancl.errors import BadInput, counted
from supancl.paper.collapse import line, train_cells
from supancl.sweeps.runner import RunsFailed, check_jobs, check_overrides, place_of


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", help="a SupSiam or SupBYOL recipe; all four cells share its settings")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="seeds 0 to N - 1 (default 1)")
    add_run_flags(parser)
    parser.add_argument("--out", help="folder (default: runs/collapse-NNN); the same one again goes on")
    add_recipe_flags(parser)


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    by_one("a study")
    base = recipe_from_flags(args.recipe, args)
    if not isinstance(base.loss, Align) or base.heads.predictor is None:
        raise BadInput(f"{base.name} is not a SupSiam or SupBYOL recipe")
    if not base.loss.supervised:
        raise BadInput(f"{base.name} has alpha = 1, so a pool has nothing to do; take supsiam or supbyol")
    if args.seeds < 1:
        raise BadInput(f"--seeds {args.seeds}: must be at least 1")
    check_jobs(args.jobs)
    check_overrides(args.overrides, {"train.seed": "--seeds N"})
    if base.train.on_collapse == "stop":
        raise BadInput(
            "train.on_collapse = 'stop' would end a cell when it collapses, before there is a k-NN to set "
            "beside the paper's; leave it at warn"
        )
    if base.train.monitor_every == 0:
        raise BadInput("train.monitor_every = 0 turns off the monitor, whose verdict this study is about")
    out = place_of(args.out, "collapse", base)
    result, runs = train_cells(base, args.seeds, out, Terminal(console), args.jobs, args.retry)
    columns = ["pool", "EMA", "collapse", "k-NN %", "effective rank", "std", "paper: collapse", "paper: k-NN %"]
    columns += ["failed"] * bool(runs.failed)
    epochs, seeds = counted(base.train.epochs, "epoch"), counted(args.seeds, "seed")
    title = f"{base.name}, {epochs}, alpha {base.loss.alpha:g}, {seeds}"
    console.print(table(title, columns, [line(result["rows"], key) for key in COLLAPSE_CELLS]))
    console.print(f"runs and collapse.json in {out}")
    if runs.failed:
        raise RunsFailed(runs.failed, result, out)
    return result
