"""The arguments of `supancl sweep`."""

from __future__ import annotations

import argparse

from supancl.cli.checks import check_recipes
from supancl.cli.flags import add_sweep_flags


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
    add_sweep_flags(parser, "sweep")


def check(args: argparse.Namespace) -> None:
    check_recipes(args, args.recipe)
