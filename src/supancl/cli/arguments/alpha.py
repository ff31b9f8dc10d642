"""The arguments of `supancl alpha`."""

from __future__ import annotations

import argparse

from supancl.cli.checks import check_training
from supancl.cli.flags import add_sweep_flags


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help="a SupSiam or SupBYOL recipe")
    parser.add_argument("--alphas", default="0,.2,.5,.8,1", help="comma-separated (default 0,.2,.5,.8,1)")
    parser.add_argument(
        "--leave-out",
        type=float,
        default=0.3,
        metavar="SHARE",
        help="fraction of the classes left out of pretraining to measure transfer (default 0.3)",
    )
    parser.add_argument(
        "--shots",
        type=int,
        default=5,
        metavar="K",
        help="labelled images per left-out class that transfer is fitted on (default 5)",
    )
    add_sweep_flags(parser, "alpha")


def check(args: argparse.Namespace) -> None:
    check_training(args)
