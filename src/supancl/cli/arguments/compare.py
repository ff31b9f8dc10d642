"""The arguments of `supancl compare`."""

from __future__ import annotations

import argparse

from supancl.cli.checks import check_recipes
from supancl.cli.flags import add_recipe_flags, add_run_flags


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "recipes",
        nargs="+",
        metavar="RECIPE",
        help="recipes by name, or files as for pretrain --from; each is compared with the first",
    )
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds 0 to N - 1 (default 3)")
    add_run_flags(parser)
    parser.add_argument("--out", help="folder (default: runs/compare-NNN); an existing one is continued")
    add_recipe_flags(parser)


def check(args: argparse.Namespace) -> None:
    check_recipes(args, *args.recipes)
