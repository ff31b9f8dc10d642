"""The arguments of `supancl doctor`."""

from __future__ import annotations

import argparse


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="skip the trial of training and decoding")
