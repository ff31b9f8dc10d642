"""The arguments of `supancl import`."""

from __future__ import annotations

import argparse

from supancl.cli.checks import check_encoders
from supancl.cli.flags import ENCODER, add_foreign_flags


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("encoder", metavar="ENCODER", help=ENCODER)
    parser.add_argument("--out", required=True, help="the .safetensors to write, or a folder for encoder.safetensors")
    add_foreign_flags(parser)


def check(args: argparse.Namespace) -> None:
    check_encoders(args.encoder)
