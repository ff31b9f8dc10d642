"""Evaluate a trained run and write one small file with all values and commands."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.evidence.kept import find_kept, is_gone, kept_evaluations, machine_of
from experiments.evidence.plan import Plan
from experiments.evidence.results import CHOSEN_BY, write_result
from supancl.cli import main
from supancl.core.precision import pick_device
from supancl.errors import BadInput, Collapsed, Interrupted
from supancl.evaluation import EvaluationOptions, open_evaluated_encoder
from supancl.evaluation.feature_cache import VERSION
from supancl.evaluation.sources import data_for
from supancl.files import reason, write_text
from supancl.probes import Features
from supancl.reports.pictures import tsne_map
from supancl.runs.folder import RunFolder
from supancl.runs.provenance import commit, versions

TRAINING_FILE = "evidence.json"  # in the run folder: facts of the training that the result needs
UNMEASURED: dict[str, Any] = {"images_per_second": None, "last": {}, "curve": []}
ATTEMPTS = 2  # per evaluation: GPU memory may be short for a moment if it is shared
# results have no baselines, and fitting random weights again for each run takes as long as the evaluation itself
WITHOUT_BASELINES = dict.fromkeys(("knn", "linear", "transfer"), ("--no-baselines",))
Called = Callable[[Sequence[str]], tuple[int, list[str], float]]


def judge(plan: Plan, name: str, run: Path, results: Path, called: Called) -> dict[str, Any]:
    """Evaluate the run and write results/NAME.json, which also lists what could not be measured.

    If the encoder is gone with the machine that trained it, the evaluations that came back from there are read.
    """
    training, started = json.loads((run / TRAINING_FILE).read_text()), time.perf_counter()
    values: dict[str, float | None] = {}
    commands, failures = [training.pop("command")], {}
    kept = kept_evaluations(run) if training["exit"] == 0 and is_gone(run) else None
    for task in plan.tasks_of(training["stage"], training["method"], training["seed"]) if training["exit"] == 0 else ():
        asked = task.of(str(run))
        words = [*asked, *WITHOUT_BASELINES.get(task.words[0], ())]
        commands.append(shlex.join(["supancl", *words]))
        answer, problem = measure(run, words, called) if kept is None else find_kept(plan, task, kept)
        if answer is not None:
            values |= task.read_values(answer)
        if problem:
            failures[shlex.join(asked[1:])] = problem
    if training["stage"] == "detect" and training["exit"] == 0:
        values |= detected(run)
    if failures and not values:  # not the run's fault: it is evaluated again next time
        raise BadInput(f"{name}: nothing could be measured: {next(iter(failures.values()))}")
    if failures and training["stage"] == "pilot" and CHOSEN_BY not in values:  # or it would silently drop out
        raise BadInput(
            f"{name}: {CHOSEN_BY}, by which pilots are chosen, could not be measured: {next(iter(failures.values()))}"
        )
    if (
        training["exit"] == 0 and plan.picture and pictured(training)
    ):  # before the result is written, which ends the run
        try:
            write_map(plan, name, run, results)
        except Exception as error:
            failures["map"] = reason(error)
    code, why = training.pop("exit"), training.pop("why")
    seconds = time.perf_counter() - started if kept is None else sum(content["seconds"] for content in kept)
    collapsed = code == Collapsed.exit_code or (code == 0 and was_collapsed(run, training["warnings"]))
    result = {
        **training,
        "plan": plan.name,
        "status": "collapsed" if collapsed else "failed" if code else "finished",
        "why": why or None,
        "commands": commands,
        "values": {key: round(value, 4) for key, value in values.items() if value is not None},
        "not_measured": failures,
        "judge_seconds": round(seconds, 1),
        **(machine() if kept is None else machine_of(run, kept)),
        "commit": training["commit"] or commit(),
        "data": data_of(run),
        "features_version": VERSION,
    }
    write_result(results, result)
    if not failures:  # otherwise `evidence judge` can be repeated on this machine
        shutil.rmtree(run / "checkpoints", ignore_errors=True)
    return result


def measure(run: Path, words: Sequence[str], called: Called) -> tuple[dict[str, Any] | None, str]:
    """The answer of an evaluation, or None and why there is none."""
    path, problem = run / "wanted.json", ""
    for _ in range(ATTEMPTS):
        code, lines, _ = called([*words, "--quiet", "--json", str(path)])
        if code == 0:
            return json.loads(path.read_text()), ""
        problem = lines[-1] if lines else f"exit {code}"
    return None, problem


def pictured(training: dict[str, Any]) -> bool:
    """Whether the run gets a map: seed 0 of the alpha sweep, of SupSiam, and of SimSiam (which may be alpha = 1)."""
    return training["seed"] == 0 and (
        training["stage"] == "alpha" or (training["stage"] == "final" and training["method"] in ("supsiam", "simsiam"))
    )


def write_map(plan: Plan, name: str, run: Path, results: Path) -> None:
    """Write the t-SNE map of the related classes' test images, two numbers per image."""
    evaluated = open_evaluated_encoder(str(run), EvaluationOptions(pick_device("auto")))
    data = data_for(evaluated, None)
    split = data.test if data.test is not None else data.held_out
    labels = torch.tensor([data.classes.index(label) for label in plan.picture])
    positions = torch.isin(split.labels, labels).nonzero()[:, 0]
    if len(positions) < 4:
        return
    features: Features = evaluated.features(split.take(positions))
    points = tsne_map(features)
    content = {
        "classes": list(plan.picture),
        "labels": [plan.picture.index(data.classes[label]) for label in features.labels.tolist()],
        "points": [[round(float(x), 2), round(float(y), 2)] for x, y in points],
    }
    folder = results / "maps"
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / f"{name}.json", json.dumps(content) + "\n")


