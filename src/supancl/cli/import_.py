"""`supancl import`."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from supancl.cli.encoders import foreign_options
from supancl.weights.importing import import_checkpoint


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    result = import_checkpoint(args.encoder, args.out, **foreign_options(args))
    console.print(", ".join(f"{key} {value}" for key, value in result.items() if value != ""))
    return result
