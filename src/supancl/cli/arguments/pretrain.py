"""The arguments of `supancl pretrain`."""

from __future__ import annotations

import argparse

from supancl.cli.checks import check_training
from supancl.cli.flags import add_logger_flag, add_recipe_flags
from supancl.errors import BadInput


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="a recipe's name (supancl recipes lists them)")
    parser.add_argument("--out", help="run folder (default: runs/RECIPE-NNN)")
    parser.add_argument("--resume", action="store_true", help="continue the run in --out")
    parser.add_argument(
        "--extend", metavar="RUN", help="continue a finished run to --epochs N in another folder (docs/runs.md)"
    )
    parser.add_argument(
        "--from",
        dest="recipe_file",
        metavar="FILE",
        help="settings from a run's recipe.json, or from a .json or .yaml of yours",
    )
    parser.add_argument(
        "--init",
        metavar="ENCODER",
        help="start from a run, a weight file, timm:NAME or torchvision:NAME (docs/import.md)",
    )
    add_logger_flag(parser)
    parser.add_argument(
        "--report-every",
        type=int,
        metavar="N",
        help="write RUN/report.html every N epochs and at the end (docs/report.md)",
    )
    add_recipe_flags(parser)


def check(args: argparse.Namespace) -> None:
    if args.recipe_file is not None:
        if args.recipe is not None or args.extend is not None:
            other = f"the recipe {args.recipe}" if args.recipe is not None else f"--extend {args.extend}"
            raise BadInput(f"--from {args.recipe_file} and {other}: settings come from one of them; drop the other")
        args.recipe = args.recipe_file
    if args.report_every is not None and args.report_every < 1:
        raise BadInput(f"--report-every {args.report_every}: give a number of epochs, 1 or more")
    check_training(args)
