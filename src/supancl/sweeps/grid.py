"""The rows of `supancl compare`: recipes by name, and every combination of some settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from supancl.config import flattened, parse_value
from supancl.errors import BadInput
from supancl.recipes import Recipe
from supancl.recipes.shorthands import full_name, with_settings


class RowSet(NamedTuple):
    """Recipes by the name of their row, and what results say of each row."""

    recipes: dict[str, Recipe]
    labels: dict[str, dict[str, Any]]


def recipe_rows(recipes: Iterable[tuple[str, Recipe]]) -> RowSet:
    """A row per recipe; two of one name, which come from files, get the name of the file or its folder."""
    named = list(recipes)
    names = [recipe.name for _, recipe in named]
    rows: dict[str, Recipe] = {}
    for given, recipe in named:
        path = Path(given)
        origin = path.resolve().parent.name if path.name == "recipe.json" else path.stem if path.suffix else path.name
        name = recipe.name if names.count(recipe.name) == 1 else f"{recipe.name}-{origin}"
        if name in rows or not safe_name(name):
            raise BadInput(f"{given} is named twice; name each recipe once")
        rows[safe_name(name)] = recipe
    return RowSet(rows, {name: {"row": name} for name in rows})


def grid_rows(base: Recipe, grid: Mapping[str, Sequence[Any]]) -> RowSet:
    """A row per combination of values; values that the recipe reads as the same count once."""
    rows: dict[str, Recipe] = {}
    labels: dict[str, dict[str, Any]] = {}
    short = short_names(grid)
    for values in product(*grid.values()):
        changed = base.with_set(dict(zip(grid, values, strict=True)), because="compare")
        fields = {field: flattened(changed)[field] for field in grid}
        name = safe_name("-".join(f"{short[field]}-{show_value(value)}" for field, value in fields.items()))
        while rows.get(name, changed) != changed:  # two values that look the same in the name of a folder
            name += "+"
        rows[name] = changed
        labels[name] = {"row": name, **fields}
    return RowSet(rows, labels)


def split_grid(base: Recipe, settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """The settings of one value, and by dotted field those of several: a list in Python, or A,B on the command line."""
    single: dict[str, Any] = {}
    grid: dict[str, list[Any]] = {}
    for name, value in settings.items():
        values = split_values(value) if isinstance(value, str) else value
        if not isinstance(values, (list, tuple)) or len(values) < 2 or accepts(base, name, value):
            single[name] = value
        else:
            grid[full_name(base, name)] = [parse_value(item) if isinstance(item, str) else item for item in values]
    return single, grid


def accepts(recipe: Recipe, name: str, value: Any) -> bool:
    """Whether the field takes this value as it is: some fields are lists, or names with commas."""
    try:
        with_settings(recipe, {name: value})
    except BadInput:
        return False
    return True


def split_values(text: str) -> list[str]:
    """Split at commas outside of brackets.

    >>> split_values(".1,.3"), split_values("[0.2,1],[0.5,1]")
    (['.1', '.3'], ['[0.2,1]', '[0.5,1]'])
    """
    values, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0:
            values.append("")
        else:
            values[-1] += letter
    return [value.strip() for value in values]


def short_names(fields: Iterable[str]) -> dict[str, str]:
    """The last word of each field, or the whole field where two end alike.

    >>> short_names(["optimizer.lr", "loss.alpha"])
    {'optimizer.lr': 'lr', 'loss.alpha': 'alpha'}
    """
    names = {field: field.rpartition(".")[2] for field in fields}
    return {field: field if list(names.values()).count(name) > 1 else name for field, name in names.items()}


def show_value(value: Any) -> str:
    """A value as part of a name: a list without its brackets."""
    if isinstance(value, (list, tuple)):
        return "-".join(map(show_value, value))
    return value if isinstance(value, str) else json.dumps(value)


def safe_name(name: str) -> str:
    """The name as part of a file name."""
    return re.sub(r"[^\w.+-]+", "-", name).strip("-.")[:120]
