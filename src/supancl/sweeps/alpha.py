"""Which alpha for my data? Trains each, measures what the paper's Table 1 measures, and says what can be told."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from supancl.data.splits import Data, Split
from supancl.errors import counted
from supancl.files import write_text
from supancl.probes import Features, embed, linear_accuracy
from supancl.recipes import Recipe
from supancl.reporter import Reporter
from supancl.reports.alpha_page import write_page
from supancl.sweeps.measures import JUDGED, Judge, Measurement
from supancl.sweeps.runner import (
    Runs,
    Trained,
    check_held_out,
    data_of,
    left_out_classes,
    mean_cell,
    reach_of_all,
    share_cell,
    spread,
    train_all,
)
from supancl.training.preflight import pick_device
from supancl.weights.run_folder import commit, jsonable, versions

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


@dataclass(frozen=True)
class AlphaSweep:
    """What is asked: every alpha with seeds 0 to `seeds` - 1, and how transfer to new classes is measured."""

    base: Recipe
    alphas: tuple[float, ...]
    seeds: int
    leave_out: float  # share of the classes that are kept out of pretraining
    shots: int  # labelled images of each of those
    jobs: int | None = None
    retry: bool = False


def train_alphas(asked: AlphaSweep, out: Path, reporter: Reporter) -> tuple[dict[str, Any], Runs, Data]:
    """Train and measure every run of the sweep; returns the content of alpha.json, the runs and the data."""
    base, alphas, seeds = asked.base, list(asked.alphas), list(range(asked.seeds))
    started = time.perf_counter()
    data = data_of(base)
    if data.described["held_out_from"] == "test":
        # alpha is chosen here, and nothing is chosen on a test set
        base = base.with_set({"data.holdout": 0.1}, because="alpha study")
        reporter.note("the data have a test split but no val split: 10% of the training images are held out instead")
        data = data_of(base)
    check_held_out(data, base)
    left_out = left_out_classes(data, asked.leave_out)
    if not left_out:
        reporter.note(
            "no class is left out, so transfer is not measured (it takes four classes with training and "
            "held-out images, and --leave-out > 0)"
        )
    base = base.with_set({"data.leave_out": left_out}, because="alpha study")
    recipes = {
        run_name(alpha, seed): base.with_set({"loss.alpha": alpha, "train.seed": seed}, because="alpha study")
        for alpha in alphas
        for seed in seeds
    }
    data = data_of(base)
    runs = train_all(recipes, data, out, reporter, asked.jobs, asked.retry)
    judge = Judge(base.train.device, reporter)
    rows = [row_of(alpha, seed, runs, data, asked.shots, judge, out) for alpha in alphas for seed in seeds]
    result: dict[str, Any] = {
        "recipe": base.name,
        "data": data.described,
        "alphas": alphas,
        "seeds": seeds,
        "left_out": left_out,
        "shots": asked.shots,
        "epochs": base.train.epochs,
        "rows": rows,
        "summary": summary(rows, alphas),
        "recommendation": recommendation(rows, alphas, "transfer" if left_out else "linear"),
        "seconds": time.perf_counter() - started,
        "versions": versions(),
        "commit": commit(),
    }
    return result, runs, data


def write_alphas(result: dict[str, Any], runs: Runs, data: Data, out: Path) -> Path:
    """Write alpha.json and the page; returns the page's path."""
    write_text(out / "alpha.json", json.dumps(jsonable(result), indent=2) + "\n")
    shown = panels(runs.trained, result["alphas"], data.held_out.some(SHOWN))
    return write_page(result, laid_out(result), MEASURES, shown, data.classes, out)


def row_of(
    alpha: float, seed: int, runs: Runs, data: Data, shots: int, judge: Judge, out: Path
) -> dict[str, Any]:  # fmt: skip
    """What a run gave; one that failed gave no numbers, and why is said."""
    name = run_name(alpha, seed)
    row: dict[str, Any] = {"alpha": alpha, "seed": seed, "failed": runs.reason(name)}
    if name in runs.failed:
        return {**row, "collapsed": runs.failed[name].collapsed, **dict.fromkeys(MEASURES, math.nan)}
    run = runs.trained[name]
    return {**row, "collapsed": run.collapsed, **measured(run, out / name, data, shots, judge)}


def panels(trained: Mapping[str, Trained], alphas: list[float], shown: Split) -> dict[str, Features]:
    """Features of each alpha's first seed that did not fail."""
    found = {}
    for alpha in alphas:
        seed = next(
            (run.recipe.train.seed for name, run in trained.items() if name == run_name(alpha, run.recipe.train.seed)),
            None,
        )
        if seed is not None:
            title = f"alpha = {alpha:g}" + (f" (seed {seed})" if seed else "")
            found[title] = features_of(trained[run_name(alpha, seed)], shown)
    return found


