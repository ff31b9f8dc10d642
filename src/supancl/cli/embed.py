"""`supancl embed`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from supancl.cli.encoders import subjects
from supancl.evaluate import embed_to_file


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    (subject,) = subjects(args, console, keeps=False)
    result = embed_to_file(subject, args.data, Path(args.out), args.view)
    sizes = ", ".join(f"{name} {count} x {result['width']}" for name, count in result["splits"].items())
    held_out = f"; the run held {result['train_held_out']} of train out" if result["train_held_out"] else ""
    console.print(f"{args.out}: {sizes}{held_out}")
    return result
