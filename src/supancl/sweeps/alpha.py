"""Which alpha for my data? Trains each, measures what the paper's Table 1 measures, and recommends one."""

from __future__ import annotations

import math
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from supancl.core.losses import Align
from supancl.data.splits import Data, Split
from supancl.errors import BadInput, plural
from supancl.files import write_json
from supancl.probes import Features, embed, linear_accuracy
from supancl.recipes import Recipe
from supancl.stats import tukey_half_width
from supancl.sweeps.measures import RunEvaluator, measure_run
from supancl.sweeps.results import Result, collect_results, mean_cells, share_cell, summarize
from supancl.sweeps.runner import Sweep, data_of, open_held_out, run_name
from supancl.sweeps.runs import Runs, Trained
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
SHOWN = 2000  # held-out images in the t-SNE panels, which take minutes each for many more
DRAWS = 50  # of the images that transfer is fitted on; the same ones for every alpha and seed


def check_alpha(base: Recipe) -> None:
    """Refuse a recipe in which alpha cannot be varied."""
    if not isinstance(base.loss, Align) or base.heads.predictor is None:
        raise BadInput(f"{base.name} has no alpha; take a simsiam, supsiam, byol or supbyol recipe")
    if base.pool.kind == "none":
        raise BadInput(f"{base.name} has no pool; take supsiam or supbyol, or --set pool.kind=queue")


def train_alphas(
    base: Recipe, alphas: list[float], sweep: Sweep, leave_out: float, shots: int
) -> tuple[Result, Runs, Data]:
    """Train and measure every alpha with every seed; returns the content of alpha.json, the runs and the data.

    `leave_out` is the share of the classes that pretraining never sees, `shots` how many labelled images of each
    transfer to them is fitted on.
    """
    because, started = "alpha study", time.perf_counter()
    base, data = open_held_out(base, because, sweep.reporter)
    left_out = left_out_classes(data, leave_out)
    if not left_out:
        sweep.reporter.note(
            "no class is left out, so transfer is not measured (it takes four classes with training and "
            "held-out images, and --leave-out > 0)"
        )
    base = base.with_set({"data.leave_out": left_out}, because=because)
    rows = {row_name(alpha): base.with_set({"loss.alpha": alpha}, because=because) for alpha in alphas}
    labels = {row_name(alpha): {"alpha": alpha} for alpha in alphas}
    data = data_of(base)
    runs = sweep.train(sweep.with_seeds(rows, because), data)
    evaluator = RunEvaluator(base.train.device, sweep.reporter)

    def measure(run: Trained, folder: Path) -> dict[str, float]:
        found = measure_run(run, folder, evaluator) | {"transfer": transfer_accuracy(run, data, shots)}
        return {key: math.nan if (value := found[key]) is None else value for key in MEASURES}

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
        "recommendation": recommendation(results, alphas, "transfer" if left_out else "linear"),
        "seconds": time.perf_counter() - started,
        "versions": versions(),
        "commit": commit(),
    }
    return result, runs, data


def write_alphas(result: Result, runs: Runs, data: Data, out: Path) -> Path:
    """Write alpha.json and the page; returns the page's path."""
    from supancl.reports.alpha_page import write_page  # with matplotlib, which `supancl paper study` has no use for

    write_json(out / "alpha.json", result)
    panels = first_features(runs, result["alphas"], result["seeds"], data.held_out.sample(SHOWN))
    return write_page(result, laid_out(result), MEASURES, panels, data.classes, out)


def first_features(runs: Runs, alphas: list[float], seeds: list[int], shown: Split) -> dict[str, Features]:
    """Features by each alpha's first seed that did not fail."""
    found = {}
    for alpha in alphas:
        seed = next((seed for seed in seeds if run_name(row_name(alpha), seed) in runs.trained), None)
        if seed is not None:
            title = f"alpha = {alpha:g}" + (f" (seed {seed})" if seed else "")
            found[title] = features_of(runs.trained[run_name(row_name(alpha), seed)], shown)
    return found


def row_name(alpha: float) -> str:
    return f"alpha-{alpha:g}"


def left_out_classes(data: Data, share: float) -> list[str]:
    """Classes to keep out of pretraining: about `share` of them, at least two, and at least two stay; drawn once.

    Both kinds are counted among the classes that have training and held-out images: others can judge nothing.
    """
    classes = len(data.classes)
    usable = set(data.train.class_ids()) & set(data.held_out.class_ids())
    count = min(max(2, round(share * classes)), len(usable) - 2)
    if share == 0 or count < 2:
        return []
    order = torch.randperm(classes, generator=torch.Generator().manual_seed(0)).tolist()
    return sorted(data.classes[i] for i in [i for i in order if i in usable][:count])


