"""`compare --start`: is pretraining on your images better than the trained network that you have?

The frozen network, the fine-tuned one, and a recipe from its weights and from scratch are compared on the same held-out
images: by a linear classifier on frozen features, and by the fine-tuned network itself. Differences are paired image by
image, each answer averaged over seeds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from supancl.config import to_json
from supancl.distributed.ranks import pick_device
from supancl.evaluation import FineTune
from supancl.evaluation.encoder import EvaluationOptions, open_evaluated_encoder
from supancl.evaluation.finetune import choose_lr, predict, train_classifier
from supancl.probes import linear_probe
from supancl.probes.answers import Answers
from supancl.reporter import say
from supancl.reports.verdict import RunRecord
from supancl.stats import wilson_interval
from supancl.sweeps import Sweep, run_name
from supancl.sweeps.compare import BECAUSE, compare_rows, write_comparison
from supancl.sweeps.runner import (
    Outcomes,
    Result,
    check_folder,
    collect_results,
    open_held_out,
    open_recipe_data,
    summarize,
    train_runs,
)
from supancl.training.start import resolve

FROZEN, FINE_TUNED = "frozen", "fine-tuned"


def compare_with_start(sweep: Sweep, name: str, start: str) -> Result:
    """Train and measure the four rows with every seed; returns the content of results.json."""
    started, requested = time.perf_counter(), sweep.recipe(name)
    check_folder(sweep, requested)
    from_start, data = open_held_out(resolve(requested, init=start), BECAUSE)
    same = {f"encoder.{field}": value for field, value in to_json(from_start.encoder).items()}
    same["data.holdout"] = from_start.data.holdout
    scratch = resolve(requested.with_set(same, because=f"of the start, {start}"))
    method = requested.name.rpartition(".")[2]
    rows = {f"{method}-from-start": from_start, f"{method}-from-scratch": scratch}
    options = EvaluationOptions(pick_device(from_start.train.device))
    evaluated, classes = open_evaluated_encoder(start, options), len(data.classes)
    train, test = data.train.labelled(), data.held_out.labelled()
    chance = 100 * float(test.labels.bincount().max()) / len(test)
    answers: dict[str, list[Tensor]] = {}  # of each row and seed: which held-out images it is right about
    say(f"rows: 4, seeds: {sweep.seeds}, {2 * sweep.seeds} runs in {sweep.out}")

    def measure(row: str, seed: int, answer: Callable[[], Tensor], before: float = 0.0) -> dict[str, Any]:
        since = time.perf_counter()
        correct = answer()
        answers.setdefault(row, []).append(correct)
        accuracy = wilson_interval(100 * float(correct.double().mean()), len(correct))
        say(f"{run_name(row, seed)}: {accuracy.mean:.1f}%")
        seconds = before + time.perf_counter() - since
        return {"accuracy": accuracy.mean, "seconds": seconds, "learned": accuracy.low > chance}

    def linear(location: str) -> Tensor:
        """By a linear classifier; each half of the held-out images chooses the ridge for the other."""
        opened = open_evaluated_encoder(location, options)
        fit, tested = (opened.features(split) for split in (data.train, data.held_out))
        measured = linear_probe(fit, tested, "halves", device=options.device).measured
        assert isinstance(measured, Answers)
        return measured.is_correct

    def fine_tuned(seed: int) -> Tensor:
        model = train_classifier(evaluated, train, classes, lr, replace(FineTune(), seed=seed))
        return predict(model, test, evaluated) == test.labels

    def measure_run(folder: Path) -> dict[str, Any]:
        row, _, seed = folder.name.rpartition("-seed-")
        return measure(row, int(seed), partial(linear, str(folder)), RunRecord(folder).seconds or 0.0)

    ended = {"collapsed": False, "failed": None}
    results = [{"row": FROZEN, "seed": 0, **measure(FROZEN, 0, lambda: linear(start)), **ended}]
    since = time.perf_counter()
    lr, _ = choose_lr(evaluated, train, classes, FineTune())  # on a tenth of the training images
    choosing = time.perf_counter() - since
    for seed in range(sweep.seeds):
        found = measure(FINE_TUNED, seed, partial(fine_tuned, seed), choosing)
        results.append({"row": FINE_TUNED, "seed": seed, **found, **ended})
    outcomes = Outcomes()
    for (row, recipe), weights in zip(rows.items(), (start, None), strict=True):
        named = sweep.with_seeds({row: recipe}, BECAUSE)
        outcomes |= train_runs(sweep, named, open_recipe_data(recipe), dict.fromkeys(named, weights))
    labels = {row: {"row": row} for row in rows}
    results += collect_results(sweep, outcomes, labels, ("accuracy", "seconds", "learned"), measure_run)
    names, count = [FROZEN, FINE_TUNED, *rows], len(test)
    shares = {row: torch.stack([answer.double() for answer in found]).mean(0) for row, found in answers.items()}
    summary = [summarize(results, {"row": name}, ("accuracy", "seconds")) for name in names]
    for entry in summary:
        if entry["row"] in shares:
            _, low, high = wilson_interval(100 * float(shares[entry["row"]].mean()), count)
            entry |= {"accuracy_half_interval": (high - low) / 2, "seconds_half_interval": math.nan}
    as_lists = {row: share.tolist() for row, share in shares.items()}
    result = {
        "data": data.summary,
        "epochs": [from_start.train.epochs],
        "rows": results,
        "summary": summary,
        **compare_rows(results, names, "accuracy", "first", count, as_lists),
        "start": start,
        "images": count,
        "chance": chance,
        "started": started,
    }
    return write_comparison(sweep, outcomes, result, {"row": "row"})
