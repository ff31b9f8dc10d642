"""`list_runs` and `list_recipes`: what there is, as tables."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from typing_extensions import Unpack

from supancl.errors import BadInput
from supancl.files import is_locked
from supancl.recipes import RECIPES, find_recipe, recipe
from supancl.recipes.recipe import resolve_warmup
from supancl.recipes.shorthands import RecipeSettings, parse_set
from supancl.reporter import say, show, track
from supancl.reports.run_record import is_number, read_record
from supancl.reports.tables import Table, plain_table
from supancl.reports.verdict import headline, own_evaluations
from supancl.runs.folder import RunFolder
from supancl.runs.listing import find_runs, folder_bytes, last_written
from supancl.runs.log import peek_collapsed
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


@dataclass(frozen=True)
class ListedRun:
    """A run as a list shows it; what is not known is None or empty."""

    path: Path
    state: str  # running, finished, collapsed, stopped at N, damaged
    verdict: str = ""  # on a finished one
    recipe: str = ""
    data: str = ""
    epochs_done: int = 0
    epochs: int | None = None
    nbytes: int = 0
    last_written: float = math.nan  # in seconds since 1970
    knn: float | None = None  # in percent of held-out images
    linear: float | None = None
    tested_images: int | None = None
    has_several_labels: bool = False  # then `knn` and `linear` are mean average precision
    problem: str = ""  # of a damaged one


def find_listed_runs(folder: Path) -> list[ListedRun]:
    """The runs below a folder; one that is damaged is listed with what is wrong."""
    if not folder.is_dir():
        raise BadInput(f"no folder {folder}; name the folder that holds your runs (default: runs)")
    return [describe_run(path) for path in track(list(find_runs(folder)), "reading runs")]


def describe_run(path: Path) -> ListedRun:
    """How a run stands. Never raises because of what is in the folder."""
    record, folder, nbytes = read_record(path), RunFolder(path), folder_bytes(path)
    if not record.settings and (path / "detect.json").exists():
        is_finished = (path / "detector.safetensors").exists()
        state = "running" if is_locked(path / ".lock") else "finished" if is_finished else "stopped"
        return ListedRun(path, state, "", "detector", nbytes=nbytes, last_written=last_written(path))
    recipe, data, epochs = (record.settings.get(name) for name in ("name", "data.source", "train.epochs"))
    if not (isinstance(recipe, str) and isinstance(data, str) and isinstance(epochs, int)):
        problem = next(iter(record.problems), "recipe.json: no name, data or epochs")
        return ListedRun(path, "damaged", nbytes=nbytes, last_written=last_written(path), problem=problem)
    state = "running" if record.is_running else "collapsed" if peek_collapsed(folder) else "finished"
    if state == "finished" and record.end_step is None:
        newest = folder.checkpoint_files()[-1:]
        state = f"stopped at {int(newest[0].stem.removeprefix('step-')) if newest else 0}"
    own, last = own_evaluations(record), record.rows[-1] if record.rows else {"epoch": 0}
    is_last = last.get("kind") == "monitor" or (record.end_step is not None and bool(record.rows))
    figures = {name: result.get("map", result.get("accuracy")) for name, result in own.items()}
    check = record.checks[-1] if record.checks else {}
    accuracies = {name: value for name, value in figures.items() if is_number(value)}
    knn = accuracies.get("knn", check.get("knn", check.get("knn_map")))
    images = [result.get("tested_images") for result in own.values()] + [check.get("knn_queries")]
    return ListedRun(
        path,
        state,
        headline(record).lower() if state == "finished" else "",
        recipe,
        data,
        last["epoch"] + is_last,
        epochs,
        nbytes,
        last_written(folder.metrics_file, folder.recipe_file),
        knn if is_number(knn) else None,
        accuracies.get("linear"),
        next((count for count in images if isinstance(count, int)), None),
        "knn_map" in check or any("map" in result for result in own.values()),
    )


def runs_table(runs: list[ListedRun], folder: Path) -> Table:
    """One row per run; `linear` is that of `evaluate linear` alone, `k-NN` else that of the last check."""
    columns = ["run", "verdict", "recipe", "data", "epochs", "size", "age", "linear", "k-NN", "of"]
    rows = []
    for run in runs:
        done = "" if run.epochs is None else f"{run.epochs_done}/{run.epochs}"
        age = "" if run.last_written != run.last_written else duration(max(0.0, time.time() - run.last_written))
        prefix = "mAP " * run.has_several_labels
        figures = ["" if value is None else f"{prefix}{value:.1f}" for value in (run.linear, run.knn)]
        images = "" if run.tested_images is None else f"{run.tested_images:,}"
        path = str(run.path.relative_to(folder)) if run.path != folder else str(run.path)
        data = Path(run.data).name or run.data
        size = f"{run.nbytes / 1e6:,.1f} MB"
        age = " ".join(age.split()[:2])
        rows.append([path, run.verdict or run.state, run.recipe, data, done, size, age, *figures, images])
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
