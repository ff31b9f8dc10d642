"""`supancl paper study`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from supancl.cli.console import table
from supancl.cli.flags import recipe_from_flags
from supancl.cli.loggers import sweep_from_flags
from supancl.distributed import require_single_process
from supancl.paper.study import study_title, table_cells, train_rows, write_study
from supancl.paper.study_rows import STUDIES
from supancl.sweeps.runner import check_monitored, check_overrides, select_rows
from supancl.sweeps.runs import RunsFailed
from supancl.weights.run_folder import next_folder


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    require_single_process("a study")
    study, base = STUDIES[args.what], recipe_from_flags(args.recipe, args)
    study.check(base)
    check_overrides(args.overrides, {**study.varies, "train.seed": "--seeds N"})
    check_monitored(base)
    rows = select_rows(study.rows(base), args.rows, "study")
    out = Path(args.out or next_folder(f"study-{args.what}"))
    sweep = sweep_from_flags(args, out, console)
    sweep.check_folder(base)
    result, images, runs = train_rows(args.what, base, rows, sweep, args.on_test)
    title = study_title(result, images)
    console.print(table(title, *table_cells(result)))
    for line in result["differences"]:
        console.print(line)
    write_study(result, title, out)
    if args.what == "alpha":
        console.print(f"to choose an alpha for your data: supancl alpha {result['recipe']}")
    console.print(f"runs, study.json and study.md in {out}; the paper's table: supancl paper table {study.table} {out}")
    if runs.failed:
        raise RunsFailed(runs.failed, result, out)
    return result
