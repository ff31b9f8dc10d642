"""Flags of every command that takes encoders, and how they become subjects."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from supancl.console import Terminal
from supancl.errors import BadInput
from supancl.flags import add_skip_flag
from supancl.judge import Subject, make_look, open_subject

ENCODER = "a run folder, an encoder.safetensors, NAME@FILE, or a checkpoint of another library (docs/import.md)"


def add_encoder_flags(parser: argparse.ArgumentParser, several: bool = False) -> None:
    parser.add_argument("encoder", nargs="+" if several else None, metavar="ENCODER", help=ENCODER)
    add_foreign_flags(parser)
    parser.add_argument("--layer", default="pooled", help="features of this layer of the encoder (default: its own)")
    parser.add_argument("--normalize", action="store_true", help="features of unit length")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--batch-size", type=int, default=256, help="images encoded at a time")
    parser.add_argument("--no-cache", action="store_true", help="take features anew and do not keep them")
    add_skip_flag(parser)


def add_foreign_flags(parser: argparse.ArgumentParser) -> None:
    """What files of other libraries do not say of themselves."""
    parser.add_argument("--size", type=int, help="side of the encoder's input, where its file does not say")
    parser.add_argument("--mean", help="of the encoder's input: a,b,c")
    parser.add_argument("--std", help="of the encoder's input: a,b,c")
    parser.add_argument("--branch", default="online", choices=("online", "target"), help="which, where a file has both")
    parser.add_argument("--prefix", help="of the encoder's tensors, where no known format has it")


def foreign(args: argparse.Namespace) -> dict[str, Any]:
    return {"size": args.size, "mean": numbers(args.mean, "--mean"), "std": numbers(args.std, "--std"),
            "branch": args.branch, "prefix": args.prefix}


def numbers(text: str | None, flag: str) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise BadInput(f"{flag} {text}: wanted numbers with commas between them, such as 0.5,0.5,0.5") from None


def whole_numbers(text: str, flag: str) -> list[int]:
    found = numbers(text, flag) or []
    if any(value != int(value) or value < 1 for value in found):
        raise BadInput(f"{flag} {text}: wanted whole numbers from 1 on, such as 1,5")
    return [int(value) for value in found]


def subjects(args: argparse.Namespace, console: Console) -> list[Subject]:
    if args.batch_size < 1:
        raise BadInput(f"--batch-size {args.batch_size}: must be at least 1")
    look = make_look(args.device, layer=args.layer, normalize=args.normalize, batch_size=args.batch_size,
                     keep=not args.no_cache, skip_bad_images=args.skip_bad_images)
    named = args.encoder if isinstance(args.encoder, list) else [args.encoder]
    reporter = Terminal(console)
    return [open_subject(where, look, reporter, **foreign(args)) for where in named]
