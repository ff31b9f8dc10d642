"""`supancl alpha`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from supancl.cli.console import table
from supancl.cli.flags import recipe_from_flags
from supancl.cli.loggers import sweep_from_flags
from supancl.distributed import require_single_process
from supancl.errors import BadInput, plural
from supancl.recipes import Recipe
from supancl.sweeps.alpha import check_alpha, summary_table, train_alphas, write_alphas
from supancl.sweeps.runner import check_overrides
from supancl.sweeps.runs import RunsFailed
from supancl.weights.run_folder import next_folder


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    require_single_process("a study")
    base, alphas = recipe_from_flags(args.recipe, args), parse_alphas(args.alphas)
    check(base, args)
    out = Path(args.out or next_folder("alpha"))
    sweep = sweep_from_flags(args, out, console)
    sweep.check_folder(base)
    result, runs, data = train_alphas(base, alphas, sweep, args.leave_out, args.shots)
    console.print(table(f"{base.name}, {plural(args.seeds, 'seed')}: mean ± sd", *summary_table(result)))
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
