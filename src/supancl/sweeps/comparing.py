"""Recipes trained on the same data with the same seeds and compared on the same held-out images.

Recipes are compared with the first one. Combinations of settings are compared with the best one; because that one is
picked, its intervals hold for all pairs together.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from supancl.core.labels import Labels as AllLabels
from supancl.core.precision import pick_device
from supancl.data.hierarchy import with_leaf_labels
from supancl.data.opening import is_same_source
from supancl.data.splits import Data, Split
from supancl.errors import BadInput, plural
from supancl.probes import Features, embed, linear_accuracy
from supancl.recipes import Recipe
from supancl.runs.provenance import commit, versions
from supancl.stats import FEW_IMAGES, TOO_FEW_IMAGES, mean_interval, t_half_width, tukey_half_width
from supancl.sweeps.measures import Labels, Measures, Result, RunEvaluator, collect_results, measure_run, summarize
from supancl.sweeps.runner import Runs, Sweep, TrainedRun, open_held_out, open_recipe_data
from supancl.training.start import resolve, with_short_side

MEASURES = {
    # key -> (title, decimals)
    "knn": ("k-NN %", 2),
    "linear": ("linear %", 2),
    "ratio": ("S_W/S_T", 3),
}
LOSS_TERMS = {"ssl": ("l_ssl", 3), "sup": ("l_sup", 3)}
TRANSFER = {"transfer": ("transfer %", 2)}
MEASURES_OF_SEVERAL = {  # labels per image
    "knn_map": ("k-NN mAP %", 2),
    "linear_map": ("linear mAP %", 2),
}
NAMES = {"knn_map": "k-NN mAP", "linear_map": "linear mAP"}  # in sentences; others are called by their key
Rows = Mapping[str, Recipe]
Against = Literal["first", "best"]


class RowGroup(NamedTuple):
    """Rows that are trained on the same data, read in the same way."""

    rows: dict[str, Recipe]
    held_out: AllLabels  # with all labels of the images if they are measured by these
    classes: tuple[str, ...]  # of these labels
    data: Data | None  # None if several groups would not fit into memory together


def train_and_compare(
    rows: Rows, labels: Labels, sweep: Sweep, against: Against, leave_out: float = 0.0, shots: int = 5
) -> tuple[Result, Runs]:
    """Train every row with every seed and measure it; returns the content of results.json, and the runs.

    `leave_out` is the fraction of the classes that pretraining never sees; transfer to them is fitted on `shots`
    labelled images of each.
    """
    started, because = time.perf_counter(), "compare"
    rows = {name: resolve(recipe) for name, recipe in rows.items()}
    groups, summary = open_groups(rows, sweep, because)
    if leave_out:
        groups = [without_classes(group, leave_out, because) for group in groups]
    runs, labelled = Runs({}, {}), set()
    for group in groups:
        data = group.data or open_recipe_data(next(iter(group.rows.values())), several_labels=True)
        labelled.add(data.train.num_labelled)
        trained = sweep.train(sweep.with_seeds(group.rows, because), data)
        runs.trained.update(trained.trained)
        runs.failed.update(trained.failed)
    first = next(iter(rows.values()))
    evaluator = RunEvaluator(first.train.device)
    held_out = groups[0].held_out
    scores = MEASURES if held_out.has_one_each else MEASURES_OF_SEVERAL
    has_terms = len({getattr(recipe.loss, "alpha", None) for recipe in rows.values()}) > 1
    measures = {**(LOSS_TERMS if has_terms else {}), **scores, **(TRANSFER if leave_out else {})}

    def measure(run: TrainedRun, folder: Path) -> dict[str, float | None]:
        measured = measure_run(run, folder, evaluator, measures=scores)
        if leave_out:
            measured["transfer"] = transfer_accuracy(run, data, shots)
        return {key: measured[key] for key in measures}

    results = collect_results(sweep, runs, labels, measures, measure)
    entries = [summarize(results, label, measures, ("collapsed", "failed")) for label in labels.values()]
    for entry in entries:
        for key in measures:
            half = t_half_width(entry[f"{key}_sd"], entry["measured"])
            entry[f"{key}_half_interval"] = half if math.isfinite(half) else math.nan
    knn, linear = list(scores)[:2]
    by = linear if any(result[linear] is not None for result in results) else knn
    by = "transfer" if leave_out else by
    comparison = compare_rows(results, list(labels), by, against, held_out=int(held_out.is_labelled.sum()))
    if len(labelled) > 1:
        comparison["findings"].append(
            f"rows have {' or '.join(map(str, sorted(labelled)))} labelled images, on which their classifiers were "
            "fitted too: differences are not those of the encoders alone"
        )
    result: Result = {
        "command": because,
        "data": summary,
        "seeds": list(range(sweep.seeds)),
        "epochs": sorted({recipe.train.epochs for recipe in rows.values()}),
        "rows": results,
        "summary": entries,
        **comparison,
        "seconds": time.perf_counter() - started,
        "versions": versions(),
        "commit": commit(),
    }
    return result, runs


def measures_in(result: Result) -> Measures:
    """The measures that the rows of a result have."""
    known = {**LOSS_TERMS, **MEASURES, **MEASURES_OF_SEVERAL, **TRANSFER}
    return {key: known[key] for key in known if key in result["summary"][0]}


def without_classes(group: RowGroup, fraction: float, because: str) -> RowGroup:
    """The rows without a fraction of the classes, to measure transfer to these."""
    first = next(iter(group.rows.values()))
    data = group.data or open_recipe_data(first)
    left_out = left_out_classes(data, fraction)
    if not left_out:
        raise BadInput(f"leave_out = {fraction:g}: needs four classes with training and held-out images")
    data.train.all_labels.check_single(first.data.location, "leave_out above 0")
    rows = {name: recipe.with_set({"data.leave_out": left_out}, because) for name, recipe in group.rows.items()}
    return group._replace(rows=rows, data=open_recipe_data(next(iter(rows.values()))))


# --- data -------------------------------------------------------------------------------------------------------------


def open_groups(rows: Rows, sweep: Sweep, because: str) -> tuple[list[RowGroup], dict[str, Any]]:
    """The rows by the data they need, which must hold out the same images; and a summary of the first group's data.

    Choices are made on these images, so they are never a test split.
    """
    groups: dict[Any, RowGroup] = {}
    summary: dict[str, Any] = {}
    for name, recipe in rows.items():
        sweep.check_folder(recipe)
        key = with_short_side(recipe).data, recipe.encoder.channels
        if key not in groups:
            with_holdout, data = open_held_out(recipe, because, several_labels=True)
            if not data.held_out.class_ids():
                raise BadInput(
                    f"{recipe.data.source}: no held-out image has a label to compare runs on; add labels to some images"
                )
            summary = summary or data.summary
            measured = with_leaf_labels(data)  # runs on a hierarchy are compared by its leaves
            groups[key] = RowGroup({}, measured.held_out.all_labels, measured.classes, data)
            holdout = with_holdout.data.holdout
        else:
            holdout = next(iter(groups[key].rows.values())).data.holdout
        changes = {} if recipe.data.holdout == holdout else {"data.holdout": holdout}
        groups[key].rows[name] = recipe.with_set(changes, because=because) if changes else recipe
    check_same_images(list(groups.values()))
    if len(groups) > 1:
        return [group._replace(data=None) for group in groups.values()], summary
    return list(groups.values()), summary


def check_same_images(groups: Sequence[RowGroup]) -> None:
    """Refuse rows that would be compared on different images."""
    first, reference = next(iter(groups[0].rows.items()))
    for group in groups[1:]:
        name, recipe = next(iter(group.rows.items()))
        is_same = is_same_source(recipe.data.source, reference.data.source)
        if is_same and group.classes != groups[0].classes:
            raise BadInput(
                f"{first} and {name} are measured by different classes ({len(groups[0].classes)} and "
                f"{len(group.classes)}), so they cannot be compared; give one data.hierarchy, data.max_labels and "
                "data.leave_out to both"
            )
        if not is_same or not torch.equal(group.held_out.tensor, groups[0].held_out.tensor):
            raise BadInput(
                f"{first} and {name} hold out different images ({reference.data.source} and {recipe.data.source}), so "
                "they cannot be compared; give one data, data.holdout and data.leave_out to both"
            )


# --- differences ------------------------------------------------------------------------------------------------------


def compare_rows(
    results: Sequence[Result], rows: Sequence[str], by: str, against: Against, held_out: int | None = None
) -> Result:
    """What results.json says of the differences: the reference, one entry per other row, and sentences.

    `held_out` is the number of labelled images that the rows are compared on.
    """
    values: dict[str, dict[int, float]] = {row: {} for row in rows}
    for entry in results:
        if entry[by] is not None and math.isfinite(entry[by]):
            values[entry["row"]][entry["seed"]] = entry[by]
    seeds = {entry["seed"] for entry in results}
    complete = [row for row in rows if values[row].keys() == seeds]
    comparison: dict[str, Any] = {"compared_by": NAMES.get(by, by), "reference": rows[0], "differences": []}
    comparison["intervals"] = "for all pairs together" if against == "best" else "for each pair by itself"
    if against == "best":
        if not complete:
            return comparison | {"reference": None, "findings": ["nothing is recommended: every row has a failed run"]}
        comparison["reference"] = max(complete, key=lambda row: statistics.fmean(values[row].values()))
        half = tukey_half_width([[values[row][seed] for seed in sorted(seeds)] for row in complete])

        def interval(row: str) -> dict[str, Any] | None:
            return _common_interval(values[row], values[comparison["reference"]], half) if row in complete else None
    else:

        def interval(row: str) -> dict[str, Any] | None:
            return _paired_interval(values[row], values[rows[0]])

    others = [row for row in rows if row != comparison["reference"]]
    comparison["differences"] = [{"row": row, **difference} for row in others if (difference := interval(row))]
    describe: Callable[..., list[str]] = describe_choice if against == "best" else describe_differences
    findings = describe(comparison, values, others)
    if held_out is not None and held_out < TOO_FEW_IMAGES:
        findings = [
            f"too few images to say which is better: {held_out} held out, {TOO_FEW_IMAGES} are needed; "
            "label more images, or hold out more: data.holdout=0.3"
        ]
    elif held_out is not None and held_out < FEW_IMAGES and len(seeds) > 1:
        findings.append(f"intervals are over seeds; other images than these {held_out} may change more")
    return comparison | {"findings": [*findings, *describe_ends(results)]}


def _paired_interval(ours: Mapping[int, float], theirs: Mapping[int, float]) -> dict[str, Any] | None:
    """Student's interval of the differences seed by seed; a failed run has none."""
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        return None
    mean, low, high = mean_interval([ours[seed] - theirs[seed] for seed in common])
    return _difference(mean, low, high, len(common))


