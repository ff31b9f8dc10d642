"""The arguments of `supancl sweep`."""

from __future__ import annotations

import argparse

from supancl.cli.checks import check_recipes
from supancl.cli.flags import add_recipe_flags, add_run_flags


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe by name, or a file as for pretrain --from")
    parser.add_argument(
        "--grid",
        nargs="+",
        action="extend",
        required=True,
        metavar="FIELD=A,B",
        help="fields of the recipe with the values to try, such as optimizer.lr=.1,.3; every combination is trained",
    )
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds 0 to N - 1 (default 3)")
    add_run_flags(parser)
    parser.add_argument("--out", help="folder (default: runs/sweep-NNN); an existing one is continued")
    add_recipe_flags(parser)


def check(args: argparse.Namespace) -> None:
    check_recipes(args, args.recipe)
