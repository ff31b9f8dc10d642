"""`supancl embed`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from supancl.cli.encoders import open_encoders
from supancl.evaluate import embed_to_file


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    (evaluated,) = open_encoders(args, console, saves_results=False)
    result = embed_to_file(evaluated, args.data, Path(args.out), args.view)
    sizes = ", ".join(f"{name} {count} x {result['width']}" for name, count in result["splits"].items())
    held_out = f"; the run held {result['train_held_out']} of train out" if result["train_held_out"] else ""
    console.print(f"{args.out}: {sizes}{held_out}")
    return result