def _common_interval(ours: Mapping[int, float], best: Mapping[int, float], half: float) -> dict[str, Any]:
    mean = statistics.fmean(ours[seed] - best[seed] for seed in ours)
    return _difference(mean, mean - half, mean + half, len(ours))


def _difference(mean: float, low: float, high: float, n: int) -> dict[str, Any]:
    # seeds that differ by exactly as many images have no spread, which says that images are few, not that it is sure
    is_clear = math.isfinite(low) and low < high and (low > 0 or high < 0)
    verdict = "no clear difference" if not is_clear else "better" if mean > 0 else "worse"
    return {"mean": mean, "low": low, "high": high, "n": n, "verdict": verdict}


def describe_differences(comparison: Result, values: Mapping[str, Any], others: Sequence[str]) -> list[str]:
    """A sentence per recipe: how it differs from the first."""
    by_row, reference = {entry["row"]: entry for entry in comparison["differences"]}, comparison["reference"]
    if others and all(entry["n"] < 2 for entry in by_row.values()):
        return ["one seed shows no clear difference; run with seeds 3 or more"]
    lines = []
    for row in others:
        entry = by_row.get(row)
        start = f"{comparison['compared_by']}, {row} minus {reference}: "
        if entry is None or entry["n"] < 2:
            lines.append(f"{start}no clear difference, {plural(entry['n'] if entry else 0, 'seed')} in common")
        else:
            lines.append(
                f"{start}{entry['mean']:+.2f} points (95% interval {entry['low']:+.2f} to {entry['high']:+.2f}, "
                f"n = {entry['n']}): {entry['verdict']}"
            )
    return lines


