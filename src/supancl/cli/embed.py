"""`supancl embed`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from supancl.cli.encoders import add_encoder_flags, add_view_flag, open_encoders
from supancl.evaluate import embed_to_file


def arguments(parser: argparse.ArgumentParser) -> None:
    add_encoder_flags(parser)
    parser.add_argument("--data", required=True, help="anything that pretrain's --data takes")
    parser.add_argument("--out", required=True, help="the .npz to write")
    add_view_flag(parser)


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    (evaluated,) = open_encoders(args, console, saves_results=False)
    result = embed_to_file(evaluated, args.data, Path(args.out), args.view)
    sizes = ", ".join(f"{name} {count} x {result['width']}" for name, count in result["splits"].items())
    held_out = f"; the run held {result['train_held_out']} of train out" if result["train_held_out"] else ""
    console.print(f"{args.out}: {sizes}{held_out}")
    return result