def detected(run: Path) -> dict[str, float | None]:
    """The scores of `detect train`."""
    content = json.loads((run / "evaluate" / "detect.json").read_text(encoding="utf-8"))
    return {key: content[key] for key in ("AP", "AP50", "AP75")}


def was_collapsed(run: Path, warnings: Sequence[str]) -> bool:
    """The monitor's verdict in the newest checkpoint, or its warning; False for a detector, which has no monitor."""
    from supancl.runs.checkpoint import load_newest

    state, _ = load_newest(run / "checkpoints")
    if state is None:
        return any("the representation has collapsed" in line for line in warnings)
    return bool(state.get("monitor", {}).get("collapsed"))


def data_of(run: Path) -> dict[str, Any]:
    """What the run was trained on, without its path on the machine."""
    path = run / "recipe.json"
    if not path.exists():
        return {}
    content = json.loads(path.read_text(encoding="utf-8")).get("data") or {}
    return {
        key: content[key] for key in ("train", "held_out", "held_out_from", "classes", "fingerprint") if key in content
    }


def machine() -> dict[str, Any]:
    """What this result was measured on."""
    has_gpu = torch.cuda.is_available()
    hardware = torch.cuda.get_device_name() if has_gpu else f"CPU, {torch.get_num_threads()} threads"
    return {"hardware": hardware, "versions": versions()}


def measured_by_log(folder: RunFolder) -> dict[str, Any]:
    """Speed and the losses of the last epoch from the run's log."""
    rows = [row for row in folder.metrics() if row["kind"] == "train"]
    if not rows:
        return dict(UNMEASURED)
    last = [row for row in rows if row["epoch"] == rows[-1]["epoch"]]
    means = {
        key: statistics.fmean(values)
        for key in ("loss", "ssl", "sup", "std")
        if (values := [row[key] for row in last if row[key] is not None])
    }
    checks = [row for row in folder.metrics() if row["kind"] == "monitor"]
    if checks:
        means |= {f"target_{key}": checks[-1][key] for key in ("effective_rank",) if checks[-1].get(key) is not None}
    losses: dict[int, list[float]] = {}
    for row in rows:
        if row["loss"] is not None:
            losses.setdefault(row["epoch"], []).append(row["loss"])
    every = max(1, len(losses) // 20)
    curve = [
        [epoch, round(statistics.fmean(values), 4)]
        for epoch, values in losses.items()
        if epoch % every == 0 or epoch == rows[-1]["epoch"]
    ]
    speeds = [row["images_per_second"] for row in rows]
    return {"images_per_second": round(statistics.median(speeds), 1), "last": means, "curve": curve}


def called(words: Sequence[str]) -> tuple[int, list[str], float]:
    """Run a command in this process; returns exit status, lines of standard error, and seconds."""
    stderr, started = io.StringIO(), time.perf_counter()
    with contextlib.redirect_stderr(stderr):
        code = main(list(words))
    lines = [line.removeprefix("supancl: ") for line in stderr.getvalue().splitlines() if line.strip()]
    for line in lines:
        print(line, file=sys.stderr, flush=True)
    if code in (130, 143):
        raise Interrupted(lines[-1] if lines else "stopped", code - 128)
    return code, lines, time.perf_counter() - started


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in this folder, so that commands have relative paths and results do not depend on the machine."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
