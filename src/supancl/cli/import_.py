"""`supancl import`."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from supancl.cli.encoders import ENCODER, add_foreign_flags, foreign_options
from supancl.weights.importing import import_checkpoint


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("encoder", metavar="ENCODER", help=ENCODER)
    parser.add_argument("--out", required=True, help="the .safetensors to write, or a folder for encoder.safetensors")
    add_foreign_flags(parser)


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    result = import_checkpoint(args.encoder, args.out, **foreign_options(args))
    console.print(", ".join(f"{key} {value}" for key, value in result.items() if value != ""))
    return result
