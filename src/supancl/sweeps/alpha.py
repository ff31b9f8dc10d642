"""Which alpha suits my data? Train each, measure what the paper's Table 1 measures, and recommend one."""

from __future__ import annotations

import math
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from supancl.core.losses import Align
from supancl.data.label_pairs import check_one_label
from supancl.data.splits import Data, Split
from supancl.errors import BadInput, plural
from supancl.files import write_json
from supancl.probes import Features, embed, linear_accuracy
from supancl.recipes import Recipe
from supancl.stats import tukey_half_width
from supancl.sweeps.measures import RunEvaluator, measure_run
from supancl.sweeps.results import Result, collect_results, count_cell, mean_cells, summarize
from supancl.sweeps.runner import Sweep, open_held_out, open_recipe_data, run_name
from supancl.sweeps.runs import Runs, TrainedRun
from supancl.training.preflight import pick_device
from supancl.weights.provenance import commit, versions

MEASURES = {
    # key -> (title, decimals)
    "ssl": ("l_ssl", 3),
    "sup": ("l_sup", 3),
    "ratio": ("S_W/S_T", 3),
    "knn": ("k-NN %", 2),
    "linear": ("linear %", 2),
    "transfer": ("transfer %", 2),
}
MAX_TSNE_IMAGES = 2000  # held-out images per t-SNE panel; many more take minutes
DRAWS = 50  # random sets of images that transfer is fitted on; the same for every alpha and seed


def check_alpha(base: Recipe) -> None:
    """Refuse a recipe in which alpha cannot be varied."""
    if not isinstance(base.loss, Align) or base.heads.predictor is None:
        raise BadInput(f"{base.name} has no alpha; use a simsiam, supsiam, byol or supbyol recipe")
    if base.pool.kind == "none":
        raise BadInput(f"{base.name} has no pool; use supsiam or supbyol, or --set pool.kind=queue")


def train_alphas(
    base: Recipe, alphas: list[float], sweep: Sweep, leave_out: float, shots: int
) -> tuple[Result, Runs, Data]:
    """Train and measure every alpha with every seed; returns the content of alpha.json, the runs and the data.

    `leave_out` is the fraction of the classes that pretraining never sees; transfer to them is fitted on `shots`
    labelled images of each.
    """
    because, started = "alpha study", time.perf_counter()
    base, data = open_held_out(base, because, sweep.reporter)
    left_out = left_out_classes(data, leave_out)
    if left_out:
        check_one_label(data.train.pairs, base.data.location, "--leave-out above 0", is_nested=bool(data.levels))
    else:
        sweep.reporter.note(
            "no class is left out, so transfer is not measured (it needs four classes with training and "
            "held-out images, and --leave-out > 0)"
        )
    base = base.with_set({"data.leave_out": left_out}, because=because)
    rows = {row_name(alpha): base.with_set({"loss.alpha": alpha}, because=because) for alpha in alphas}
    labels = {row_name(alpha): {"alpha": alpha} for alpha in alphas}
    data = open_recipe_data(base)
    runs = sweep.train(sweep.with_seeds(rows, because), data)
    evaluator = RunEvaluator(base.train.device, sweep.reporter)

    def measure(run: TrainedRun, folder: Path) -> dict[str, float]:
        measured = measure_run(run, folder, evaluator) | {"transfer": transfer_accuracy(run, data, shots)}
        return {key: math.nan if (value := measured[key]) is None else value for key in MEASURES}

    results = collect_results(sweep, runs, labels, MEASURES, measure)
    result: Result = {
        "recipe": base.name,
        "data": data.summary,
        "alphas": alphas,
        "seeds": list(range(sweep.seeds)),
        "left_out": left_out,
        "shots": shots,
        "epochs": base.train.epochs,
        "rows": results,
        "summary": [summarize(results, label, MEASURES, ("failed",)) for label in labels.values()],
        "recommendation": recommend(results, alphas, "transfer" if left_out else "linear"),
        "seconds": time.perf_counter() - started,
        "versions": versions(),
        "commit": commit(),
    }
    return result, runs, data


def write_alphas(result: Result, runs: Runs, data: Data, out: Path) -> Path:
    """Write alpha.json and the page; returns the page's path."""
    from supancl.reports.alpha_page import write_page  # here, because `supancl paper study` needs no matplotlib

    write_json(out / "alpha.json", result)
    panels = embed_first_seeds(runs, result["alphas"], result["seeds"], data.held_out.sample(MAX_TSNE_IMAGES))
    return write_page(result, summary_table(result), MEASURES, panels, data.classes, out)


