"""`compare --start`: is pretraining on your images better than the trained network that you have?

The frozen network, the fine-tuned one, and a recipe from its weights and from scratch are compared on the same held-out
images. Accuracies are of a linear classifier on frozen features, and of the fine-tuned network itself. Differences are
paired image by image, each answer averaged over seeds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from supancl.config import to_json
from supancl.core.precision import pick_device
from supancl.data.splits import Data
from supancl.errors import BadInput
from supancl.evaluation.encoder import EvaluatedEncoder, EvaluationOptions, open_evaluated_encoder
from supancl.evaluation.finetune import choose_lr, predict, train_classifier
from supancl.evaluation.settings import FineTune
from supancl.files import write_json, write_text
from supancl.probes import linear_probe
from supancl.reporter import say, show
from supancl.reports.comparison import write_comparison_page
from supancl.reports.run_record import read_record
from supancl.reports.tables import Table, plain_table, to_markdown
from supancl.runs.provenance import commit, versions
from supancl.stats import TOO_FEW_IMAGES, Tone, duration, paired_accuracy_interval, wilson_interval
from supancl.sweeps.differences import describe_ends
from supancl.sweeps.options import SweepRequest
from supancl.sweeps.runner import open_held_out, open_recipe_data, run_name
from supancl.training.start import resolve

FROZEN, FINE_TUNED = "frozen", "fine-tuned"
OTHERS = 3  # rows beside the frozen network, of which the verdict takes the best
Answers = tuple[Tensor, float]  # which held-out images were answered correctly, and the seconds that it took


def compare_with_start(request: SweepRequest, name: str, start: str) -> dict[str, Any]:
    """Train and measure the four rows with every seed; returns the content of results.json."""
    started, sweep, seeds = time.perf_counter(), request.sweep(), range(request.seeds)
    requested = request.recipe(name)
    sweep.check_folder(requested)
    from_start, data = open_held_out(resolve(requested, init=start), "compare")
    if not data.held_out.class_ids():
        raise BadInput(f"{requested.data.source}: no held-out image has a label to compare with the start")
    encoder = {f"encoder.{field}": value for field, value in to_json(from_start.encoder).items()}
    holdout = {"data.holdout": from_start.data.holdout}
    scratch = resolve(requested.with_set({**encoder, **holdout}, because=f"of the start, {start}"))
    method = requested.name.rpartition(".")[2]
    rows = {f"{method}-from-start": from_start, f"{method}-from-scratch": scratch}
    device = pick_device(from_start.train.device)
    options = EvaluationOptions(device)
    evaluated = open_evaluated_encoder(start, options)
    say(f"rows: 4, seeds: {request.seeds}, {2 * request.seeds} runs in {request.out}")
    answers: dict[str, list[Answers]] = {FROZEN: [timed(lambda: linear_answers(evaluated, data))]}
    say(f"{FROZEN}: {percent(answers[FROZEN]):.1f}%")
    answers[FINE_TUNED] = fine_tuned_answers(evaluated, data, seeds)
    say(f"{FINE_TUNED}: {percent(answers[FINE_TUNED]):.1f}%")
    failed: dict[str, Any] = {}
    results: list[dict[str, Any]] = []
    for row, recipe in rows.items():
        runs = sweep.with_seeds({row: recipe}, "compare")
        starts = dict.fromkeys(runs, start if recipe is from_start else None)
        trained = sweep.train(runs, open_recipe_data(recipe), starts)
        failed |= trained.failed
        answers[row] = []
        for run in trained.trained:
            opened = open_evaluated_encoder(sweep.out / run, options)
            is_correct, seconds = timed(lambda opened=opened: linear_answers(opened, data))  # type: ignore[misc]
            answers[row].append((is_correct, seconds + (read_record(sweep.out / run).seconds or 0.0)))
        for seed in seeds:
            run = run_name(row, seed)
            ends = {"collapsed": run in trained.trained and trained.trained[run].collapsed}
            reason = failed[run].reason if run in failed else None
            results.append({"row": row, "seed": seed, **ends, "failed": reason})
    chance = 100 * max(data.held_out.labelled().labels.bincount().tolist()) / len(answers[FROZEN][0][0])
    summary = [describe_row(row, answers[row], answers[FROZEN]) for row in answers if answers[row]]
    result = {
        "command": "compare",
        "start": start,
        "data": data.summary,
        "images": len(answers[FROZEN][0][0]),
        "chance": chance,
        "seeds": list(seeds),
        "epochs": from_start.train.epochs,
        "rows": results,
        "summary": summary,
        "verdict": verdict(summary, chance),
        "findings": describe_ends(results),
        "seconds": time.perf_counter() - started,
        "versions": versions(),
        "commit": commit(),
    }
    table = start_table(result)
    show(table)
    lines = [result["verdict"], *result["findings"]]
    for line in lines:
        say(line)
    write_json(request.out / "results.json", result)
    write_text(request.out / "results.md", to_markdown(table) + "".join(f"\n- {line}" for line in lines) + "\n")
    is_better = any((row["difference_interval"] or [0])[0] > 0 for row in summary)
    tone: Tone = "good" if is_better else "unclear"
    if all(row["interval"][0] <= chance for row in summary):
        tone = "bad"
    folders = {run_name(row, seed): request.out / run_name(row, seed) for row in rows for seed in seeds}
    write_comparison_page(table, lines, tone, folders, request.out)
    say(f"runs, results.json, results.md and comparison.html in {request.out}; {result['seconds']:.0f} s")
    if failed:
        from supancl.sweeps.runner import RunsFailed

        raise RunsFailed(failed, result, request.out)
    return result


# --- answers ----------------------------------------------------------------------------------------------------------


def timed(ask: Callable[[], Tensor]) -> Answers:
    since = time.perf_counter()
    return ask(), time.perf_counter() - since


def percent(answers: list[Answers]) -> float:
    return 100 * float(torch.stack([is_correct.double() for is_correct, _ in answers]).mean())


def linear_answers(evaluated: EvaluatedEncoder, data: Data) -> Tensor:
    """Of a linear classifier on frozen features; each half of the held-out images chooses the ridge for the other."""
    train, test = (evaluated.features(split) for split in (data.train, data.held_out))
    is_correct = linear_probe(train, test, "halves", device=evaluated.options.device).is_correct
    assert is_correct is not None
    return is_correct


def fine_tuned_answers(evaluated: EvaluatedEncoder, data: Data, seeds: range) -> list[Answers]:
    """Of the network trained with labels, at the learning rate that is best on a tenth of the training images."""
    train, test, classes = data.train.labelled(), data.held_out.labelled(), len(data.classes)
    settings, since = FineTune(), time.perf_counter()
    lr, _ = choose_lr(evaluated, train, classes, settings)
    choosing, answers = time.perf_counter() - since, []
    for seed in seeds:
        since = time.perf_counter()
        model = train_classifier(evaluated, train, classes, lr, replace(settings, seed=seed))
        is_correct = predict(model, test, evaluated) == test.labels
        answers.append((is_correct, choosing + time.perf_counter() - since))
    return answers


# --- what it says -----------------------------------------------------------------------------------------------------


def describe_row(row: str, ours: list[Answers], frozen: list[Answers]) -> dict[str, Any]:
    """Accuracy, difference from the frozen network and their intervals over images, and the time of one seed.

    The intervals of the differences hold for all rows together, because the best is picked.
    """
    shares = torch.stack([is_correct.double() for is_correct, _ in ours]).mean(0)
    accuracy = wilson_interval(100 * float(shares.mean()), len(shares))
    gap = paired_accuracy_interval(shares.tolist(), frozen[0][0].double().tolist(), comparisons=OTHERS)
    return {
        "row": row,
        "n": len(ours),
        "images": len(shares),
        "accuracy": accuracy.mean,
        "interval": [accuracy.low, accuracy.high],
        "difference": None if row == FROZEN else gap.mean,
        "difference_interval": None if row == FROZEN else [gap.low, gap.high],
        "seconds": sum(seconds for _, seconds in ours) / len(ours),
        "by_seed": [100 * float(is_correct.double().mean()) for is_correct, _ in ours],
    }


def verdict(summary: list[dict[str, Any]], chance: float) -> str:
    """One sentence: which row to use; the frozen network where no other is clearly better."""
    frozen, *others = summary
    count = frozen["images"]
    images = f"on {count} held-out images"
    if count < TOO_FEW_IMAGES:
        return f"too few images to say: {count} held out, {TOO_FEW_IMAGES} are needed; label more images"
    if all(row["interval"][0] <= chance for row in summary):
        return f"nothing was learned yet: no row is clearly above chance ({chance:.1f}%) {images}"
    best = max(others, key=lambda row: row["difference"], default=None)
    if best is None or best["difference_interval"][0] <= 0:
        return f"stay with the frozen network: nothing is clearly better than its {frozen['accuracy']:.1f}% {images}"
    low, high = best["difference_interval"]
    return (
        f"use {best['row']}: {best['difference']:+.1f} points [{low:.1f}, {high:.1f}] over the frozen network {images} "
        f"for {duration(best['seconds'])} of training"
    )


def start_table(result: dict[str, Any]) -> Table:
    """A row per way: accuracy and difference with their 95% intervals over images, and the time of one seed."""
    rows = []
    for entry in result["summary"]:
        low, high = entry["interval"]
        gap = entry["difference_interval"]
        difference = "0" if gap is None else f"{entry['difference']:+.1f} [{gap[0]:.1f}, {gap[1]:.1f}]"
        accuracy = f"{entry['accuracy']:.1f} [{low:.1f}, {high:.1f}]"
        rows.append([entry["row"], difference, accuracy, duration(entry["seconds"])])
    source = Path(str(result["data"]["source"])).name
    caption = (
        f"compare {result['start']} on {source}: epochs: {result['epochs']}, seeds: {len(result['seeds'])}, held-out "
        f"images: {result['images']}, chance {result['chance']:.1f}%"
    )
    return plain_table(caption, ["row", "over frozen, points", "accuracy %", "time"], rows)