def describe_choice(comparison: Result, values: Mapping[str, Mapping[int, float]], others: Sequence[str]) -> list[str]:
    """Which combination is the best, and how many others are clearly worse; those with a failed run are left out."""
    best, by = comparison["reference"], comparison["compared_by"]
    if not others:
        return ["there is one combination, so nothing is compared"]
    seeds, complete = values[best], [entry["row"] for entry in comparison["differences"]]
    mean = statistics.fmean(seeds.values())
    tied = [row for row in complete if statistics.fmean(values[row].values()) == mean]
    shared = f" and {', '.join(tied)} share" if tied else " has"
    figure = "mAP" if by.endswith(" mAP") else "accuracy"
    text = f"{best}{shared} the best {by.removesuffix(' mAP')} {figure} ({mean:.2f}%, {plural(len(seeds), 'seed')})"
    if len(seeds) < 2:
        return [f"{text}, but one seed shows no clear difference; run with seeds 3 or more"]
    verdicts = [entry["verdict"] for entry in comparison["differences"]]
    close = [entry["row"] for entry in comparison["differences"] if entry["verdict"] != "worse"]
    lines = [f"{text}; {verdicts.count('worse')} of {plural(len(complete), 'other')} clearly worse"]
    if left_out := [row for row in others if row not in complete]:
        lines.append(f"not compared, because a run of it failed: {', '.join(left_out)}")
    if close:
        lines.append(f"no clear difference from {', '.join(close)}")
    return [*lines, f"its {figure} was used to choose it, so it is a little too high; a test split has not been used"]


