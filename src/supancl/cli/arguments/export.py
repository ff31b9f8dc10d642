"""The arguments of `supancl export`."""

from __future__ import annotations

import argparse
from pathlib import Path

from supancl.cli.checks import check_encoders
from supancl.export.names import FORMAT_NAMES, check_out, parse_formats


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("encoder", metavar="RUN", help="a run folder, or any encoder that evaluate takes")
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to make")
    parser.add_argument(
        "--format",
        metavar="NAMES",
        help=f"some of {','.join(FORMAT_NAMES)} (default: every one that can hold the encoder)",
    )


def check(args: argparse.Namespace) -> None:
    parse_formats(args.format)
    check_out(Path(args.out))
    check_encoders(args.encoder)