def embed_first_seeds(runs: Runs, alphas: list[float], seeds: list[int], split: Split) -> dict[str, Features]:
    """Features of this split by each alpha's first seed that did not fail."""
    features = {}
    for alpha in alphas:
        seed = next((seed for seed in seeds if run_name(row_name(alpha), seed) in runs.trained), None)
        if seed is not None:
            title = f"alpha = {alpha:g}" + (f" (seed {seed})" if seed else "")
            features[title] = embed_split(runs.trained[run_name(row_name(alpha), seed)], split)
    return features


def row_name(alpha: float) -> str:
    return f"alpha-{alpha:g}"


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


def summary_table(result: Result) -> tuple[list[str], list[list[str]]]:
    """Column titles and cells: mean ± sd over the runs that did not fail."""
    measured = {key for key in MEASURES if any(not math.isnan(entry[key]) for entry in result["summary"])}
    measures = {key: MEASURES[key] for key in MEASURES if key in measured}
    failed = any(entry["failed"] for entry in result["summary"])
    cells = [
        [f"{entry['alpha']:g}", *mean_cells(entry, measures), *[count_cell(entry["failed"], entry["n"])] * failed]
        for entry in result["summary"]
    ]
    return ["alpha", *(title for title, _ in measures.values()), *["failed"] * failed], cells


def recommend(rows: list[dict[str, Any]], alphas: list[float], by: str) -> str:
    """One sentence: the best alpha by this measure, and which others are close to it, worse, or collapsed.

    An alpha with a failed run is named but not compared, because its other runs have different seeds.
    """
    remarks = list_seeds(rows, alphas, "collapsed", "collapsed")
    remarks += list_seeds(rows, alphas, "failed", "failed and is not compared")
    complete = [alpha for alpha in alphas if not any(row["failed"] for row in rows if row["alpha"] == alpha)]
    by_alpha = {alpha: {row["seed"]: row[by] for row in rows if row["alpha"] == alpha} for alpha in complete}
    title = {"transfer": "transfer to classes it never saw", "linear": "linear accuracy"}[by]
    if not complete:
        return "no alpha can be recommended: runs of every alpha failed" + remarks
    if not all(math.isfinite(value) for values in by_alpha.values() for value in values.values()):
        return f"no alpha can be recommended: {title} could not be measured" + remarks
    best = max(complete, key=lambda alpha: statistics.fmean(by_alpha[alpha].values()))
    seeds = sorted(by_alpha[best])
    mean = statistics.fmean(by_alpha[best].values())
    if len(complete) == 1 < len(alphas):
        return (
            f"alpha = {best:g} is the only one without a failed run ({title} {mean:.2f}%, "
            f"{plural(len(seeds), 'seed')}), so there is nothing to compare it with" + remarks
        )
    if len(seeds) < 2:
        return (
            f"alpha = {best:g} has the best {title} ({mean:.2f}%), but one seed shows no clear difference; "
            "run with --seeds 3 or more" + remarks
        )
    half_width = tukey_half_width([[by_alpha[alpha][seed] for seed in seeds] for alpha in complete])
    close, worse = [], []
    for alpha in complete:
        if alpha == best:
            continue
        difference = mean - statistics.fmean(by_alpha[alpha].values())
        if difference <= half_width:
            close.append(f"{alpha:g}")
        else:
            worse.append(
                f"{alpha:g} is worse by {difference:.2f} points (95% interval {difference - half_width:.2f} to "
                f"{difference + half_width:.2f})"
            )
    text = f"alpha = {best:g} has the best {title} ({mean:.2f}%, {len(seeds)} seeds)"
    if close:
        listed = " and ".join(words for words in (", ".join(close[:-1]), close[-1]) if words)
        text += f"; no clear difference from {listed} with {len(seeds)} seeds"
    return "; ".join([text, *worse]) + remarks


def list_seeds(rows: list[dict[str, Any]], alphas: list[float], key: str, outcome: str) -> str:
    """The alphas and seeds whose runs collapsed or failed: runs of a study do not report it while they train."""
    seeds_of = {alpha: [row["seed"] for row in rows if row["alpha"] == alpha and row[key]] for alpha in alphas}
    return "".join(
        f"; alpha = {alpha:g} {outcome} (seed {', '.join(map(str, seeds))})"
        for alpha, seeds in seeds_of.items()
        if seeds
    )