def describe_ends(results: Sequence[Result]) -> list[str]:
    """The runs that failed or collapsed."""
    lines = [
        f"failed, and in no mean: {entry['row']}, seed {entry['seed']}: {entry['failed']}"
        for entry in results
        if entry["failed"]
    ]
    collapsed = [f"{entry['row']} (seed {entry['seed']})" for entry in results if entry["collapsed"]]
    return lines + ([f"collapsed: {', '.join(collapsed)}"] if collapsed else [])


# --- classes left out -------------------------------------------------------------------------------------------------


DRAWS = 50  # random sets of images that transfer is fitted on; the same for every row and seed


def left_out_classes(data: Data, fraction: float) -> list[str]:
    """Classes to leave out of pretraining: about `fraction` of them, at least two, always the same.

    At least two classes stay in. Only classes with training and held-out images are counted.
    """
    classes = len(data.classes)
    usable = set(data.train.class_ids()) & set(data.held_out.class_ids())
    count = min(max(2, round(fraction * classes)), len(usable) - 2)
    if fraction == 0 or count < 2:
        return []
    order = torch.randperm(classes, generator=torch.Generator().manual_seed(0)).tolist()
    return sorted(data.classes[i] for i in [i for i in order if i in usable][:count])


def embed_split(run: TrainedRun, split: Split) -> Features:
    device = pick_device(run.recipe.train.device)
    return embed(run.encoder.to(device), split, device)


def transfer_accuracy(run: TrainedRun, data: Data, shots: int) -> float:
    """Accuracy on the classes left out of pretraining; nan if there are none."""
    if data.transfer is None:
        return math.nan
    fit, test = (embed_split(run, split) for split in data.transfer)
    return few_shot_accuracy(fit, test, shots)


def few_shot_accuracy(fit: Features, test: Features, shots: int) -> float:
    """Linear accuracy from `shots` labelled images of each class, averaged over draws.

    With all images, most encoders separate a few classes perfectly, and alphas would not differ.
    """
    generator = torch.Generator().manual_seed(0)
    accuracies = []
    for _ in range(DRAWS):
        order = torch.randperm(len(fit.labels), generator=generator)
        labels = fit.labels[order]
        selected = torch.cat([order[labels == label][:shots] for label in labels.unique()])
        accuracies.append(linear_accuracy(Features(fit.values[selected], fit.labels[selected]), test))
    return statistics.fmean(accuracies)
