"""The arguments of `supancl runs`."""

from __future__ import annotations

import argparse


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", default="runs", help="list the runs below this folder (default: runs)")
