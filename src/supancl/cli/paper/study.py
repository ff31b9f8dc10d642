"""`supancl paper study`."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from supancl.cli.console import Terminal, table
from supancl.cli.flags import add_recipe_flags, add_run_flags, recipe_from_flags
from supancl.distributed import by_one
from supancl.errors import BadInput, nearest
from supancl.paper.study import Ablation, laid_out, study_title, train_rows, write_study
from supancl.paper.study_rows import STUDIES, Rows, Study
from supancl.recipes import Recipe
from supancl.sweeps.runner import RunsFailed, check_jobs, check_overrides, place_of


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        choices=tuple(STUDIES),
        metavar="|".join(STUDIES),
        help="; ".join(f"{name}: {study.help}" for name, study in STUDIES.items()),
    )
    parser.add_argument("recipe", help="a recipe; all rows share its settings but for what the study varies")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="seeds 0 to N - 1 (default 1)")
    parser.add_argument("--rows", metavar="A,B", help="only these rows (default: all of the study's)")
    add_run_flags(parser)
    parser.add_argument(
        "--on-test",
        action="store_true",
        help="judge on the test split, to report and not to choose by (default: held-out images)",
    )
    parser.add_argument("--out", help="folder (default: runs/study-WHAT-NNN); the same one again goes on")
    add_recipe_flags(parser)


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    by_one("a study")
    study, base = STUDIES[args.what], recipe_from_flags(args.recipe, args)
    check(study, base, args)
    rows = chosen_rows(study, base, args.rows)
    asked = Ablation(args.what, base, rows, args.seeds, args.on_test, args.jobs, args.retry)
    out = place_of(args.out, f"study-{args.what}", base)
    result, images, runs = train_rows(asked, out, Terminal(console))
    title = study_title(result, images)
    console.print(table(title, *laid_out(result)))
    for line in result["differences"]:
        console.print(line)
    write_study(result, title, out)
    if args.what == "alpha":
        console.print(f"to choose an alpha for your data: supancl alpha {result['recipe']}")
    console.print(f"runs, study.json and study.md in {out}; the paper's table: supancl paper table {study.table} {out}")
    if runs.failed:
        raise RunsFailed(runs.failed, result, out)
    return result


def check(study: Study, base: Recipe, args: argparse.Namespace) -> None:
    reason = study.refuses(base)
    if reason is not None:
        raise BadInput(reason)
    if args.seeds < 1:
        raise BadInput(f"--seeds {args.seeds}: must be at least 1")
    check_jobs(args.jobs)
    check_overrides(args.overrides, {**study.varies, "train.seed": "--seeds N"})
    if base.train.monitor_every == 0:
        raise BadInput("train.monitor_every = 0: a study tells finished runs by their last check; leave it at 1")


def chosen_rows(study: Study, base: Recipe, asked: str | None) -> Rows:
    rows = study.rows(base)
    if asked is None:
        return rows
    names = [name.strip() for name in asked.split(",")]
    for name in names:
        if name not in rows:
            raise BadInput(f"--rows {asked}: no row {name!r} in this study{nearest(name, rows)}")
    return {name: row for name, row in rows.items() if name in names}