def features_of(run: Trained, split: Split) -> Features:
    device = pick_device(run.recipe.train.device)
    return embed(run.encoder.to(device), split, device)


def transfer_accuracy(run: Trained, data: Data, shots: int) -> float:
    """Accuracy on the classes left out of pretraining; nan where none is."""
    if data.transfer is None:
        return math.nan
    fit, test = (features_of(run, split) for split in data.transfer)
    return few_shot_accuracy(fit, test, shots)


def few_shot_accuracy(fit: Features, test: Features, shots: int) -> float:
    """Linear accuracy on classes never pretrained on, from `shots` labelled images of each, averaged over draws.

    From all images most encoders separate a few classes perfectly, which tells them nothing apart.
    """
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(DRAWS):
        order = torch.randperm(len(fit.labels), generator=generator)
        labels = fit.labels[order]
        chosen = torch.cat([order[labels == label][:shots] for label in labels.unique()])
        found.append(linear_accuracy(Features(fit.values[chosen], fit.labels[chosen]), test))
    return statistics.fmean(found)


def laid_out(result: Result) -> tuple[list[str], list[list[str]]]:
    """Columns and cells of the table: mean +- sd of the runs that did not fail."""
    measured = {key for key in MEASURES if any(not math.isnan(entry[key]) for entry in result["summary"])}
    shown = {key: MEASURES[key] for key in MEASURES if key in measured}
    failed = any(entry["failed"] for entry in result["summary"])
    cells = [
        [f"{entry['alpha']:g}", *mean_cells(entry, shown), *[share_cell(entry["failed"], entry["n"])] * failed]
        for entry in result["summary"]
    ]
    return ["alpha", *(title for title, _ in shown.values()), *["failed"] * failed], cells


def recommendation(rows: list[dict[str, Any]], alphas: list[float], by: str) -> str:
    """One sentence: the best alpha by that measure, which cannot be told apart from it, are worse, or collapsed.

    An alpha with a run that failed is named and not compared: what is left of it would be compared on other seeds.
    """
    remarks = name_seeds(rows, alphas, "collapsed", "collapsed")
    remarks += name_seeds(rows, alphas, "failed", "failed and is not compared")
    whole = [alpha for alpha in alphas if not any(row["failed"] for row in rows if row["alpha"] == alpha)]
    of = {alpha: {row["seed"]: row[by] for row in rows if row["alpha"] == alpha} for alpha in whole}
    title = {"transfer": "transfer to classes it never saw", "linear": "linear accuracy"}[by]
    if not whole:
        return "no alpha can be recommended: runs of every alpha failed" + remarks
    if not all(math.isfinite(value) for values in of.values() for value in values.values()):
        return f"no alpha can be recommended: {title} could not be measured" + remarks
    best = max(whole, key=lambda alpha: statistics.fmean(of[alpha].values()))
    seeds = sorted(of[best])
    mean = statistics.fmean(of[best].values())
    if len(whole) == 1 < len(alphas):
        return (
            f"alpha = {best:g} is the only one of which no run failed ({title} {mean:.2f}%, "
            f"{plural(len(seeds), 'seed')}), so there is nothing to compare it with" + remarks
        )
    if len(seeds) < 2:
        return (
            f"alpha = {best:g} has the best {title} ({mean:.2f}%), but with one seed nothing can be told apart; "
            "run with --seeds 3 or more" + remarks
        )
    reach = tukey_half_width([[of[alpha][seed] for seed in seeds] for alpha in whole])
    close, worse = [], []
    for alpha in whole:
        if alpha == best:
            continue
        difference = mean - statistics.fmean(of[alpha].values())
        if difference <= reach:
            close.append(f"{alpha:g}")
        else:
            worse.append(
                f"{alpha:g} is worse by {difference:.2f} points (95% interval {difference - reach:.2f} to "
                f"{difference + reach:.2f})"
            )
    text = f"alpha = {best:g} has the best {title} ({mean:.2f}%, {len(seeds)} seeds)"
    if close:
        named = " and ".join(part for part in (", ".join(close[:-1]), close[-1]) if part)
        text += f"; {named} cannot be told apart from it with {len(seeds)} seeds"
    return "; ".join([text, *worse]) + remarks


def name_seeds(rows: list[dict[str, Any]], alphas: list[float], key: str, what: str) -> str:
    """Of which alphas runs collapsed, by the monitor's verdict, or failed; runs of a study are silent in training."""
    found = {alpha: [row["seed"] for row in rows if row["alpha"] == alpha and row[key]] for alpha in alphas}
    return "".join(
        f"; alpha = {alpha:g} {what} (seed {', '.join(map(str, seeds))})" for alpha, seeds in found.items() if seeds
    )
