"""Make a table of the paper from data: plan its rows as runs, train and evaluate what is missing, then fill it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from supancl.data.sources.benchmarks import find_benchmarks
from supancl.errors import BadInput
from supancl.evaluation import Knn, Linear, Tested, Variance
from supancl.evaluation.data import data_for
from supancl.evaluation.suite import run_suite, suite_tasks
from supancl.paper.layouts import Layout, pretrained_on
from supancl.paper.pivot import FilledTable, fill
from supancl.paper.results import read_entries
from supancl.paper.studies import STUDIES, check_supcon, study_rows, varied_fields
from supancl.probes.knn import DEFAULT_K
from supancl.recipes import RECIPES, Recipe
from supancl.reporter import current_reporter
from supancl.runs.folder import RunFolder
from supancl.runs.log import StopCause, read_end
from supancl.sweeps import Rows, Sweep, check_overrides, select_rows
from supancl.sweeps.runner import (
    Measurement,
    RunEvaluator,
    RunsFailed,
    check_monitored,
    open_recipe_data,
    read_failure,
    train_runs,
)

PAPERS_FAMILY = {"8": ("cifar100",), "G.1": ("vit",), "H.1": ("cifar10", "cifar100")}  # imagenet100 for the others
STUDY_OF = {"1": "alpha", "3": "alpha", "F.1": "alpha", "7": "pool", "F.2": "positives", "8": "collapse"}
TO_TRAIN, DONE, FAILED = "to train", "done", "failed"


@dataclass(frozen=True)
class Plan:
    """All runs of a table by name, the benchmarks to evaluate on, and the recipes that do not exist."""

    layout: Layout
    runs: Mapping[str, Recipe]
    out: Path
    benchmarks: Path | None
    without_recipe: list[str]

    @property
    def data_sets(self) -> tuple[str, ...]:
        """The data sets of the table's columns."""
        return tuple(filter(None, (column.partition(":")[2] for column in self.layout.paper.columns)))

    @property
    def available(self) -> tuple[str, ...]:
        """Those of them that the folder of benchmarks holds."""
        root = self.benchmarks
        here = [] if root is None else [*find_benchmarks(root, "transfer"), *find_benchmarks(root, "few-shot")]
        return tuple(name for name in self.data_sets if name in here)

    def state(self, name: str) -> str:
        """Whether a run is trained; what is measured already is not measured again."""
        if read_end(RunFolder(self.out / name)) is not None:
            return DONE
        return FAILED if read_failure(self.out / name) is not None else TO_TRAIN

    def notes(self, failed: Mapping[str, StopCause]) -> list[str]:
        """What the table lacks, and why."""
        texts = [f"no recipe, so no line of ours: {', '.join(self.without_recipe)}"] * bool(self.without_recipe)
        absent = ", ".join(name for name in self.data_sets if name not in self.available)
        reason = f"not in {self.benchmarks}" if self.benchmarks else "no benchmarks ROOT"
        texts += [f"{reason}, so blank: {absent} (supancl data where NAME shows how to lay one out)"] * bool(absent)
        if "ap" in self.layout.paper.columns:
            texts.append("VOC AP: supancl detect train RUN --data VOC --out RUN/detect, then this command again")
        return [*texts, *(f"failed and left out: {name}: {failure.reason}" for name, failure in failed.items())]


# --- rows as recipes --------------------------------------------------------------------------------------------------


def make_plan(
    layout: Layout,
    sweep: Sweep,
    *,
    rows: str | None,
    benchmarks: str | None,
    **recipes: str | None,
) -> Plan:
    """Plan the table's rows, or those of --rows, with every seed, in the folder of the sweep."""
    check_overrides(sweep.given, {"train.seed": "seeds"})
    root = Path(benchmarks) if benchmarks else None
    if root is not None and not root.is_dir():
        raise BadInput(f"benchmarks {root}: no such folder; give the folder that holds the data sets")
    found, without_recipe = table_rows(layout, sweep, root, **recipes)
    chosen = {name: hold_out_for_ridge(layout, row) for name, row in select_rows(found, rows, "table").items()}
    for row in chosen.values():
        if not row.data.source:
            raise BadInput(f"Table {layout.name} trains {row.name}; give its training data with data")
        check_monitored(row)
    return Plan(layout, sweep.with_seeds(chosen, f"Table {layout.name}"), sweep.out, root, without_recipe)


def hold_out_for_ridge(layout: Layout, row: Recipe) -> Recipe:
    """The row with 10% of its training images held out, if a convex probe needs them to choose its ridge.

    A `--set data.holdout` is respected. Table 4's SGD probe has no ridge; the other tables have no linear column.
    """
    has_linear = any(column.startswith("linear") for column in layout.paper.columns)
    if not has_linear or layout.probe == "sgd" or row.data.holdout is not None:
        return row
    return row.with_set({"data.holdout": 0.1}, because=f"Table {layout.name}: images that choose the probe's ridge")


