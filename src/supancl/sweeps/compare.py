"""`compare`: train recipes, methods or settings on the same images, and say which differ."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import Unpack

from supancl.distributed import require_single_process
from supancl.errors import BadInput
from supancl.files import write_json, write_text
from supancl.reporter import say, show
from supancl.reports.tables import Row, Table, mean_text, to_latex, to_markdown
from supancl.stats import TOO_FEW_IMAGES, Tone, mean_interval, paired_accuracy_interval, tukey_half_width
from supancl.sweeps import (
    Labels,
    Rows,
    Sweep,
    SweepSettings,
    grid_rows,
    recipe_rows,
    short_names,
    split_grid,
)

if TYPE_CHECKING:
    from supancl.data.splits import Data
    from supancl.sweeps.runner import Outcomes, Result

# key -> title and decimals
MEASURES = {
    "accuracy": ("accuracy %", 2),  # of the rows of a start: frozen with a linear classifier, or fine-tuned
    "transfer": ("transfer %", 2),
    "linear": ("linear %", 2),
    "linear_map": ("linear mAP %", 2),
    "knn": ("k-NN %", 2),
    "knn_map": ("k-NN mAP %", 2),
    "effective_rank": ("effective rank", 1),  # of the monitor, as is std
    "std": ("std", 3),
    "ratio": ("S_W/S_T", 3),
    "ssl": ("l_ssl", 3),
    "sup": ("l_sup", 3),
    "seconds": ("seconds", 0),
}
BECAUSE = "compare"
DRAWS = 50  # random sets of images that transfer is fitted on; the same for every row and seed
Against = Literal["first", "best"]


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
    sweep, names = Sweep("compare", settings), list(recipes)
    if shots < 1 or not 0 <= leave_out < 1:
        raise BadInput("shots must be at least 1, and leave_out must lie in [0, 1)")
    from supancl.recipes import find_recipe
    from supancl.training.start import requested_recipe

    if not names:
        if "data.source" not in sweep.given:
            raise BadInput("name recipes, or give data, such as a folder of images (docs/own-data.md)")
        base = {key: value for key, value in sweep.given.items() if key.startswith("data.")}
        names = [requested_recipe(None, None, sweep.compat, base)[0].name]
    sweep.given, grid = split_grid(find_recipe(names[0], sweep.compat), sweep.given)
    if "train.seed" in grid or "train.seed" in sweep.given:
        raise BadInput("train.seed: every row has the same seeds; give their number with seeds")
    if (start is None and bool(grid) == (len(names) > 1)) or (start is not None and (grid or leave_out or names[1:])):
        raise BadInput(
            "name one recipe and several values, set loss.alpha=0,0.5; or two recipes or more; or one and a start"
        )
    if start is not None:
        from supancl.sweeps.start import compare_with_start

        return compare_with_start(sweep, names[0], str(start))
    if grid:
        (rows, labels), heads = grid_rows(sweep.recipe(names[0]), grid), short_names(grid)
    else:
        (rows, labels), heads = recipe_rows(map(sweep.recipe, names)), {"row": "recipe"}
    say(f"rows: {len(rows)}, seeds: {sweep.seeds}, {len(rows) * sweep.seeds} runs in {sweep.out}")
    result, outcomes = train_and_compare(rows, labels, sweep, "best" if grid else "first", leave_out, shots)
    return write_comparison(sweep, outcomes, result, heads)


def write_comparison(sweep: Sweep, outcomes: Outcomes, result: Result, heads: Mapping[str, str]) -> Result:
    """Print the table and the findings; write results.json, .md and .tex, and the page; then raise if a run failed."""
    from supancl.reports.page import write_page
    from supancl.reports.report import Comparison, report_page
    from supancl.reports.verdict import RunRecord
    from supancl.runs.provenance import commit, versions
    from supancl.sweeps.runner import raise_failed

    out, findings = sweep.out, result["findings"]
    about = {"command": BECAUSE, "seeds": list(range(sweep.seeds)), "versions": versions(), "commit": commit()}
    result = {**about, **result, "seconds": time.perf_counter() - result["started"]}
    del result["started"]
    table = comparison_table(result, heads)
    show(table)
    for line in findings:
        say(line)
    write_json(out / "results.json", result)
    write_text(out / "results.md", to_markdown(table) + "".join(f"\n- {line}" for line in findings) + "\n")
    write_text(out / "results.tex", to_latex(replace(table, notes=[*table.notes, *findings])))
    records = {name: RunRecord(out / name) for name, failure in outcomes.items() if failure is None}
    page = report_page(records, comparison=Comparison(result["tone"], findings, table, out))
    write_page(out / "comparison.html", page)
    say(f"runs, results.json, .md, .tex and comparison.html in {out}; {result['seconds']:.0f} s")
    raise_failed(sweep, outcomes, result)
    return result


def comparison_table(result: Result, heads: Mapping[str, str]) -> Table:
    """A row per recipe or combination: its difference to the reference, and means ± half their 95% intervals.

    `heads` maps the keys that name a row to the titles of their columns.
    """
    entries, gaps = result["summary"], {entry["row"]: entry for entry in result["differences"]}
    shown = sorted((key for key in MEASURES if key in entries[0]), key=lambda key: key != result["measure"])
    rows: list[Row] = []
    for entry in entries:
        words = [f"{entry[key]:g}" if isinstance(entry[key], float) else str(entry[key]) for key in heads]
        gap = gaps.get(entry["row"], {"mean": None, "high": math.nan})
        half = math.nan if gap["mean"] is None else gap["high"] - gap["mean"]
        difference = "0" if entry["row"] == result["reference"] else mean_text(gap["mean"], half, 2, "+")
        means = (mean_text(entry[key], entry[f"{key}_half_interval"], MEASURES[key][1]) for key in shown)
        rows.append([*words, difference, *means])
    titles = [*heads.values(), "difference", *(MEASURES[key][0] for key in shown)]
    data = result["data"]
    split = result.get("split", "held-out")  # of a study; compare has no other
    caption = (
        f"{result['command']} on {Path(str(data['source'])).name}: epochs: {' or '.join(map(str, result['epochs']))}, "
        f"seeds: {len(result['seeds'])}, {split} images: {result.get('images', data['held_out'])}"
    )
    if "start" in result:
        caption += f", start: {result['start']}, chance: {result['chance']:.1f}%"
    notes = [f"difference: {result['compared_by']}, to {result['reference']}; ± half a 95% interval {result['over']}"]
    align = "l" * len(heads) + "r" * (len(titles) - len(heads))
    optional = [MEASURES[key][0] for key in reversed(shown[1:])]
    return Table(titles, rows, align, caption, notes, optional=optional)


# --- runs on the same data --------------------------------------------------------------------------------------------


def train_and_compare(
    rows: Rows, labels: Labels, sweep: Sweep, against: Against, leave_out: float = 0.0, shots: int = 5
) -> tuple[Result, Outcomes]:
    """Train every row with every seed and measure it; returns the content of results.json, and how the runs ended."""
    from supancl.data.labels import with_leaf_labels
    from supancl.sweeps.runner import RunEvaluator, collect_results, summarize, train_runs
    from supancl.training.start import resolve

    started, rows = time.perf_counter(), {name: resolve(recipe) for name, recipe in rows.items()}
    groups, outcomes = open_rows(rows, sweep, leave_out), dict[str, Any]()
    for same_data, data in groups:
        outcomes |= train_runs(sweep, sweep.with_seeds(same_data, BECAUSE), data)
    data = groups[0][1]
    held_out = with_leaf_labels(data).held_out.all_labels  # runs on a hierarchy are compared by its leaves
    evaluator = RunEvaluator(next(iter(rows.values())).train.device, baselines=True)
    scores = ("knn", "linear", "ratio") if held_out.has_one_each else ("knn_map", "linear_map")
    has_terms = len({getattr(recipe.loss, "alpha", None) for recipe in rows.values()}) > 1
    measures = [*(("ssl", "sup") if has_terms else ()), *scores, *(("transfer",) if leave_out else ())]

    def measure(folder: Path) -> dict[str, Any]:
        measured: dict[str, Any] = evaluator.measure(folder, (*scores, "gain"))
        if leave_out:
            measured["transfer"] = transfer_accuracy(folder, data, shots)
        gain = measured["gain"]
        return {**{key: measured[key] for key in measures}, "learned": None if gain is None else gain > 0}

    results = collect_results(sweep, outcomes, labels, (*measures, "learned"), measure)
    is_linear = any(result[scores[1]] is not None for result in results)
    by = "transfer" if leave_out else scores[is_linear]
    return {
        "data": data.summary,
        "epochs": sorted({recipe.train.epochs for recipe in rows.values()}),
        "rows": results,
        "summary": [summarize(results, label, measures) for label in labels.values()],
        **compare_rows(results, list(labels), by, against, int(held_out.is_labelled.sum())),
        "started": started,
    }, outcomes


def open_rows(rows: Rows, sweep: Sweep, leave_out: float) -> list[tuple[Rows, Data]]:
    """The rows by the data they need, which must hold out the same images; these are never a test split."""
    from supancl.data.splits import fingerprint
    from supancl.evaluation.results import grouped
    from supancl.recipes.auto import with_short_side
    from supancl.sweeps.runner import check_folder, open_held_out, open_recipe_data

    groups: list[tuple[Rows, Data]] = []
    for recipe in rows.values():
        check_folder(sweep, recipe)
    needs = grouped(rows, lambda name: (with_short_side(rows[name]).data, rows[name].encoder.channels))
    for first, *others in needs.values():
        recipe, changed = rows[first], dict[str, Any]()
        held_out, data = open_held_out(recipe, BECAUSE, several_labels=True)
        if not data.held_out.class_ids():
            raise BadInput(f"{recipe.data.source}: no held-out image has a label to compare runs on")
        if held_out.data.holdout != recipe.data.holdout or leave_out:
            changed["data.holdout"] = held_out.data.holdout
        if leave_out:
            changed["data.leave_out"] = left_out_classes(data, leave_out)
            data = open_recipe_data(recipe.with_set(changed, BECAUSE))
        groups.append(({name: rows[name].with_set(changed, because=BECAUSE) for name in (first, *others)}, data))
        (reference, *_), one = groups[0]
        if data.classes != one.classes or fingerprint(data.held_out) != fingerprint(one.held_out):
            raise BadInput(
                f"{reference} ({rows[reference].data.source}) and {first} ({recipe.data.source}) hold out other "
                "images, or have different classes, so they cannot be compared; give one data, data.holdout, "
                "data.hierarchy and data.leave_out to both"
            )
    return groups


def left_out_classes(data: Data, fraction: float) -> list[str]:
    """Classes to leave out of pretraining: about `fraction` of them, always the same; two stay in, two are left out."""
    import torch

    data.train.all_labels.check_single(str(data.summary.get("source")), "leave_out above 0")
    classes, usable = len(data.classes), set(data.train.class_ids()) & set(data.held_out.class_ids())
    count = min(max(2, round(fraction * classes)), len(usable) - 2)
    if count < 2:
        raise BadInput(f"leave_out = {fraction:g}: needs four classes with training and held-out images")
    order = torch.randperm(classes, generator=torch.Generator().manual_seed(0)).tolist()
    return sorted(data.classes[i] for i in [i for i in order if i in usable][:count])


def transfer_accuracy(folder: Path, data: Data, shots: int) -> float:
    """Linear accuracy on the classes left out of pretraining from `shots` images of each, averaged over draws.

    With all images, most encoders separate a few classes perfectly, and rows would not differ.
    """
    import torch

    from supancl.distributed.ranks import pick_device
    from supancl.probes import Features, embed, linear_accuracy
    from supancl.training.run import load

    assert data.transfer is not None
    run = load(folder)
    device = pick_device(run.recipe.train.device)
    fit, test = (embed(run.encoder.to(device), split, device) for split in data.transfer)
    generator, accuracies = torch.Generator().manual_seed(0), []
    for _ in range(DRAWS):
        order = torch.randperm(len(fit.labels), generator=generator)
        labels = fit.labels[order]
        selected = torch.cat([order[labels == label][:shots] for label in labels.unique()])
        accuracies.append(linear_accuracy(Features(fit.values[selected], fit.labels[selected]), test))
    return math.fsum(accuracies) / len(accuracies)


# --- differences ------------------------------------------------------------------------------------------------------


def compare_rows(
    results: Sequence[Result],
    rows: Sequence[str],
    by: str,
    against: Against,
    images: int | None = None,
    answers: Mapping[str, Sequence[float]] | None = None,
) -> Result:
    """How the rows differ: the reference, an entry per other row, a verdict with its colour, and what failed.

    The reference is the first row, or the best one. Differences are paired over seeds; `answers`, the share of seeds by
    which each image was answered correctly, pair them over images. Where the best of several rows is picked, intervals
    hold for all together. `images` is the number of labelled images compared on. A result may say whether its run
    `learned`: whether it is clearly better than random weights or chance.
    """
    values: dict[str, dict[int, float]] = {row: {} for row in rows}
    for entry in results:
        if entry[by] is not None and math.isfinite(entry[by]):
            values[entry["row"]][entry["seed"]] = entry[by]
    seeds = {entry["seed"] for entry in results}
    complete = [row for row in rows if values[row].keys() == seeds]
    means = {row: statistics.fmean(found.values()) for row, found in values.items() if found}
    reference = rows[0] if against == "first" else max(complete, key=lambda row: means[row], default=None)
    half = tukey_half_width([[values[row][seed] for seed in sorted(seeds)] for row in complete]) if complete else 0.0
    differences: list[Result] = []
    for row in rows:
        common = [] if reference is None else sorted(values[row].keys() & values[reference].keys())
        if row == reference or reference is None or not common or (against == "best" and row not in complete):
            continue  # a failed run has no difference
        if answers is not None:
            mean, low, high = paired_accuracy_interval(answers[row], answers[reference], comparisons=len(rows) - 1)
        else:
            mean, low, high = mean_interval([values[row][seed] - values[reference][seed] for seed in common])
            low, high = (mean - half, mean + half) if against == "best" else (low, high)
        # seeds that differ by exactly as many images have no spread: images are few, not differences sure
        is_clear = math.isfinite(low) and low < high and (low > 0 or high < 0)
        word = "no clear difference" if not is_clear else "better" if mean > 0 else "worse"
        differences.append({"row": row, "mean": mean, "low": low, "high": high, "n": len(common), "verdict": word})
    lines = [
        f"{end}: {row['row']}, seed {row['seed']}{f' ({row[end]})' * (end == 'failed')}"
        for end in ("failed", "collapsed")
        for row in results
        if row[end]
    ]
    over = "over images" if answers is not None else "over seeds"
    name = MEASURES[by][0].removesuffix(" %")
    tone, verdict = find_verdict(results, differences, reference, against, images)
    if reference is not None and tone != "bad":
        seeds_used = f"seeds: {len(seeds)}" if answers is None else f"images: {images}"
        verdict += f" ({name} of {reference} {means.get(reference, math.nan):.1f}%, {seeds_used})"
    return {
        "compared_by": name,
        "measure": by,
        "reference": reference,
        "over": over + ("" if against == "first" and answers is None else ", for all rows together"),
        "differences": differences,
        "tone": tone,
        "findings": [verdict, *lines],
    }


def find_verdict(
    results: Sequence[Result],
    differences: Sequence[Result],
    reference: str | None,
    against: Against,
    images: int | None,
) -> tuple[Tone, str]:
    """Which row to use, in one sentence."""
    rows = {word: [gap for gap in differences if gap["verdict"] == word] for word in ("better", "worse")}
    if images is not None and images < TOO_FEW_IMAGES:
        return "unclear", f"too few images to say: {images} held out, {TOO_FEW_IMAGES} are needed; label more images"
    if {result.get("learned") for result in results if not result["failed"]} == {False}:
        return "bad", "nothing was learned yet: no run is clearly better than random weights or chance; train longer"
    if reference is None:
        return "bad", "nothing is recommended: every row has a failed run"
    if not differences:
        return "unclear", f"nothing to compare {reference} with"
    if not any(math.isfinite(gap["low"]) for gap in differences):
        return "unclear", "one seed shows no difference: give seeds 3 or more"
    if against == "best":
        unclear = ", ".join(gap["row"] for gap in differences if gap["verdict"] != "worse")
        if not rows["worse"]:
            return "unclear", f"no row is clearly better than the others: {reference} has the highest mean"
        text = f"use {reference}: clearly better than {', '.join(gap['row'] for gap in rows['worse'])}"
        return "good", text + f"; no clear difference from {unclear}" * bool(unclear)
    if not rows["better"]:
        worse = f"; clearly worse: {', '.join(gap['row'] for gap in rows['worse'])}" * bool(rows["worse"])
        return "good" if rows["worse"] else "unclear", f"stay with {reference}: nothing is clearly better{worse}"
    best = max(rows["better"], key=lambda gap: float(gap["mean"]))
    return "good", f"use {best['row']}: {best['mean']:+.1f} points [{best['low']:.1f}, {best['high']:.1f}]"
