"""What `supancl paper toy` takes."""

from __future__ import annotations

import argparse

from supancl.cli.choices import TOY_READINGS


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds 0 to N - 1 (default 3)")
    parser.add_argument(
        "--quick", action="store_true", help="a quarter of the dimensions, samples and batch, half the epochs"
    )
    parser.add_argument(
        "--reading",
        choices=TOY_READINGS,
        default="near",
        help="of App. B: literal, or near to the paper's levels (default; docs/toy-readings.md)",
    )
    parser.add_argument("--out", metavar="DIR", help="folder for tables, figure and toy.json (default runs/toy-NNN)")
