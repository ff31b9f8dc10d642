"""Make a table of the paper from data: train and evaluate what is missing, then fill the table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from supancl.errors import BadInput, plural
from supancl.evaluation import EvaluatedEncoder, run_suite
from supancl.evaluation import Plan as SuitePlan
from supancl.evaluation.naming import registered_name
from supancl.evaluation.sources import data_for
from supancl.paper.tables.cells import FilledTable, fill
from supancl.paper.tables.plan import DONE, Plan, PlannedRun, by_source
from supancl.paper.tables.runs import read_entries
from supancl.recipes.recipe import resolve_warmup
from supancl.reporter import current_reporter
from supancl.runs.folder import RunFolder
from supancl.sweeps.measures import Measurement, RunEvaluator, has_projector
from supancl.sweeps.processes import Failure
from supancl.sweeps.runner import RunsFailed, Sweep, check_same_recipe, open_recipe_data


def check_plan(plan: Plan, sweep: Sweep) -> None:
    """Refuse a folder that holds something else, before anything is trained."""
    sweep.check_folder(plan.runs[0].recipe)
    for run in plan.runs:
        check_same_recipe(resolve_warmup(run.recipe), RunFolder(run.folder))


def complete(plan: Plan, states: Mapping[str, str], sweep: Sweep) -> tuple[FilledTable, dict[str, Failure]]:
    """Train and evaluate what is missing of a table; returns the table and the runs that failed."""
    failed = train(plan, sweep) if set(states.values()) - {DONE} else {}
    trained = [run for run in plan.runs if run.is_trained]
    if not trained:
        raise RunsFailed(failed, {"rows": [run.name for run in plan.runs]}, sweep.out)
    failures = evaluate(plan, [run for run in trained if states[run.name] != DONE], sweep)
    filled = fill(plan.layout, read_entries([str(run.folder) for run in trained]))
    filled.notes.extend([*notes(plan, failed), *failures])
    return filled, failed


def notes(plan: Plan, failed: dict[str, Failure]) -> list[str]:
    """What the table lacks, and why."""
    texts = [f"no recipe, so no line of ours: {', '.join(plan.without_recipe)}"] if plan.without_recipe else []
    absent = [name for name in plan.data_sets if name not in plan.available_data_sets]
    reason = f"not in {plan.benchmarks}" if plan.benchmarks else "no benchmarks ROOT"
    if absent:
        texts.append(f"{reason}, so blank: {', '.join(absent)} (supancl data check NAME shows how to lay one out)")
    if "ap" in plan.layout.paper.columns:
        texts.append("VOC AP: supancl detect train RUN --data VOC --out RUN/detect, then this command again")
    return [*texts, *(f"failed and left out: {name}: {failure.reason}" for name, failure in failed.items())]


def train(plan: Plan, sweep: Sweep) -> dict[str, Failure]:
    """Train what is not trained yet, source by source; returns the runs that failed."""
    failed: dict[str, Failure] = {}
    for runs in by_source(plan.runs):
        if all(run.is_trained for run in runs):
            continue
        data = open_recipe_data(runs[0].recipe)
        failed |= sweep.train({run.name: run.recipe for run in runs}, data).failed
    return failed


# --- evaluating -------------------------------------------------------------------------------------------------------


def evaluate(plan: Plan, runs: list[PlannedRun], sweep: Sweep) -> list[str]:
    """Measure what the table needs of these runs; returns what could not be measured, and why."""
    if not runs:
        return []
    current_reporter().note(f"evaluating {plural(len(runs), 'run')}")
    evaluator, failures = RunEvaluator(runs[0].recipe.train.device), []
    for run in runs:
        for measurement in measurements(plan, run, evaluator):
            try:
                evaluator.find_or_measure(run.folder, measurement)
            except BadInput as error:
                failures.append(f"{run.name}: {measurement.protocol} not measured: {error}")
    return [*failures, *transfer(plan, runs, evaluator, sweep.out)]


def measurements(plan: Plan, run: PlannedRun, evaluator: RunEvaluator) -> list[Measurement]:
    """The measurements that the columns need of a run, on its data or on the other CIFAR; on test images if any."""
    columns, probe = plan.layout.paper.columns, plan.layout.probe
    if not plan.layout.by_method and not {"knn", "linear", "within"} & set(columns):
        return []
    split = "test" if data_for(evaluator.open_run(run.folder), None).test is not None else "held-out"
    if plan.layout.by_method:
        training_set = registered_name(run.recipe.data.source) or plan.measures(run)[-1].partition(":")[2]
        others = [name for name in plan.available_data_sets if name != training_set]
        return [
            Measurement("linear", split),
            *(Measurement("linear", "test", source=f"{name}@{plan.benchmarks}") for name in others),
        ]
    wanted_measurements = [Measurement("knn", split)] if "knn" in columns else []
    wanted_measurements += [Measurement("linear", split, probe)] if "linear" in columns else []
    if "within" in columns:
        of_projector = Measurement("variance", "train", layer="projector")
        wanted_measurements.append(of_projector if has_projector(run.folder) else Measurement("variance", split))
    return wanted_measurements


def transfer(plan: Plan, runs: list[PlannedRun], evaluator: RunEvaluator, out: Path) -> list[str]:
    """Measure transfer and few-shot accuracy with the suite, on the available data sets."""
    kinds = {column.partition(":")[0] for column in plan.layout.paper.columns}
    protocols = [kind for kind in ("transfer", "fewshot") if kind in kinds]
    if not protocols or not plan.available_data_sets or plan.benchmarks is None:
        return []
    encoders: list[EvaluatedEncoder] = [evaluator.open_run(run.folder) for run in runs]
    suite = run_suite(
        encoders, SuitePlan(plan.benchmarks, protocols, plan.available_data_sets), out / "suite", current_reporter()
    )
    by_path = {evaluated.location: evaluated for evaluated in encoders}
    for result in suite.results:  # results of an earlier call may be missing in the run's folder
        evaluated = by_path.get(str(result["encoder"]))
        if evaluated is not None and evaluated.run is not None:
            content = {key: value for key, value in result.items() if key not in ("task", "group")}
            evaluated.save_result(str(result["base"]), content)
    return [
        f"{failure['encoder']}: {failure['task']} on {failure['data']} not measured: {failure['why']}"
        for failure in suite.failures
    ]
