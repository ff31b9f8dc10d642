"""Flags of commands that take encoders, and opening these encoders."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from rich.console import Console

from supancl.cli.console import Terminal
from supancl.errors import BadInput
from supancl.evaluate import EvaluatedEncoder, EvaluationOptions, SourceCache, open_evaluated_encoder
from supancl.training.preflight import pick_device


def foreign_options(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "size": args.size,
        "mean": parse_numbers(args.mean, "--mean"),
        "std": parse_numbers(args.std, "--std"),
        "branch": args.branch,
        "prefix": args.prefix,
    }


def parse_numbers(text: str | None, flag: str) -> list[float] | None:
    if text is None:
        return None
    try:
        values = [float(word) for word in text.split(",")]
    except ValueError:
        values = [math.nan]
    if not all(map(math.isfinite, values)):
        raise BadInput(f"{flag} {text}: must be comma-separated numbers, such as 0.5,0.5,0.5")
    return values


def parse_integers(text: str, flag: str) -> list[int]:
    """Comma-separated integers of at least 1, without repetitions."""
    try:
        values = [int(word) for word in text.split(",")]
    except ValueError:
        raise BadInput(f"{flag} {text}: must be comma-separated whole numbers, such as 1,5") from None
    for value in values:
        check_at_least(value, 1, flag)
    return list(dict.fromkeys(values))


def parse_names(text: str | None) -> list[str]:
    """The names between the commas."""
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def check_at_least(value: float, minimum: float, flag: str, above: bool = False) -> None:
    """Refuse a value below the minimum, and nan."""
    if not (value > minimum if above else value >= minimum):
        raise BadInput(f"{flag} {value:g}: must be {'above' if above else 'at least'} {minimum:g}")


def open_encoders(args: argparse.Namespace, console: Console, saves_results: bool = True) -> list[EvaluatedEncoder]:
    """Open the encoders; if results are saved in their runs, runs that cannot be written to are refused."""
    check_at_least(args.batch_size, 1, "--batch-size")
    options = EvaluationOptions(
        pick_device(args.device),
        layer=args.layer,
        normalize=args.normalize,
        batch_size=args.batch_size,
        cache_features=not args.no_cache,
        skip_bad_images=args.skip_bad_images,
        partial=args.partial,
        baselines=not getattr(args, "no_baselines", True),
        cross_validate=hasattr(args, "no_baselines"),
        sources=SourceCache(),
        columns=args.columns,
    )
    texts = args.encoder if isinstance(args.encoder, list) else [args.encoder]
    paths = [Path(text).resolve() for text in texts]
    for text, path in zip(texts, paths, strict=True):
        if paths.count(path) > 1:
            raise BadInput(f"{text} is named twice; name each encoder once: a second one would count as a seed")
    reporter = Terminal(console)
    encoders = [open_evaluated_encoder(text, options, reporter, **foreign_options(args)) for text in texts]
    for run in (encoder.run for encoder in encoders if saves_results and encoder.run is not None):
        run.check_evaluations_writable()
    return encoders
