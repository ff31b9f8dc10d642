"""What every command that trains several runs can be told, and the sweep that it makes of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from supancl.config import flattened, parse_value
from supancl.errors import BadInput
from supancl.loggers import open_loggers
from supancl.recipes import Recipe, find_recipe, recipe
from supancl.recipes.shorthands import RecipeSettings, full_name, parse_set, with_settings
from supancl.reporter import has_reporter
from supancl.reports.terminal import print_warning
from supancl.runs.folder import next_folder
from supancl.training.start import as_sources

if TYPE_CHECKING:
    from supancl.sweeps.runner import Sweep


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


class SweepRequest:
    """The recipes and the sweep that a command was asked for."""

    def __init__(self, kind: str, options: Mapping[str, Any], seeds: int = 3) -> None:
        self.options = dict(options)
        own = ("data", "set", "compat", "seeds", "jobs", "retry", "out", "logger")
        self.given = {name: value for name, value in options.items() if name not in own}
        self.given |= parse_set(options.get("set"))
        reference = recipe("cifar100.supsiam")  # has every field that a flag names
        self.given = {full_name(reference, name): value for name, value in self.given.items()}
        if sources := as_sources(options.get("data")):
            self.given |= {"data.source": sources[0], "data.joined": tuple(sources[1:])}
        self.out = Path(options.get("out") or next_folder(kind))
        self.seeds = options.get("seeds", seeds)

    def recipe(self, name: Recipe | str | Path) -> Recipe:
        """The recipe with the settings; one that it cannot take is refused with its name."""
        try:
            return find_recipe(name, self.options.get("compat"), self.given)
        except BadInput as error:
            raise BadInput(str(error) if str(name) in str(error) else f"{name}: {error}") from None

    def bare(self, name: Recipe | str | Path) -> Recipe:
        """The recipe without the settings."""
        return find_recipe(name, self.options.get("compat"))

    def refuse(self, varied: Mapping[str, str]) -> None:
        """Refuse settings of fields that the sweep sets itself; `varied` maps each to what to use instead."""
        check_overrides(self.given, varied)

    def sweep(self) -> Sweep:
        """The sweep; each of its runs has the loggers that were named."""
        from supancl.sweeps.runner import Sweep

        # the runs may be trained in other processes, and say nothing but what their loggers warn of
        run_reporter = partial(open_loggers, tuple(self.options.get("logger") or ()), warn=print_warning)
        # several processes would import a user's script again, so from Python runs are trained one by one
        jobs = self.options.get("jobs", None if has_reporter() else 1)
        retry = self.options.get("retry", False)
        return Sweep(self.out, self.seeds, jobs, retry, run_reporter=run_reporter)


def check_overrides(overrides: Mapping[str, Any], varied: Mapping[str, str]) -> None:
    """Refuse settings of fields that the sweep sets; `varied` maps each to what to use instead."""
    for name, instead in varied.items():
        if name in overrides:
            raise BadInput(f"{name} is set by this study; give {instead} instead")


# --- the rows of a comparison -----------------------------------------------------------------------------------------


class RowSet(NamedTuple):
    """Recipes by the name of their row, and what results say of each row."""

    recipes: dict[str, Recipe]
    labels: dict[str, dict[str, Any]]


def recipe_rows(recipes: Iterable[tuple[str, Recipe]]) -> RowSet:
    """A row per recipe; two of one name, which come from files, get the name of the file or its folder."""
    named = list(recipes)
    names = [made.name for _, made in named]
    rows: dict[str, Recipe] = {}
    for given, made in named:
        path = Path(given)
        origin = path.resolve().parent.name if path.name == "recipe.json" else path.stem if path.suffix else path.name
        name = made.name if names.count(made.name) == 1 else f"{made.name}-{origin}"
        if name in rows or not safe_name(name):
            raise BadInput(f"{given} is named twice; name each recipe once")
        rows[safe_name(name)] = made
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
