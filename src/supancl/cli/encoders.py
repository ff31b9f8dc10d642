"""Flags of every command that takes encoders, and how they become subjects."""

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


def foreign(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "size": args.size,
        "mean": numbers(args.mean, "--mean"),
        "std": numbers(args.std, "--std"),
        "branch": args.branch,
        "prefix": args.prefix,
    }


def numbers(text: str | None, flag: str) -> list[float] | None:
    if text is None:
        return None
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [math.nan]
    if not all(map(math.isfinite, found)):
        raise BadInput(f"{flag} {text}: wanted numbers with commas between them, such as 0.5,0.5,0.5")
    return found


def whole_numbers(text: str, flag: str) -> list[int]:
    """At least one, each from 1 on."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise BadInput(f"{flag} {text}: wanted whole numbers with commas between them, such as 1,5") from None
    for value in found:
        at_least(value, 1, flag)
    return list(dict.fromkeys(found))


def names(text: str | None) -> list[str]:
    """What stands between the commas."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def at_least(value: float, least: float, flag: str, above: bool = False) -> None:
    """Refuse what is too small; what is no number is never large enough."""
    if not (value > least if above else value >= least):
        raise BadInput(f"{flag} {value:g}: must be {'above' if above else 'at least'} {least:g}")


def subjects(args: argparse.Namespace, console: Console, keeps: bool = True) -> list[EvaluatedEncoder]:
    """The encoders named; where results are to be kept in their runs, runs that cannot be written in are refused."""
    at_least(args.batch_size, 1, "--batch-size")
    options = EvaluationOptions(
        pick_device(args.device),
        layer=args.layer,
        normalize=args.normalize,
        batch_size=args.batch_size,
        cache_features=not args.no_cache,
        skip_bad_images=args.skip_bad_images,
        partial=args.partial,
        sources=SourceCache(),
    )
    named = args.encoder if isinstance(args.encoder, list) else [args.encoder]
    places = [Path(where).resolve() for where in named]
    for where, place in zip(named, places, strict=True):
        if places.count(place) > 1:
            raise BadInput(f"{where} is named twice; name each encoder once: a second one would count as a seed")
    reporter = Terminal(console)
    found = [open_evaluated_encoder(where, options, reporter, **foreign(args)) for where in named]
    for run in (subject.run for subject in found if keeps and subject.run is not None):
        run.check_evaluations()
    return found
