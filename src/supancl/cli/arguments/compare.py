"""The arguments of `supancl compare`."""

from __future__ import annotations

import argparse

from supancl.cli.checks import check_recipes
from supancl.cli.flags import add_sweep_flags


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "recipes",
        nargs="+",
        metavar="RECIPE",
        help="recipes by name, or files as for pretrain --from; each is compared with the first",
    )
    add_sweep_flags(parser, "compare")


def check(args: argparse.Namespace) -> None:
    check_recipes(args, *args.recipes)
