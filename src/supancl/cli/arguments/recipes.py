"""The arguments of `supancl recipes`."""

from __future__ import annotations

import argparse

from supancl.cli.flags import add_recipe_flags


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="show this recipe, with the source of each value")
    add_recipe_flags(parser)
