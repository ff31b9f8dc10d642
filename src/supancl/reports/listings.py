"""`list_runs`, `list_recipes`, `show_data` and `data check`: what there is, as tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import Unpack

from supancl.config import replaced
from supancl.errors import BadInput, CheckFailed
from supancl.files import Output, make_folder
from supancl.recipes import RECIPES, Recipe, find_recipe
from supancl.recipes import recipe as named_recipe
from supancl.recipes.recipe import resolve_warmup
from supancl.recipes.shorthands import FIELDS, RecipeSettings, parse_set
from supancl.reporter import say, show, track
from supancl.reports.tables import Table, plain_table
from supancl.reports.verdict import RunRecord, find_verdict, is_number, own_results
from supancl.runs.folder import find_runs, next_folder

if TYPE_CHECKING:
    from supancl.data.spec import DataSpec
    from supancl.data.splits import Source

MAX_CLASSES = 12  # printed from either end; the JSON has all


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
    return {"folder": str(folder), "runs": [run | {"path": str(run["path"])} for run in runs]}


def find_listed_runs(folder: Path) -> list[dict[str, Any]]:
    """The runs below a folder; one that is damaged is listed with what is wrong."""
    if not folder.is_dir():
        raise BadInput(f"no folder {folder}; name the folder that holds your runs (default: runs)")
    return [describe_run(path) for path in track(list(find_runs(folder)), "reading runs")]


def describe_run(path: Path) -> dict[str, Any]:
    """How a run stands; what is not known is None or empty. Never raises because of what is in the folder."""
    record = RunRecord(path)
    results, is_detector = own_results(record), (path / "detect.json").exists()
    values = {name: result.get("map", result.get("accuracy")) for name, result in results.items()}
    images = (result.get("tested_images") for result in results.values())
    verdict, epochs = find_verdict(record), record.settings.get("train.epochs")
    return {
        "path": path,
        "state": "detector" if is_detector else verdict.state,
        "verdict": "" if is_detector else verdict.headline.lower(),
        "recipe": str(record.settings.get("name", "")),
        "data": str(record.settings.get("data.source", "")),
        "epochs_done": record.epochs_done,
        "epochs": epochs if isinstance(epochs, int) else None,
        **{name: values[name] if is_number(values.get(name)) else None for name in ("knn", "linear")},
        "tested_images": next((count for count in images if isinstance(count, int)), None),
        "has_several_labels": any("map" in result for result in results.values()),
        "problem": "" if is_detector else "; ".join(record.problems),
    }


def runs_table(runs: list[dict[str, Any]], folder: Path) -> Table:
    """One row per run; `linear` is that of `evaluate linear` alone, `k-NN` else that of the last check."""
    columns, rows = ["run", "verdict", "recipe", "data", "epochs", "linear", "k-NN", "of"], []
    for run in runs:
        name = str(run["path"].relative_to(folder)) if run["path"] != folder else str(folder)
        verdict = run["verdict"] if run["state"] == "finished" else run["state"]
        done = f"{run['epochs_done']}/{run['epochs']}" if run["epochs"] is not None else ""
        prefix, images = "mAP " * run["has_several_labels"], run["tested_images"]
        accuracies = ["" if run[key] is None else f"{prefix}{run[key]:.1f}" for key in ("linear", "knn")]
        about = [name, verdict, run["recipe"], Path(run["data"]).name or run["data"], done]
        rows.append([*about, *accuracies, "" if images is None else f"{images:,}"])
    notes = ["linear, k-NN: % of as many held-out images"] * any(row[-1] for row in rows)
    notes += [f"{run['path']}: {run['problem']}" for run in runs if run["problem"]]
    return Table(columns, rows, "llll" + "rrrr", notes=notes, optional=("recipe", "data"))


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
        rows = []
        for each in map(named_recipe, sorted(RECIPES, key=lambda key: not key.startswith("auto."))):
            size = each.views.size if each.views.kind == "crops" else None
            about = {"name": each.name, "paper": each.paper, "encoder": each.encoder.name, "pixels": size}
            rows.append({**about, "epochs": each.train.epochs, "batch": each.train.batch_size, "method": each.method})
        cells = [["" if value is None else str(value) for value in list(row.values())[:-1]] for row in rows]
        columns = ["name", "in the paper", "encoder", "px", "epochs", "batch"]
        show(Table(columns, cells, "lllrrr", optional=("in the paper",)))
        return {"recipes": {row["name"]: row["paper"] for row in rows}, "rows": rows}
    selected = resolve_warmup(find_recipe(name, compat, {**settings, **parse_set(set)}))
    fields = selected.fields()
    lines = [[field, json.dumps(value), source] for field, (value, source) in fields.items()]
    show(plain_table(f"{selected.name}: {selected.method}, {selected.paper}", ["field", "value", "source"], lines))
    return {"name": selected.name, "fields": {key: {"value": v, "source": s} for key, (v, s) in fields.items()}}


# --- data -------------------------------------------------------------------------------------------------------------


def show_data(
    source: str | Path,
    *,
    recipe: str | None = None,
    columns: str = "",
    set: Mapping[str, Any] | list[str] | None = None,
    out: str | Path | None = None,
) -> dict[str, Any]:
    """Summarize a source: images, labels and classes, unreadable files, and pictures of images and views.

    Parameters
    ----------
    source
        a folder, .npz, .csv, .parquet, .tar shards, torchvision:NAME@ROOT, hf:NAME or a built-in name
    recipe
        recipe whose views are drawn (default: the one that pretrain would choose)
    columns
        columns of a .csv, if they have other names: image=file,label=species[,split=part]
    set
        any field of data, such as data.limit=1000
    out
        folder for the pictures (default: runs/show-NNN)

    Returns
    -------
    dict
        counts, sizes, unreadable files and the paths of the pictures

    Examples
    --------
    $ supancl data show photos
    $ supancl data show labels.csv --out sheet
    """
    from supancl.data.opening import check_source, open_source
    from supancl.data.sources.folder import check_out_folder
    from supancl.data.spec import DataSpec
    from supancl.recipes.auto import with_short_side

    name, folder = str(source), Path(out) if out else next_folder("show")
    if "@" not in name:
        check_source(name)
    for picture in ("images.png", "views.png"):
        Output(folder / picture, (".png",)).check()
    check_out_folder(name, folder)
    shown = with_short_side(named_recipe(recipe)) if recipe else None
    channels, side = (shown.encoder.channels, shown.data.short_side) if shown else (3, 256)
    # writes no cache: every image is decoded once, and kept in memory only if there are few
    spec = DataSpec(source=name, skip_bad_images=True, short_side=side, cache="never", memory_gb=0.25, columns=columns)
    for field, value in parse_set(set).items():
        section, _, inner = FIELDS.get(field, field).partition(".")
        if section != "data" or not inner:
            raise BadInput(f"{field}: only fields of data say how a source is read; leave it out")
        spec = replaced(spec, inner, value, "data")
    opened = open_source(spec, channels)
    facts = describe_source(opened, spec)
    print_facts(facts)
    return facts | {"pictures": draw_sheets(opened, shown or fitting_recipe(opened, facts), folder)}


def fitting_recipe(source: Source, facts: Mapping[str, Any]) -> Recipe:
    """The recipe that `pretrain` would fit to these images."""
    from supancl.data.opening import Survey
    from supancl.distributed.ranks import pick_device
    from supancl.recipes.auto import default_recipe, fit_recipe, with_short_side

    train = source.splits["train"]
    survey = Survey(len(train), train.num_labelled, len(train.class_ids()), facts["sizes"]["short side"][1])
    is_gpu = pick_device("auto").type == "cuda"
    return with_short_side(fit_recipe(named_recipe(default_recipe(survey)), survey, is_gpu))


def draw_sheets(source: Source, shown: Recipe, out: Path) -> list[str]:
    """Pictures of the training images and of views of them; vectors have none."""
    from supancl.data.views.specs import Crops
    from supancl.reports.pictures import draw_image_sheet, draw_view_sheet

    train, paths = source.splits["train"], [out / "images.png", out / "views.png"]
    if train.batch(train.index[:1] * 0).pixels.ndim != 4 or not isinstance(shown.views, Crops):
        return []
    make_folder(out)
    draw_image_sheet(train, source.classes, paths[0])
    draw_view_sheet(train, shown, paths[1])
    say(f"contact sheets: {paths[0]} and, of the views of {shown.name}, {paths[1]}")
    return list(map(str, paths))


def describe_source(source: Source, spec: DataSpec) -> dict[str, Any]:
    """Counts by split and class, unlabelled images last, and sizes as stored: [smallest, median, largest]."""
    from supancl.data.labels import describe_labels

    splits, histogram = dict[str, dict[str, Any]](), dict[str, dict[str, int]]()
    for split_name, split in source.splits.items():
        splits[split_name] = {"images": len(split), "labelled": split.num_labelled, "classes": len(split.class_ids())}
        if not split.all_labels.has_one_each:
            splits[split_name]["labels_per_image"] = describe_labels(split.all_labels)
        counts = [*split.all_labels.counts(len(source.classes)).tolist(), len(split) - split.num_labelled]
        for name, count in zip((*source.classes, "(unlabelled)"), counts, strict=True):
            histogram.setdefault(name, {})[split_name] = count
    if not any(histogram["(unlabelled)"].values()):
        del histogram["(unlabelled)"]
    sizes = image_sizes(source)
    sides = {"height": sizes[:, 0], "width": sizes[:, 1], "short side": sizes.min(1)}
    return {
        "source": spec.source,
        "splits": splits,
        "classes": len(source.classes),
        **({"levels": np.bincount(source.levels).tolist()} if source.levels else {}),
        "histogram": histogram,
        "sizes": {name: [int(f(values)) for f in (np.min, np.median, np.max)] for name, values in sides.items()},
        "unreadable": dict(source.skipped),
        "remarks": list(source.remarks),
    }


def image_sizes(source: Source) -> np.ndarray:
    """(N, 2): height and width of every image as stored, read from file headers."""
    from supancl.data.decode import map_in_order, upright_size
    from supancl.data.splits import StoredItems

    if not isinstance(source.items, StoredItems):
        read = track(map_in_order(upright_size, source.items), "reading sizes", len(source.items))
        return np.array(list(read), np.int64).reshape(-1, 2)
    shapes = [split.batch(split.index[:1] * 0).pixels.shape for split in source.splits.values()]
    sizes = [shape[-2:] if len(shape) == 4 else (1, shape[-1]) for shape in shapes]
    return np.repeat(np.array(sizes), [len(split) for split in source.splits.values()], axis=0)


def print_facts(facts: dict[str, Any]) -> None:
    """Print the counts as tables; of many classes the largest and the smallest."""
    splits, columns = facts["splits"], ("images", "labelled", "classes")
    rows = [[name, *(f"{counts[key]:,}" for key in columns)] for name, counts in splits.items()]
    show(plain_table(facts["source"], ["split", *columns], rows))
    lines = sorted(facts["histogram"].items(), key=lambda item: -sum(item[1].values()))
    rows = [[name, *(f"{counts[split]:,}" for split in splits)] for name, counts in lines]
    if len(rows) > 2 * MAX_CLASSES:
        left_out = [f"... {len(rows) - 2 * MAX_CLASSES} more", *["" for _ in splits]]
        rows = [*rows[:MAX_CLASSES], left_out, *rows[-MAX_CLASSES:]]
    show(plain_table("images by class", ["class", *splits], rows))
    for side, (low, middle, high) in facts["sizes"].items():
        say(f"{side}: {low} to {high} px, median {middle}")
    for remark in facts["remarks"]:
        say(f"remark: {remark}")
    unreadable = [f"  {path}: {reason}" for path, reason in facts["unreadable"].items()]
    for line in [f"unreadable images: {len(unreadable)}", *unreadable[:20]]:
        say(line)


def check(name: str, *, root: str | None = None) -> dict[str, Any]:
    """Check whether a benchmark data set is complete and in the right layout; without a root, say where to get it.

    Parameters
    ----------
    name
        a benchmark, such as pets
    root
        the folder that contains it

    Examples
    --------
    $ supancl data check pets
    $ supancl data check pets --root benchmarks
    """
    from supancl.data.sources import benchmarks

    if root is None:
        text = benchmarks.download_instructions(name)
        show(f"{text}\n")
        return {"name": name, "where": text}
    outcome = benchmarks.check_benchmark(name, Path(root))
    for line in outcome.lines:
        say(line)
    result = {**asdict(outcome), "folder": str(outcome.folder), "ok": outcome.ok}
    if not outcome.ok:
        raise CheckFailed(f"{name} in {root} is incomplete; see: supancl data check {name}", result)
    return result
