"""Refuse missing files before torch is imported, with the words of those who would open them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from supancl.cli.flags import recipe_from_flags
from supancl.data.opening import check_source
from supancl.distributed import from_environment
from supancl.weights.names import split_encoder_name


def check_encoders(*names: str) -> None:
    for name in names:
        split_encoder_name(name)


def check_data(*names: str | None) -> None:
    """Sources that are paths; a benchmark in a folder is checked by whoever knows what it is for."""
    for name in names:
        if name and "@" not in name:
            check_source(name)


def check_training(args: argparse.Namespace) -> None:
    """The recipe and its data. Several ranks agree on such an error later, and only one of them tells it."""
    if args.recipe is None or getattr(args, "resume", False) or from_environment().size > 1:
        return
    data = recipe_from_flags(args.recipe, args).data
    if not data.stream:
        check_data(data.source)


def listed(values: str | Iterable[str] | None) -> list[str]:
    """One value of a flag, or all of them.

    >>> listed("digits"), listed(["a", "b"]), listed(None)
    (['digits'], ['a', 'b'], [])
    """
    return [values] if isinstance(values, str) else list(values or ())
