"""`supancl alpha`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from supancl.cli.console import Terminal, table
from supancl.cli.flags import add_recipe_flags, add_run_flags, recipe_from_flags
from supancl.distributed import require_single_process
from supancl.errors import BadInput, plural
from supancl.recipes import Recipe
from supancl.sweeps.alpha import check_alpha, summary_table, train_alphas, write_alphas
from supancl.sweeps.runner import Sweep, check_overrides
from supancl.sweeps.runs import RunsFailed
from supancl.weights.run_folder import next_folder


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", help="a SupSiam or SupBYOL recipe")
    parser.add_argument("--alphas", default="0,.2,.5,.8,1", help="comma-separated (default 0,.2,.5,.8,1)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds 0 to N - 1 (default 3)")
    parser.add_argument(
        "--leave-out",
        type=float,
        default=0.3,
        metavar="SHARE",
        help="fraction of the classes left out of pretraining to measure transfer (default 0.3)",
    )
    parser.add_argument(
        "--shots",
        type=int,
        default=5,
        metavar="K",
        help="labelled images per left-out class that transfer is fitted on (default 5)",
    )
    add_run_flags(parser)
    parser.add_argument("--out", help="folder (default: runs/alpha-NNN); an existing one is continued")
    add_recipe_flags(parser)


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    require_single_process("a study")
    base, alphas = recipe_from_flags(args.recipe, args), parse_alphas(args.alphas)
    check(base, args)
    out = Path(args.out or next_folder("alpha"))
    sweep = Sweep(out, args.seeds, args.jobs, args.retry, Terminal(console))
    sweep.check_folder(base)
    result, runs, data = train_alphas(base, alphas, sweep, args.leave_out, args.shots)
    console.print(table(f"{base.name}, {plural(args.seeds, 'seed')}: mean +- sd", *summary_table(result)))
    console.print(result["recommendation"])
    page = write_alphas(result, runs, data, out)
    console.print(f"page: {page}; {result['seconds']:.0f} s")
    if runs.failed:
        raise RunsFailed(runs.failed, result, out)
    return result


def parse_alphas(text: str) -> list[float]:
    values = []
    for word in text.split(","):
        try:
            value = float(word)
        except ValueError:
            raise BadInput(f"--alphas {text}: {word!r} is not a number") from None
        if not 0 <= value <= 1:
            raise BadInput(f"--alphas {text}: {word} lies outside [0, 1]")
        values.append(float(f"{value:g}"))  # as the runs' folders are named: no two alphas share one
    return sorted(set(values))


def check(base: Recipe, args: argparse.Namespace) -> None:
    check_alpha(base)
    if args.shots < 1:
        raise BadInput(f"--shots {args.shots}: must be at least 1")
    if not 0 <= args.leave_out < 1:
        raise BadInput(f"--leave-out {args.leave_out:g}: must lie in [0, 1)")
    check_overrides(
        args.overrides, {"loss.alpha": "--alphas", "train.seed": "--seeds N", "data.leave_out": "--leave-out SHARE"}
    )
