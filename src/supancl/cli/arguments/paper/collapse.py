"""The arguments of `supancl paper collapse`."""

from __future__ import annotations

import argparse

from supancl.cli.checks import check_training
from supancl.cli.flags import add_recipe_flags, add_run_flags


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help="a SupSiam or SupBYOL recipe, shared by all four cells")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="seeds 0 to N - 1 (default 1)")
    add_run_flags(parser)
    parser.add_argument("--out", help="folder (default: runs/collapse-NNN); the same folder again continues")
    add_recipe_flags(parser)


def check(args: argparse.Namespace) -> None:
    check_training(args)
