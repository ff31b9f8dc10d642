"""The arguments of `supancl paper theory`."""

from __future__ import annotations

import argparse

from supancl.cli.choices import THEORY_SAMPLES


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0, help="seed of populations, weights and samples (default 0)")
    parser.add_argument(
        "--samples",
        type=int,
        default=THEORY_SAMPLES,
        metavar="N",
        help=f"size of the largest Monte-Carlo samples (default {THEORY_SAMPLES})",
    )