def table_rows(
    layout: Layout, sweep: Sweep, benchmarks: Path | None, family: str | None, recipe: str | None
) -> tuple[Rows, list[str]]:
    """The table's rows as recipes, and the names of the recipes that do not exist."""
    if layout.name == "2":
        raise BadInput("Table 2 needs a toy study: supancl paper toy --out DIR, then supancl paper table 2 DIR")
    families = (family,) if family else PAPERS_FAMILY.get(layout.name, ("imagenet100",))
    papers_rows = next(iter(layout.paper.rows.values()))
    if layout.name in STUDY_OF:
        base, study = sweep.recipe(recipe or f"{families[0]}.supsiam"), STUDY_OF[layout.name]
        check_overrides(sweep.given, varied_fields(study))
        STUDIES[study].check(base)
        return {name: row for name, row in study_rows(study, base).items() if name in papers_rows}, []
    if recipe:
        raise BadInput(f"recipe {recipe}: Table {layout.name} has one row per method; give family or rows")
    methods = ("supcon", "supsiam") if layout.name == "F.3" else papers_rows
    names = {method: f"{families[0]}.{method}" for method in methods}
    if layout.name == "H.1":
        if "data.source" in sweep.given and len(families) > 1:
            raise BadInput("Table H.1 needs two data sets; give benchmarks ROOT, or family cifar10 data SOURCE")
        names = {f"{family}-{method}": f"{family}.{method}" for family in families for method in methods}
    without_recipe = [name for name in names.values() if name not in RECIPES]
    rows = {row: sweep.recipe(name) for row, name in names.items() if name in RECIPES}
    if not rows:
        raise BadInput(f"there is no recipe {' and no '.join(without_recipe)}; choose another family")
    if layout.name == "F.3":  # SupCon without and with a memory bank, and SupSiam, each at both batch sizes
        check_overrides(sweep.given, varied_fields("memory"))
        check_supcon(rows["supcon"])
        varied = {"supcon": "memory", "supsiam": "batch"}
        rows = {f"{m}-{name}": row for m, base in rows.items() for name, row in study_rows(varied[m], base).items()}
    if layout.name == "H.1" and benchmarks:
        sources = {name: {"data.source": f"{row.name.split('.')[0]}@{benchmarks}"} for name, row in rows.items()}
        rows = {n: row if row.data.source else row.with_set(sources[n], because="Table H.1") for n, row in rows.items()}
    return rows, without_recipe


# --- training and evaluating ------------------------------------------------------------------------------------------


def complete(plan: Plan, sweep: Sweep) -> tuple[FilledTable, dict[str, StopCause]]:
    """Train and evaluate what is missing of a table; returns the table and the runs that failed."""
    failed: dict[str, StopCause] = {}
    for source in dict.fromkeys(recipe.data.source for recipe in plan.runs.values()):
        runs = {name: recipe for name, recipe in plan.runs.items() if recipe.data.source == source}
        if any(plan.state(name) != DONE for name in runs):
            outcomes = train_runs(sweep, runs, open_recipe_data(next(iter(runs.values()))))
            failed |= {name: failure for name, failure in outcomes.items() if failure}
    trained = [name for name in plan.runs if plan.state(name) == DONE]
    if not trained:
        raise RunsFailed(failed, {"rows": list(plan.runs)}, sweep.out)
    failures = evaluate(plan, trained)
    filled = fill(plan.layout, read_entries([str(plan.out / name) for name in trained]))
    filled.notes.extend([*plan.notes(failed), *failures])
    return filled, failed


def evaluate(plan: Plan, names: list[str]) -> list[str]:
    """Measure what the table needs of these runs; returns what could not be measured, and why."""
    evaluator, failures = RunEvaluator(plan.runs[names[0]].train.device), []
    for name in names:
        for measurement in measurements(plan, name, evaluator):
            try:
                evaluator.rows(plan.out / name, measurement)
            except BadInput as error:
                failures.append(f"{name}: {measurement.settings.name} not measured: {error}")
    kinds = {column.partition(":")[0] for column in plan.layout.paper.columns}
    protocols = [kind for kind in ("transfer", "fewshot") if kind in kinds]
    if not protocols or not plan.available or plan.benchmarks is None:
        return failures
    encoders = {str(plan.out / name): evaluator.open_run(plan.out / name) for name in names}
    tasks = suite_tasks(plan.benchmarks, protocols, plan.available)
    suite = run_suite(list(encoders.values()), tasks, plan.benchmarks, plan.out / "suite", current_reporter())
    for result in suite.results:  # results of an earlier call may be missing in the run's folder
        encoder, base = str(result["encoder"]), str(result["base"])
        if not (RunFolder(Path(encoder)).evaluations / f"{base}.json").exists():
            content = {key: value for key, value in result.items() if key not in ("task", "group")}
            encoders[encoder].save_result(base, content)
    return failures + [
        f"{failed['encoder']}: {failed['task']} on {failed['data']}: {failed['why']}" for failed in suite.failures
    ]


def measurements(plan: Plan, name: str, evaluator: RunEvaluator) -> list[Measurement]:
    """The measurements that the columns need of a run, on its data or on the other CIFAR; on test images if any."""
    columns, folder, own = plan.layout.paper.columns, plan.out / name, pretrained_on(plan.runs[name])
    kinds = {column.partition(":")[0] for column in columns} & {"knn", "linear", "within"}
    if not kinds:
        return []
    split: Tested = "test" if data_for(evaluator.open_run(folder), None).test is not None else "held-out"
    of_projector = Measurement(Variance(split="train"), "projector")
    wanted = {
        "knn": Measurement(Knn(k=(DEFAULT_K,), split=split)),
        "linear": Measurement(Linear.given({"probe": plan.layout.probe, "split": split})),
        "within": of_projector if RunFolder(folder).projector.is_file() else Measurement(Variance(split=split)),
    }
    others = [data for data in plan.available if f"linear:{data}" in columns and data != own]
    crossed = [Measurement(Linear(split="test"), source=f"{data}@{plan.benchmarks}") for data in others]
    return [*(measurement for kind, measurement in wanted.items() if kind in kinds), *crossed]
