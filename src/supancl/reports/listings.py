"""`list_runs` and `list_recipes`: what there is, as tables."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from typing_extensions import Unpack

from supancl.recipes import RECIPES, find_recipe, recipe
from supancl.recipes.recipe import resolve_warmup
from supancl.recipes.shorthands import RecipeSettings, parse_set
from supancl.reporter import say, show
from supancl.reports.tables import Table, plain_table
from supancl.runs.listing import ListedRun, find_listed_runs
from supancl.stats import duration


def list_runs(folder: str | Path = "runs") -> dict[str, Any]:
    """List the runs below a folder with their state, size and accuracy.

    Parameters
    ----------
    folder
        where to look

    Returns
    -------
    dict
        {"folder": folder, "runs": [run, ...]}

    Examples
    --------
    $ supancl runs
    $ supancl runs experiments --json runs.json
    """
    runs = find_listed_runs(Path(folder))
    if runs:
        show(runs_table(runs, Path(folder)))
    else:
        say(f"no run below {folder}")
    return {"folder": str(folder), "runs": [asdict(run) | {"path": str(run.path)} for run in runs]}


def runs_table(runs: list[ListedRun], folder: Path) -> Table:
    """One row per run; accuracies are those of `supancl evaluate`, or else of the last check while training."""
    columns = ["run", "state", "recipe", "data", "epochs", "size", "age", "k-NN", "linear", "of"]
    rows = [
        [
            str(run.path.relative_to(folder)) if run.path != folder else str(run.path),
            run.state,
            run.recipe,
            Path(run.data).name or run.data,
            format_epochs(run),
            format_bytes(run.nbytes),
            format_age(run.last_written),
            *(
                "" if value is None else f"{'mAP ' * run.has_several_labels}{value:.1f}"
                for value in (run.knn, run.linear)
            ),
            "" if run.tested_images is None else f"{run.tested_images:,}",
        ]
        for run in runs
    ]
    notes = ["k-NN, linear: % of as many held-out images"] * any(run.tested_images is not None for run in runs)
    notes += [f"{run.path}: {run.problem}; it can be resumed once that is restored" for run in runs if run.problem]
    sides, optional = "l" * (len(columns) - 6) + "rrrrrr", ("recipe", "data", "age", "size")
    return Table(columns, rows, sides, notes=notes, optional=optional)


def format_epochs(run: ListedRun) -> str:
    if run.epochs is None:
        return ""
    return str(run.epochs) if run.epochs_done >= run.epochs else f"{run.epochs_done}/{run.epochs}"


def format_age(last_written: float) -> str:
    """The larger unit of the time since then: 3 d."""
    if last_written != last_written:
        return ""
    return " ".join(duration(max(0.0, time.time() - last_written)).split()[:2])


def format_bytes(nbytes: int) -> str:
    """A size with its unit.

    >>> format_bytes(1_234_567), format_bytes(2_500_000_000), format_bytes(800)
    ('1.2 MB', '2.5 GB', '1 kB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if nbytes >= size:
            return f"{nbytes / size:,.1f} {unit}"
    return f"{nbytes / 1e3:.0f} kB"


def list_recipes(
    name: str | None = None,
    *,
    set: Mapping[str, Any] | list[str] | None = None,
    compat: str | None = None,
    **settings: Unpack[RecipeSettings],
) -> dict[str, Any]:
    """List the recipes, or show one with the source of each value.

    Parameters
    ----------
    name
        a recipe, a method, or a file of settings
    set
        any field of the recipe, such as loss.alpha=0.3
    compat
        paper or released-code

    Returns
    -------
    dict
        the recipes by name, or the fields of one with value and source

    Examples
    --------
    $ supancl recipes
    $ supancl recipes imagenet100.supbyol
    """
    if name is None:
        built = {key: recipe(key) for key in sorted(RECIPES, key=lambda key: not key.startswith("auto."))}
        rows = [
            {
                "name": r.name,
                "method": r.method,
                "paper": r.paper,
                "encoder": r.encoder.name,
                "pixels": r.views.size if r.views.kind == "crops" else None,
                "epochs": r.train.epochs,
                "batch": r.train.batch_size,
            }
            for r in built.values()
        ]
        titles = {"name": "name", "paper": "in the paper", "encoder": "encoder", "pixels": "px", "epochs": "epochs"}
        titles["batch"] = "batch"  # not the method: it is the end of the name
        cells = [["" if row[key] is None else str(row[key]) for key in titles] for row in rows]
        show(Table(list(titles.values()), cells, "lllrrr", optional=("in the paper",)))
        return {"recipes": {r.name: r.paper for r in built.values()}, "rows": rows}
    selected = resolve_warmup(find_recipe(name, compat, {**settings, **parse_set(set)}))
    fields = selected.fields()
    lines = [[field, json.dumps(value), source] for field, (value, source) in fields.items()]
    show(plain_table(f"{selected.name}: {selected.method}, {selected.paper}", ["field", "value", "source"], lines))
    return {"name": selected.name, "fields": {key: {"value": v, "source": s} for key, (v, s) in fields.items()}}
