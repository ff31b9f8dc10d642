"""Refuse missing files before torch is imported, with the same messages as when they are opened."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from supancl.cli.flags import recipe_from_flags
from supancl.data.opening import check_source
from supancl.distributed import from_environment
from supancl.weights.names import split_encoder_name


def check_encoders(*names: str) -> None:
    for name in names:
        split_encoder_name(name)


def check_data(*names: str | None) -> None:
    """Check sources that are paths; benchmarks (NAME@ROOT) are checked when they are opened."""
    for name in names:
        if name and "@" not in name:
            check_source(name)


def check_training(args: argparse.Namespace) -> None:
    """Check the recipe and its data; not in several processes, where rank 0 alone must report the error."""
    if args.recipe is not None and not getattr(args, "resume", False):
        check_recipes(args, args.recipe)


def check_recipes(args: argparse.Namespace, *names: str) -> None:
    """Check each recipe with the flags applied, and its data."""
    if from_environment().size > 1:
        return
    for name in names:
        data = recipe_from_flags(name, args).data
        if not data.stream:
            check_data(*data.all_sources)


def split_title(text: str) -> tuple[str, str]:
    """Split TITLE=RUN; a path that exists has no title, even with an equals sign.

    >>> split_title("alpha = 0=runs/a"), split_title("runs/a")
    (('alpha = 0', 'runs/a'), ('', 'runs/a'))
    """
    title, equals, path = text.rpartition("=")
    return ("", text) if not equals or Path(text).exists() else (title.strip(), path)


def as_list(values: str | Iterable[str] | None) -> list[str]:
    """The values of a flag that takes none, one or several.

    >>> as_list("digits"), as_list(["a", "b"]), as_list(None)
    (['digits'], ['a', 'b'], [])
    """
    return [values] if isinstance(values, str) else list(values or ())