def run_name(alpha: float, seed: int) -> str:
    return f"alpha-{alpha:g}-seed-{seed}"


def features_of(run: Trained, split: Split) -> Features:
    device = pick_device(run.recipe.train.device)
    return embed(run.encoder.to(device), split, device)


def measured(run: Trained, folder: Path, data: Data, shots: int, judge: Judge) -> dict[str, float]:
    """Losses of the last epoch; S_W/S_T, k-NN and linear as `supancl evaluate` has them; transfer to new classes."""
    found = {key: judge.number(folder, Measurement(protocol), field) for key, (protocol, field) in JUDGED.items()}
    values = {
        "ssl": run.last_epoch("ssl"),
        "sup": run.last_epoch("sup"),
        "transfer": math.nan,
        **{key: math.nan if value is None else value for key, value in found.items()},
    }
    if data.transfer is not None:
        fit, test = (features_of(run, split) for split in data.transfer)
        values["transfer"] = few_shot_accuracy(fit, test, shots)
    return values


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


def summary(rows: list[dict[str, Any]], alphas: list[float]) -> list[dict[str, Any]]:
    found = []
    for alpha in alphas:
        mine = [row for row in rows if row["alpha"] == alpha]
        entry: dict[str, Any] = {"alpha": alpha, "n": len(mine), "failed": sum(bool(row["failed"]) for row in mine)}
        for key in MEASURES:
            values = [row[key] for row in mine if not row["failed"]]
            entry[key] = statistics.fmean(values) if values else math.nan
            entry[f"{key}_sd"] = spread(values)
        found.append(entry)
    return found


def laid_out(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells of the table: mean +- sd of the runs that did not fail."""
    shown = [key for key in MEASURES if any(entry[key] == entry[key] for entry in result["summary"])]
    failed = any(entry["failed"] for entry in result["summary"])

    cells = [
        [
            f"{entry['alpha']:g}",
            *(mean_cell(entry[key], entry[f"{key}_sd"], MEASURES[key][1]) for key in shown),
            *[share_cell(entry["failed"], entry["n"])] * failed,
        ]
        for entry in result["summary"]
    ]
    return ["alpha", *(MEASURES[key][0] for key in shown), *(["failed"] if failed else [])], cells


def recommendation(rows: list[dict[str, Any]], alphas: list[float], by: str) -> str:
    """One sentence: the best alpha by that measure, which cannot be told apart from it, are worse, or collapsed.

    An alpha with a run that failed is named and not compared: what is left of it would be compared on other seeds.
    """
    remarks = seeds_named(rows, alphas, "collapsed", "collapsed") + seeds_named(
        rows, alphas, "failed", "failed and is not compared"
    )
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
            f"{counted(len(seeds), 'seed')}), so there is nothing to compare it with" + remarks
        )
    if len(seeds) < 2:
        return (
            f"alpha = {best:g} has the best {title} ({mean:.2f}%), but with one seed nothing can be told apart; "
            "run with --seeds 3 or more" + remarks
        )
    reach = reach_of_all([[of[alpha][seed] for seed in seeds] for alpha in whole])
    alike, worse = [], []
    for alpha in whole:
        if alpha == best:
            continue
        difference = mean - statistics.fmean(of[alpha].values())
        if difference <= reach:
            alike.append(f"{alpha:g}")
        else:
            worse.append(
                f"{alpha:g} is worse by {difference:.2f} points (95% interval {difference - reach:.2f} to "
                f"{difference + reach:.2f})"
            )
    text = f"alpha = {best:g} has the best {title} ({mean:.2f}%, {len(seeds)} seeds)"
    if alike:
        named = " and ".join(part for part in (", ".join(alike[:-1]), alike[-1]) if part)
        text += f"; {named} cannot be told apart from it with {len(seeds)} seeds"
    return "; ".join([text, *worse]) + remarks


def seeds_named(rows: list[dict[str, Any]], alphas: list[float], key: str, what: str) -> str:
    """Of which alphas runs collapsed, by the monitor's verdict, or failed; runs of a study are silent in training."""
    found = {alpha: [row["seed"] for row in rows if row["alpha"] == alpha and row[key]] for alpha in alphas}
    return "".join(
        f"; alpha = {alpha:g} {what} (seed {', '.join(map(str, seeds))})" for alpha, seeds in found.items() if seeds
    )
