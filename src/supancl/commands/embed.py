"""`supancl embed`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from supancl.console import Terminal
from supancl.flags import add_skip_flag
from supancl.judge import embed_to_file


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("encoder", help="a run folder or an encoder.safetensors")
    parser.add_argument("--data", required=True, help="digits, an image folder, a .npz or a .csv")
    parser.add_argument("--out", required=True, help="the .npz to write")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    add_skip_flag(parser)


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    result = embed_to_file(args.encoder, args.data, Path(args.out), args.device, Terminal(console),
                           args.skip_bad_images)
    sizes = ", ".join(f"{name} {count} x {result['width']}" for name, count in result["splits"].items())
    console.print(f"{args.out}: {sizes}")
    return result
