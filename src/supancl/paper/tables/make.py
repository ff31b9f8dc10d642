"""A table of the paper from nothing but data: its runs are planned, trained, evaluated and laid out, and resumed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import torch

from supancl.data.splits import Data
from supancl.errors import BadInput, plural
from supancl.evaluate import EvaluatedEncoder, run_suite
from supancl.evaluate import Plan as SuitePlan
from supancl.evaluate.naming import registered
from supancl.evaluate.sources import data_for
from supancl.paper.tables.cells import Filled, fill
from supancl.paper.tables.plan import DONE, Plan, PlannedRun, by_source
from supancl.paper.tables.runs import read_entries
from supancl.recipes import Recipe
from supancl.recipes.recipe import resolve_warmup
from supancl.sweeps.measures import Measurement, RunEvaluator, has_projector
from supancl.sweeps.runner import Sweep, data_of
from supancl.sweeps.runs import Failed, RunsFailed, check_same_recipe
from supancl.training.preflight import check_data, pick_device, with_speed
from supancl.training.trainer import Trainer
from supancl.weights.run_folder import RunFolder


def check_plan(plan: Plan, sweep: Sweep) -> None:
    """Refuse, before anything is trained, a folder that holds something else."""
    sweep.check_folder(plan.runs[0].recipe)
    for run in plan.runs:
        check_same_recipe(resolve_warmup(run.recipe), RunFolder(run.folder))


def complete(plan: Plan, states: Mapping[str, str], sweep: Sweep) -> tuple[Filled, dict[str, Failed]]:
    """Train and evaluate what is missing of a table; returns the table and the runs that failed."""
    failed = train(plan, sweep) if set(states.values()) - {DONE} else {}
    trained = [run for run in plan.runs if run.is_trained]
    if not trained:
        raise RunsFailed(failed, {"rows": [run.name for run in plan.runs]}, sweep.out)
    failures = evaluate(plan, [run for run in trained if states[run.name] != DONE], sweep)
    filled = fill(plan.layout, read_entries([str(run.folder) for run in trained]))
    filled.notes.extend([*notes(plan, failed), *failures])
    return filled, failed


def notes(plan: Plan, failed: dict[str, Failed]) -> list[str]:
    """What the table lacks, and why."""
    found = [f"no recipe, so no line of ours: {', '.join(plan.lacking)}"] if plan.lacking else []
    absent = [name for name in plan.wanted if name not in plan.present]
    where = f"not in {plan.benchmarks}" if plan.benchmarks else "no --benchmarks ROOT"
    if absent:
        found.append(f"{where}, so blank: {', '.join(absent)} (supancl data where NAME says how to lay one out)")
    if "ap" in plan.layout.paper.columns:
        found.append("VOC AP: supancl detect train RUN --data VOC --out RUN/detect, then this command again")
    return [*found, *(f"failed, and in no line: {name}: {failure.reason}" for name, failure in failed.items())]


def train(plan: Plan, sweep: Sweep) -> dict[str, Failed]:
    """Train what is not trained yet, source by source; returns the runs that failed."""
    failed: dict[str, Failed] = {}
    for runs in by_source(plan.runs):
        if all(run.is_trained for run in runs):
            continue
        first, data = runs[0], data_of(runs[0].recipe)
        if not any(run.images_per_second for run in plan.runs):
            trial = len(data.train), time_steps(first.recipe, data)
            sweep.reporter.note(
                f"{plan.estimate(sweep.jobs_for(first.recipe), trial)} (by trial steps of "
                f"{first.name} that were not compiled; on a GPU runs are faster)"
            )
        failed |= sweep.train({run.name: run.recipe for run in runs}, data).failed
    return failed


def time_steps(recipe: Recipe, data: Data, most: int = 8) -> float:
    """Images a second of a few steps as written; nothing of them is kept."""
    device = pick_device(recipe.train.device)
    check_data(recipe, data)
    slow = {"train.compile": False, "train.replay": False}
    trial = with_speed(recipe.with_set(slow, because="a trial"), device, len(data.train))
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        trainer = Trainer(trial, data, device)
        try:
            steps = min(most, trainer.steps)
            untimed = min(2, steps - 1)  # in which a device warms up
            since = _now(device)
            for step in range(steps):
                since = _now(device) if step == untimed else since
                trainer.advance()
            return (steps - untimed) * recipe.train.batch_size / max(_now(device) - since, 1e-9)
        finally:
            trainer.feed.close()


def _now(device: torch.device) -> float:
    """The time once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


# --- evaluating -------------------------------------------------------------------------------------------------------


def evaluate(plan: Plan, runs: list[PlannedRun], sweep: Sweep) -> list[str]:
    """Measure what the table's cells need of these runs; returns what could not be measured, and why."""
    if not runs:
        return []
    sweep.reporter.note(f"evaluating {plural(len(runs), 'run')}")
    evaluator, failures = RunEvaluator(runs[0].recipe.train.device, sweep.reporter), []
    for run in runs:
        for wanted in measurements(plan, run, evaluator):
            try:
                evaluator.result(run.folder, wanted)
            except BadInput as error:
                failures.append(f"{run.name}: {wanted.protocol} not measured: {error}")
    return [*failures, *transfer(plan, runs, evaluator, sweep.out)]


def measurements(plan: Plan, run: PlannedRun, evaluator: RunEvaluator) -> list[Measurement]:
    """What the table's columns want of a run on its own data, or on the other CIFAR: on test images where there are."""
    columns, probe = plan.layout.paper.columns, plan.layout.probe
    if not plan.layout.by_method and not {"knn", "linear", "within"} & set(columns):
        return []
    split = "test" if data_for(evaluator.subject(run.folder), None).test is not None else "held-out"
    if plan.layout.by_method:
        own = registered(run.recipe.data.source) or plan.measures(run)[-1].partition(":")[2]
        others = [name for name in plan.present if name != own]
        return [
            Measurement("linear", split),
            *(Measurement("linear", "test", source=f"{name}@{plan.benchmarks}") for name in others),
        ]
    found = [Measurement("knn", split)] if "knn" in columns else []
    found += [Measurement("linear", split, probe)] if "linear" in columns else []
    if "within" in columns:
        projected = Measurement("variance", "train", layer="projector")
        found.append(projected if has_projector(run.folder) else Measurement("variance", split))
    return found


def transfer(plan: Plan, runs: list[PlannedRun], evaluator: RunEvaluator, out: Path) -> list[str]:
    """Transfer and few-shot accuracy by the suite, on the data sets that are there."""
    kinds = {column.partition(":")[0] for column in plan.layout.paper.columns}
    protocols = [kind for kind in ("transfer", "fewshot") if kind in kinds]
    if not protocols or not plan.present or plan.benchmarks is None:
        return []
    subjects: list[EvaluatedEncoder] = [evaluator.subject(run.folder) for run in runs]
    suite = run_suite(subjects, SuitePlan(plan.benchmarks, protocols, plan.present), out / "suite", evaluator.reporter)
    by_place = {subject.where: subject for subject in subjects}
    for result in suite.results:  # one of an earlier call may be missing in the run's own folder
        subject = by_place.get(str(result["encoder"]))
        if subject is not None and subject.run is not None:
            content = {key: value for key, value in result.items() if key not in ("task", "group")}
            subject.save_result(str(result["base"]), content)
    return [
        f"{failure['encoder']}: {failure['task']} on {failure['data']} not measured: {failure['why']}"
        for failure in suite.failures
    ]
