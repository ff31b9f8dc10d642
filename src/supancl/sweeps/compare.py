"""`compare`: train recipes, methods or settings on the same images, and say which differ."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import Unpack

from supancl.distributed import require_single_process
from supancl.errors import BadInput
from supancl.reporter import say, show
from supancl.sweeps.options import SweepRequest, SweepSettings

if TYPE_CHECKING:
    from supancl.core.labels import Labels
    from supancl.data.splits import Data
    from supancl.recipes import Recipe
    from supancl.sweeps.differences import Against
    from supancl.sweeps.measures import Result
    from supancl.sweeps.options import RowSet
    from supancl.sweeps.runner import Runs, Sweep

MEASURES = {
    # key -> (title, decimals)
    "ssl": ("l_ssl", 3),
    "sup": ("l_sup", 3),
    "knn": ("k-NN %", 2),
    "linear": ("linear %", 2),
    "ratio": ("S_W/S_T", 3),
    "knn_map": ("k-NN mAP %", 2),
    "linear_map": ("linear mAP %", 2),
    "transfer": ("transfer %", 2),
}
BECAUSE = "compare"


def compare(
    *recipes: str,
    start: str | Path | None = None,
    leave_out: float = 0.0,
    shots: int = 5,
    **settings: Unpack[SweepSettings],
) -> dict[str, Any]:
    """Train recipes, methods or settings on the same images, and say which differ.

    Several values of a setting (`set`) are rows of their own, in every combination. All rows have the same seeds and
    held-out images. Nothing is chosen on a test split. With a `start`, the rows are its frozen network, the fine-tuned
    one, and the recipe from its weights and from scratch.

    Parameters
    ----------
    recipes
        recipes or methods by name, or files of settings; the others are compared with the first (default: the one that
        pretrain would choose)
    start
        trained weights, such as timm:NAME, NAME@FILE or a run: is pretraining on your images better than these?
    leave_out
        fraction of the classes left out of pretraining to measure transfer
    shots
        labelled images per left-out class that transfer is fitted on

    Returns
    -------
    dict
        a result for each run, means over seeds, and differences with 95% intervals

    Examples
    --------
    $ supancl compare supsiam simsiam --data photos
    $ supancl compare --data photos --set loss.alpha=0,0.5,1 --leave-out 0.3
    $ supancl compare --data photos --start timm:resnet18 --seeds 1
    """
    require_single_process("a comparison")
    request = SweepRequest("compare", settings)
    if request.seeds < 1 or shots < 1 or not 0 <= leave_out < 1:
        raise BadInput("seeds and shots must be at least 1, and leave_out must lie in [0, 1)")
    from supancl.sweeps.options import grid_rows, recipe_rows, short_names, split_grid
    from supancl.training.start import requested_recipe

    names = list(recipes)
    if not names:
        if "data.source" not in request.given:
            raise BadInput("name recipes, or give data, such as a folder of images (docs/own-data.md)")
        base = {key: value for key, value in request.given.items() if key.startswith("data.")}
        names = [requested_recipe(None, None, request.options.get("compat"), base)[0].name]
    request.given, grid = split_grid(request.bare(names[0]), request.given)
    if "train.seed" in grid or "train.seed" in request.given:
        raise BadInput("train.seed: every row has the same seeds; give their number with seeds")
    if start is not None:
        if grid or leave_out or len(names) > 1:
            raise BadInput("start: compares one recipe; leave out leave_out and lists of values")
        from supancl.sweeps.start import compare_with_start

        return compare_with_start(request, names[0], str(start))
    if bool(grid) == (len(names) > 1):
        raise BadInput("name one recipe and several values, set loss.alpha=0,0.5; or two recipes or more")
    if grid:
        rows, heads, against = grid_rows(request.recipe(names[0]), grid), short_names(grid), "best"
    else:
        rows, heads, against = recipe_rows((name, request.recipe(name)) for name in names), {"row": "recipe"}, "first"
    epochs = sorted({recipe.train.epochs for recipe in rows.recipes.values()})
    if len(epochs) > 1:
        say(f"the recipes train for {' and '.join(map(str, epochs))} epochs; set epochs to give all the same")
    sweep, count = request.sweep(), len(rows.recipes)
    say(f"rows: {count}, seeds: {request.seeds}, {count * request.seeds} runs in {request.out}")
    result, runs = train_and_compare(rows, sweep, against, leave_out, shots)  # type: ignore[arg-type]
    finish(result, heads, {name: request.out / name for name in runs.trained}, request.out)
    sweep.raise_failed(runs, result)
    return result


def finish(result: dict[str, Any], heads: Mapping[str, str], runs: Mapping[str, Path], out: Path) -> None:
    """Print the table and the findings, and write both."""
    from supancl.reports.comparison import comparison_table, write_comparison

    measures = {key: titles for key, titles in MEASURES.items() if key in result["summary"][0]}
    table = comparison_table(result, heads, measures)
    optional = [title for key, (title, _) in reversed(list(measures.items())) if not key.startswith("linear")]
    show(replace(table, optional=optional))
    for line in result["findings"]:
        say(line)
    write_comparison(result, table, runs, out)
    say(f"runs, results.json, .md, .tex and comparison.html in {out}; {result['seconds']:.0f} s")


class RowGroup(NamedTuple):
    """Rows that are trained on the same data, read in the same way."""

    rows: dict[str, Recipe]
    held_out: Labels  # with all labels of the images if they are measured by these
    classes: tuple[str, ...]  # of these labels
    data: Data | None  # None if several groups would not fit into memory together


def train_and_compare(
    row_set: RowSet, sweep: Sweep, against: Against, leave_out: float = 0.0, shots: int = 5
) -> tuple[Result, Runs]:
    """Train every row with every seed and measure it; returns the content of results.json, and the runs.

    `leave_out` is the fraction of the classes that pretraining never sees; transfer to them is fitted on `shots`
    labelled images of each.
    """
    from supancl.evaluation.rows import LEAST_GAIN
    from supancl.runs.provenance import commit, versions
    from supancl.stats import t_half_width
    from supancl.sweeps.differences import compare_rows
    from supancl.sweeps.measures import Measurement, RunEvaluator, collect_results, summarize
    from supancl.sweeps.runner import Runs, check_monitored, open_recipe_data, read_run
    from supancl.training.start import resolve

    started, labels = time.perf_counter(), row_set.labels
    for recipe in row_set.recipes.values():
        check_monitored(recipe)
    rows = {name: resolve(recipe) for name, recipe in row_set.recipes.items()}
    groups, summary = open_groups(rows, sweep)
    if leave_out:
        groups = [without_classes(group, leave_out) for group in groups]
    runs, labelled = Runs({}, {}), set()
    for group in groups:
        data = group.data or open_recipe_data(next(iter(group.rows.values())), several_labels=True)
        labelled.add(data.train.num_labelled)
        trained = sweep.train(sweep.with_seeds(group.rows, BECAUSE), data)
        runs.trained.update(trained.trained)
        runs.failed.update(trained.failed)
    held_out = groups[0].held_out
    evaluator = RunEvaluator(next(iter(rows.values())).train.device, baselines=True)
    scores = ("knn", "linear", "ratio") if held_out.has_one_each else ("knn_map", "linear_map")
    has_terms = len({getattr(recipe.loss, "alpha", None) for recipe in rows.values()}) > 1
    measures = [*(("ssl", "sup") if has_terms else ()), *scores, *(("transfer",) if leave_out else ())]

    def measure(folder: Path) -> dict[str, Any]:
        measured: dict[str, Any] = evaluator.measure(folder, scores)
        if leave_out:
            measured["transfer"] = transfer_accuracy(read_run(folder), data, shots)
        gain = evaluator.value(folder, Measurement("linear", k=None), LEAST_GAIN)
        return {**{key: measured[key] for key in measures}, "learned": None if gain is None else gain > 0}

    results = collect_results(sweep, runs, labels, (*measures, "learned"), measure)
    entries = [summarize(results, label, measures, ("collapsed", "failed")) for label in labels.values()]
    for entry in entries:
        for key in measures:
            half = t_half_width(entry[f"{key}_sd"], entry["measured"])
            entry[f"{key}_half_interval"] = half if math.isfinite(half) else math.nan
    knn, linear = scores[:2]
    by = linear if any(result[linear] is not None for result in results) else knn
    by = "transfer" if leave_out else by
    compared = compare_rows(results, list(labels), by, against, held_out=int(held_out.is_labelled.sum()))
    if len(labelled) > 1:
        compared["findings"].append(
            f"rows have {' or '.join(map(str, sorted(labelled)))} labelled images, on which their classifiers were "
            "fitted too: differences are not those of the encoders alone"
        )
    result: Result = {
        "command": BECAUSE,
        "data": summary,
        "seeds": list(range(sweep.seeds)),
        "epochs": sorted({recipe.train.epochs for recipe in rows.values()}),
        "rows": results,
        "summary": entries,
        **compared,
        "seconds": time.perf_counter() - started,
        "versions": versions(),
        "commit": commit(),
    }
    return result, runs


# --- data -------------------------------------------------------------------------------------------------------------


def open_groups(rows: Mapping[str, Recipe], sweep: Sweep) -> tuple[list[RowGroup], dict[str, Any]]:
    """The rows by the data they need, which must hold out the same images; and a summary of the first group's data.

    Choices are made on these images, so they are never a test split.
    """
    from supancl.data.hierarchy import with_leaf_labels
    from supancl.recipes.auto import with_short_side
    from supancl.sweeps.runner import open_held_out

    groups: dict[Any, RowGroup] = {}
    holdouts: dict[Any, float | None] = {}
    summary: dict[str, Any] = {}
    for name, recipe in rows.items():
        sweep.check_folder(recipe)
        key = with_short_side(recipe).data, recipe.encoder.channels
        if key not in groups:
            with_holdout, data = open_held_out(recipe, BECAUSE, several_labels=True)
            if not data.held_out.class_ids():
                raise BadInput(f"{recipe.data.source}: no held-out image has a label to compare runs on")
            summary, holdouts[key] = summary or data.summary, with_holdout.data.holdout
            measured = with_leaf_labels(data)  # runs on a hierarchy are compared by its leaves
            groups[key] = RowGroup({}, measured.held_out.all_labels, measured.classes, data)
        is_same = recipe.data.holdout == holdouts[key]
        changed = recipe if is_same else recipe.with_set({"data.holdout": holdouts[key]}, because=BECAUSE)
        groups[key].rows[name] = changed
    check_same_images(list(groups.values()))
    if len(groups) > 1:
        return [group._replace(data=None) for group in groups.values()], summary
    return list(groups.values()), summary


def check_same_images(groups: Sequence[RowGroup]) -> None:
    """Refuse rows that would be compared on different images, or by different classes."""
    import torch

    from supancl.data.opening import is_same_source

    first, reference = next(iter(groups[0].rows.items()))
    for group in groups[1:]:
        name, recipe = next(iter(group.rows.items()))
        ours, theirs = group.held_out, groups[0].held_out
        is_same = is_same_source(recipe.data.source, reference.data.source) and group.classes == groups[0].classes
        if not is_same or not torch.equal(ours.tensor, theirs.tensor):
            raise BadInput(
                f"{first} ({reference.data.source}) and {name} ({recipe.data.source}) hold out other images, or have "
                f"different classes ({len(groups[0].classes)} and {len(group.classes)}), so they cannot be compared; "
                "give one data, data.holdout, data.hierarchy and data.leave_out to both"
            )


# --- classes left out -------------------------------------------------------------------------------------------------

DRAWS = 50  # random sets of images that transfer is fitted on; the same for every row and seed


def without_classes(group: RowGroup, fraction: float) -> RowGroup:
    """The rows without a fraction of the classes, to measure transfer to these."""
    from supancl.sweeps.runner import open_recipe_data

    first = next(iter(group.rows.values()))
    data = group.data or open_recipe_data(first)
    left_out = left_out_classes(data, fraction)
    if not left_out:
        raise BadInput(f"leave_out = {fraction:g}: needs four classes with training and held-out images")
    data.train.all_labels.check_single(first.data.location, "leave_out above 0")
    rows = {name: recipe.with_set({"data.leave_out": left_out}, BECAUSE) for name, recipe in group.rows.items()}
    return group._replace(rows=rows, data=open_recipe_data(next(iter(rows.values()))))


def left_out_classes(data: Data, fraction: float) -> list[str]:
    """Classes to leave out of pretraining: about `fraction` of them, at least two, always the same.

    At least two classes stay in. Only classes with training and held-out images are counted.
    """
    import torch

    classes = len(data.classes)
    usable = set(data.train.class_ids()) & set(data.held_out.class_ids())
    count = min(max(2, round(fraction * classes)), len(usable) - 2)
    if fraction == 0 or count < 2:
        return []
    order = torch.randperm(classes, generator=torch.Generator().manual_seed(0)).tolist()
    return sorted(data.classes[i] for i in [i for i in order if i in usable][:count])


def transfer_accuracy(run: Any, data: Data, shots: int) -> float:
    """Linear accuracy on the classes left out of pretraining from `shots` images of each, averaged over draws.

    With all images, most encoders separate a few classes perfectly, and rows would not differ.
    """
    import torch

    from supancl.core.precision import pick_device
    from supancl.probes import Features, embed, linear_accuracy

    if data.transfer is None:
        return math.nan
    device = pick_device(run.recipe.train.device)
    fit, test = (embed(run.encoder.to(device), split, device) for split in data.transfer)
    generator, accuracies = torch.Generator().manual_seed(0), []
    for _ in range(DRAWS):
        order = torch.randperm(len(fit.labels), generator=generator)
        labels = fit.labels[order]
        selected = torch.cat([order[labels == label][:shots] for label in labels.unique()])
        accuracies.append(linear_accuracy(Features(fit.values[selected], fit.labels[selected]), test))
    return math.fsum(accuracies) / len(accuracies)
