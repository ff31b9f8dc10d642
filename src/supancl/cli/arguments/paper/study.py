"""The arguments of `supancl paper study`."""

from __future__ import annotations

import argparse

from supancl.cli.checks import check_training
from supancl.cli.choices import STUDIES
from supancl.cli.flags import add_sweep_flags


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        choices=tuple(STUDIES),
        metavar="|".join(STUDIES),
        help="; ".join(f"{name}: {text}" for name, text in STUDIES.items()),
    )
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe; rows differ from it only in what the study varies")
    parser.add_argument("--rows", metavar="A,B", help="only these rows (default: all)")
    parser.add_argument(
        "--on-test",
        action="store_true",
        help="evaluate on the test split, to report, not to choose (default: held-out images)",
    )
    add_sweep_flags(parser, "study-WHAT", seeds=1)


def check(args: argparse.Namespace) -> None:
    check_training(args)
