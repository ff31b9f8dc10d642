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
    verdicts = [describe_verdict(run) for run in runs]
    if runs:
        show(runs_table(runs, verdicts, Path(folder)))
    else:
        say(f"no run below {folder}")
    rows = [
        asdict(run) | {"path": str(run.path), "verdict": verdict} for run, verdict in zip(runs, verdicts, strict=True)
    ]
    return {"folder": str(folder), "runs": rows}


def describe_verdict(run: ListedRun) -> str:
    """The verdict on a finished run in a word or two, else its state."""
    from supancl.reports.run_record import read_record
    from supancl.reports.verdict import find_verdict

    if run.state != "finished" or run.epochs is None:
        return run.state
    return find_verdict(read_record(run.path)).headline.lower()


def runs_table(runs: list[ListedRun], verdicts: list[str], folder: Path) -> Table:
    """One row per run; `linear` is that of `evaluate linear` alone, `k-NN` else that of the last check."""
    columns = ["run", "verdict", "recipe", "data", "epochs", "size", "age", "linear", "k-NN", "of"]
    rows = []
    for run, verdict in zip(runs, verdicts, strict=True):
        done = "" if run.epochs is None else f"{run.epochs_done}/{run.epochs}"
        age = "" if run.last_written != run.last_written else duration(max(0.0, time.time() - run.last_written))
        prefix = "mAP " * run.has_several_labels
        figures = ["" if value is None else f"{prefix}{value:.1f}" for value in (run.linear, run.knn)]
        images = "" if run.tested_images is None else f"{run.tested_images:,}"
        path = str(run.path.relative_to(folder)) if run.path != folder else str(run.path)
        data = Path(run.data).name or run.data
        size = f"{run.nbytes / 1e6:,.1f} MB"
        rows.append([path, verdict, run.recipe, data, done, size, " ".join(age.split()[:2]), *figures, images])
    notes = ["linear, k-NN: % of as many held-out images"] * any(run.tested_images is not None for run in runs)
    notes += [f"{run.path}: {run.problem}; it can be resumed once that is restored" for run in runs if run.problem]
    return Table(columns, rows, "llll" + "rrrrrr", notes=notes, optional=("recipe", "data", "age", "size"))


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
