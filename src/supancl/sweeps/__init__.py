"""Several runs for one question: what a command may be told of them, and the recipes of their rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal, TypeVar

from supancl.config import flattened, parse_value
from supancl.errors import BadInput, did_you_mean
from supancl.loggers import open_loggers
from supancl.recipes import Recipe, find_recipe, recipe
from supancl.recipes.shorthands import RecipeSettings, full_name, parse_set, with_settings
from supancl.reporter import has_reporter
from supancl.reports.terminal import print_warning
from supancl.runs.folder import next_folder
from supancl.training.start import as_sources

T = TypeVar("T")


class SweepSettings(RecipeSettings, total=False):
    """Several runs.

    Parameters
    ----------
    data
        digits, toy, a folder, .npz, .csv, .tar shards, torchvision:NAME@ROOT, hf:NAME; several are joined
    set
        any field of the recipe, such as loss.alpha=0.3
    compat
        follow the paper, or the authors' code
    seeds
        seeds 0 to N - 1
    jobs
        runs in parallel (default: automatic)
    retry
        continue runs that failed in an earlier call (default: only list them)
    out
        folder; an existing one is continued
    logger
        also log to wandb or mlflow; may be given several times
    """

    data: str | list[str]
    set: Mapping[str, Any] | list[str]
    compat: Literal["paper", "released-code"]
    seeds: int
    jobs: int
    retry: bool
    out: str | Path
    logger: list[str]


class Sweep:
    """What a command was asked for: settings of its recipes, and how its runs are trained.

    Each row, a named recipe, is trained with seeds 0 to `seeds` - 1 in out/ROW-seed-N.
    """

    def __init__(self, kind: str, options: Mapping[str, Any], seeds: int = 3) -> None:
        self.compat = options.get("compat")
        own = SweepSettings.__annotations__.keys() - RecipeSettings.__annotations__.keys()
        given = {name: value for name, value in options.items() if name not in own} | parse_set(options.get("set"))
        reference = recipe("cifar100.supsiam")  # has every field that a flag names
        self.given = {full_name(reference, name): value for name, value in given.items()}
        if sources := as_sources(options.get("data")):
            self.given |= {"data.source": sources[0], "data.joined": tuple(sources[1:])}
        self.out = Path(options.get("out") or next_folder(kind))
        self.seeds, self.retry = options.get("seeds", seeds), options.get("retry", False)
        # several processes would import a user's script again, so from Python runs are trained one by one;
        # None: as many at once as suit the recipe
        self.jobs: int | None = options.get("jobs", None if has_reporter() else 1)
        if min(self.seeds, 1 if self.jobs is None else self.jobs) < 1:
            raise BadInput(f"seeds {self.seeds}, jobs {self.jobs}: must be at least 1")
        # the runs may be trained in other processes, and say nothing but what their loggers warn of
        self.run_reporter = partial(open_loggers, tuple(options.get("logger") or ()), warn=print_warning)

    def recipe(self, name: Recipe | str | Path) -> Recipe:
        """The recipe with the settings; one that it cannot take is refused with its name."""
        try:
            return find_recipe(name, self.compat, self.given)
        except BadInput as error:
            raise BadInput(str(error) if str(name) in str(error) else f"{name}: {error}") from None

    def with_seeds(self, rows: Mapping[str, Recipe], because: str) -> dict[str, Recipe]:
        """The runs by name: each row with every seed."""
        return {
            run_name(row, seed): recipe.with_set({"train.seed": seed}, because=because)
            for row, recipe in rows.items()
            for seed in range(self.seeds)
        }


def run_name(row: str, seed: int) -> str:
    """The name of a run, and of its folder."""
    return f"{row}-seed-{seed}"


def select_rows(rows: Mapping[str, T], requested: str | None, kind: str) -> dict[str, T]:
    """The rows that `--rows A,B` names, in the order of `rows`; all rows if it is None."""
    names = list(rows) if requested is None else [name.strip() for name in requested.split(",")]
    for name in names:
        if name not in rows:
            raise BadInput(f"rows {requested}: no row {name!r} in this {kind}{did_you_mean(name, rows)}")
    return {name: row for name, row in rows.items() if name in names}


def check_overrides(overrides: Mapping[str, Any], varied: Mapping[str, str]) -> None:
    """Refuse settings of fields that the sweep sets; `varied` maps each to what to use instead."""
    for name, instead in varied.items():
        if name in overrides:
            raise BadInput(f"{name} is set by this study; give {instead} instead")


# --- the rows of a comparison -----------------------------------------------------------------------------------------

Rows = dict[str, Recipe]
Labels = dict[str, dict[str, Any]]  # row -> fields that name it in results, such as {"loss.alpha": 0.5}


def recipe_rows(recipes: Iterable[Recipe]) -> tuple[Rows, Labels]:
    """A row per recipe; two of one name, which come from files, have a plus."""
    rows = Rows()
    for made in recipes:
        _add_row(rows, made.name, made)
    return rows, {name: {"row": name} for name in rows}


def _add_row(rows: Rows, name: str, made: Recipe) -> str:
    name = safe_name(name)
    while rows.get(name, made) != made:  # two that look the same in the name of a folder
        name += "+"
    rows[name] = made
    return name


def grid_rows(base: Recipe, grid: Mapping[str, Sequence[Any]]) -> tuple[Rows, Labels]:
    """A row per combination of values; values that the recipe reads as the same count once."""
    rows, labels, short = Rows(), Labels(), short_names(grid)
    for values in product(*grid.values()):
        changed = base.with_set(dict(zip(grid, values, strict=True)), because="compare")
        fields = {field: flattened(changed)[field] for field in grid}
        words = (f"{short[field]}-{_plain_text(value)}" for field, value in fields.items())
        name = _add_row(rows, "-".join(words), changed)
        labels[name] = {"row": name, **fields}
    return rows, labels


def split_grid(base: Recipe, settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """The settings of one value, and by dotted field those of several: a list in Python, or A,B on the command line."""
    single: dict[str, Any] = {}
    grid: dict[str, list[Any]] = {}
    for name, value in settings.items():
        values = _split_values(value) if isinstance(value, str) else value
        if not isinstance(values, (list, tuple)) or len(values) < 2 or _is_one_value(base, name, value):
            single[name] = value
        else:
            grid[full_name(base, name)] = list(values)
    return single, grid


def _is_one_value(base: Recipe, name: str, value: Any) -> bool:
    """Whether the field takes the value as it is: some fields are lists, or names with commas."""
    try:
        with_settings(base, {name: value})
    except BadInput:
        return False
    return True


def _split_values(text: str) -> list[Any]:
    """The values of 0,0.5 or stop,skip or [16],[16,16]."""
    try:
        return list(json.loads(f"[{text}]"))
    except ValueError:
        return [parse_value(word.strip()) for word in text.split(",")]


def short_names(fields: Iterable[str]) -> dict[str, str]:
    """The last word of each field, or the whole field where two end alike.

    >>> short_names(["optimizer.lr", "loss.alpha"])
    {'optimizer.lr': 'lr', 'loss.alpha': 'alpha'}
    """
    names = {field: field.rpartition(".")[2] for field in fields}
    return {field: field if list(names.values()).count(name) > 1 else name for field, name in names.items()}


def _plain_text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "-".join(map(_plain_text, value))
    return value if isinstance(value, str) else json.dumps(value)


def safe_name(name: str) -> str:
    """The name as part of a file name."""
    return re.sub(r"[^\w.+-]+", "-", name).strip("-.")[:120]
