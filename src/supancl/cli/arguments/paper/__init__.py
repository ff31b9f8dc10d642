"""What `supancl paper COMMAND` takes."""

from __future__ import annotations

import argparse

from supancl.cli.commands import PAPER
from supancl.cli.flags import add_command


def arguments(parser: argparse.ArgumentParser) -> None:
    below = parser.add_subparsers(dest="experiment", required=True, metavar="COMMAND")
    for name, text in PAPER.items():
        add_command(below, name, f"paper.{name}", description=text, help=text)
