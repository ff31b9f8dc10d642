"""The arguments of `supancl paper collapse`."""

from __future__ import annotations

import argparse

from supancl.cli.checks import check_training
from supancl.cli.flags import add_sweep_flags


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help="a SupSiam or SupBYOL recipe, shared by all four cells")
    add_sweep_flags(parser, "collapse", seeds=1)


def check(args: argparse.Namespace) -> None:
    check_training(args)
