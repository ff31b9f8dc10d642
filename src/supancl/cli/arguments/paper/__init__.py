"""The arguments of `supancl paper COMMAND`."""

from __future__ import annotations

import argparse

from supancl.cli.commands import PAPER
from supancl.cli.flags import add_command


def arguments(parser: argparse.ArgumentParser) -> None:
    subparsers = parser.add_subparsers(dest="experiment", required=True, metavar="COMMAND")
    for name, text in PAPER.items():
        add_command(subparsers, name, f"paper.{name}", description=text, help=text)
