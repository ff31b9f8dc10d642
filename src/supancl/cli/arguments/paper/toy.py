"""The arguments of `supancl paper toy`."""

from __future__ import annotations

import argparse

from supancl.cli.choices import TOY_READINGS
from supancl.cli.flags import add_seeds_flag


def arguments(parser: argparse.ArgumentParser) -> None:
    add_seeds_flag(parser, 3)
    parser.add_argument(
        "--quick", action="store_true", help="a quarter of the dimensions, samples and batch, half the epochs"
    )
    parser.add_argument(
        "--reading",
        choices=TOY_READINGS,
        default="near",
        help="of App. B: literal, or near (default), which matches the paper's levels better (docs/toy-readings.md)",
    )
    parser.add_argument("--out", metavar="DIR", help="folder for tables, figure and toy.json (default runs/toy-NNN)")
