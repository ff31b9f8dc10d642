"""The runs of a table of the paper: its rows as recipes, the state of each run, and the time that is left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supancl.data.sources.benchmarks import find_benchmarks
from supancl.errors import BadInput
from supancl.paper.studies import STUDIES, Rows, Study, cell_rows, check_cells, check_supcon
from supancl.paper.tables.entries import MONITOR, PROJECTOR_FEATURES
from supancl.paper.tables.layouts import Layout
from supancl.paper.tables.runs import read_entries
from supancl.recipes import RECIPES, Recipe
from supancl.runs.folder import RunFolder, read_end
from supancl.sweeps.measures import has_projector
from supancl.sweeps.options import check_overrides
from supancl.sweeps.runner import Sweep, check_monitored, read_failure, select_rows

FAMILIES = ("imagenet100", "cifar100", "cifar10", "vit", "digits")
PAPERS_FAMILY = {"8": ("cifar100",), "G.1": ("vit",), "H.1": ("cifar10", "cifar100")}  # imagenet100 for the others
STUDY_OF = {"1": "alpha", "3": "alpha", "F.1": "alpha", "7": "pool", "F.2": "positives"}
TO_TRAIN, TO_EVALUATE, DONE, FAILED = "to train", "to evaluate", "done", "failed"


@dataclass(frozen=True)
class Request:
    """Which rows of a table to train, with how many seeds, and from which recipes and data."""

    build: Callable[[str], Recipe]  # name -> the recipe with all overrides
    overrides: Mapping[str, Any]  # the overrides
    rows: str | None = None  # comma-separated names; None: all
    family: str | None = None
    recipe: str | None = None
    benchmarks: str | None = None


@dataclass(frozen=True)
class PlannedRun:
    """A run of a table: its folder and its recipe."""

    name: str
    recipe: Recipe
    folder: Path

    @property
    def is_trained(self) -> bool:
        return read_end(RunFolder(self.folder)) is not None


@dataclass(frozen=True)
class Plan:
    """All runs of a table, the benchmarks to evaluate on, and the rows that have no recipe."""

    layout: Layout
    runs: tuple[PlannedRun, ...]
    benchmarks: Path | None
    without_recipe: tuple[str, ...] = ()

    @property
    def available_data_sets(self) -> tuple[str, ...]:
        """The data sets among the table's columns that ROOT holds."""
        if self.benchmarks is None:
            return ()
        in_root = {*find_benchmarks(self.benchmarks, "transfer"), *find_benchmarks(self.benchmarks, "few-shot")}
        return tuple(name for name in self.data_sets if name in in_root)

    @property
    def data_sets(self) -> tuple[str, ...]:
        """The data sets of the table's columns, or of H.1's rows."""
        if self.layout.by_method:
            return ("cifar10", "cifar100")
        names = [column.partition(":")[2] for column in self.layout.paper.columns]
        return tuple(name for name in names if name)

    def measures(self, run: PlannedRun) -> list[str]:
        """What can be measured of a run with the available data; detectors are trained by `supancl detect`."""
        if self.layout.by_method:
            return [f"linear:{name}" for name in dict.fromkeys((*self.available_data_sets, recipe_family(run.recipe)))]
        measures = []
        for column in self.layout.paper.columns:
            kind, _, name = column.partition(":")
            if name in self.available_data_sets or kind in ("knn", "linear", "within"):
                measures += [
                    f"{column}:{section.key}" if kind == "fewshot" else column
                    for section in (self.layout.sections if kind == "fewshot" else self.layout.sections[:1])
                ]
        return measures

    def state(self, run: PlannedRun) -> str:
        if not run.is_trained:
            return FAILED if read_failure(run.folder) is not None else TO_TRAIN
        (entry, *_) = read_entries([str(run.folder)])
        for measure in self.measures(run):
            procedures = {value.how for value in entry.find(measure, self.layout.probe)} - {MONITOR}
            if not procedures or (
                measure == "within" and has_projector(run.folder) and PROJECTOR_FEATURES not in procedures
            ):
                return TO_EVALUATE
        return DONE


def recipe_family(recipe: Recipe) -> str:
    return recipe.name.split(".")[0]


# --- rows as recipes --------------------------------------------------------------------------------------------------


def make_plan(layout: Layout, request: Request, sweep: Sweep) -> Plan:
    """Plan the table's rows, or those of --rows, with every seed, in the folder of the sweep."""
    check_overrides(request.overrides, {"train.seed": "seeds"})
    root = Path(request.benchmarks) if request.benchmarks else None
    if root is not None and not root.is_dir():
        raise BadInput(f"benchmarks {root}: no such folder; give the folder that holds the data sets")
    rows, without_recipe = table_rows(layout, request)
    rows = {name: hold_out_for_ridge(layout, row) for name, row in select_rows(rows, request.rows, "table").items()}
    for row in rows.values():
        if not row.data.source:
            raise BadInput(f"Table {layout.name} trains {row.name}; give its training data with data")
        check_monitored(row)
    recipes = sweep.with_seeds(rows, f"Table {layout.name}")
    runs = tuple(PlannedRun(name, recipe, sweep.out / name) for name, recipe in recipes.items())
    return Plan(layout, runs, root, tuple(without_recipe))


def hold_out_for_ridge(layout: Layout, row: Recipe) -> Recipe:
    """The row with 10% of its training images held out, if a convex probe needs them to choose its ridge.

    A `--set data.holdout` is respected. Table 4's SGD probe has no ridge; the other tables have no linear column.
    """
    has_ridge = layout.by_method or ("linear" in layout.paper.columns and layout.probe != "sgd")
    if not has_ridge or row.data.holdout is not None:
        return row
    return row.with_set({"data.holdout": 0.1}, because=f"Table {layout.name}: images that choose the probe's ridge")


def table_rows(layout: Layout, request: Request) -> tuple[Rows, list[str]]:
    """The table's rows as recipes, and the names of the recipes that do not exist."""
    if layout.name == "2":
        raise BadInput("Table 2 needs a toy study: supancl paper toy --out DIR, then supancl paper table 2 DIR")
    families = (request.family,) if request.family else PAPERS_FAMILY.get(layout.name, ("imagenet100",))
    if layout.by_method:
        return _cifar_rows(layout, families, request)
    if layout.name == "F.3":
        return _batch_rows(families[0], request)
    if layout.name in (*STUDY_OF, "8"):
        base = request.build(request.recipe or f"{families[0]}.supsiam")
        if layout.name != "8":
            return _study_rows(STUDIES[STUDY_OF[layout.name]], base, request), []
        check_cells(base)
        return cell_rows(base), []
    if request.recipe:
        raise BadInput(f"recipe {request.recipe}: Table {layout.name} has one row per method; give family or rows")
    methods = next(iter(layout.paper.rows.values()))
    return _rows_with_recipe({method: f"{families[0]}.{method}" for method in methods}, request)


def _rows_with_recipe(recipe_names: Mapping[str, str], request: Request) -> tuple[Rows, list[str]]:
    without_recipe = [name for name in recipe_names.values() if name not in RECIPES]
    rows = {row: request.build(name) for row, name in recipe_names.items() if name in RECIPES}
    if not rows:
        raise BadInput(f"there is no recipe {' and no '.join(without_recipe)}; choose another family")
    return rows, without_recipe


def _study_rows(study: Study, base: Recipe, request: Request) -> Rows:
    check_overrides(request.overrides, study.varies)
    study.check(base)
    return {name: row for name, row in study.rows(base).items() if name != "none"}  # Table 7 has no row without a pool


def _batch_rows(family: str, request: Request) -> tuple[Rows, list[str]]:
    """SupCon without and with a memory bank, and SupSiam, each at both batch sizes."""
    check_overrides(request.overrides, STUDIES["memory"].varies)
    bases, without_recipe = _rows_with_recipe(
        {method: f"{family}.{method}" for method in ("supcon", "supsiam")}, request
    )
    if "supcon" in bases:
        check_supcon(bases["supcon"])
    row_makers = {"supcon": STUDIES["memory"].rows, "supsiam": STUDIES["batch"].rows}
    rows = {f"{method}-{name}": row for method, base in bases.items() for name, row in row_makers[method](base).items()}
    return rows, without_recipe


def _cifar_rows(layout: Layout, families: Sequence[str], request: Request) -> tuple[Rows, list[str]]:
    """Table H.1: every method on CIFAR-10 and on CIFAR-100, from --benchmarks or, for one of them, from --data."""
    if "data.source" in request.overrides and len(families) > 1:
        raise BadInput(
            "Table H.1 needs two data sets; give benchmarks ROOT with both, or train on one of them with "
            "family cifar10 data SOURCE"
        )
    rows, without_recipe = _rows_with_recipe(
        {f"{family}-{method}": f"{family}.{method}" for family in families for method in layout.paper.columns}, request
    )
    if request.benchmarks:
        rows = {
            name: row
            if row.data.source
            else row.with_set({"data.source": f"{recipe_family(row)}@{request.benchmarks}"}, because="Table H.1")
            for name, row in rows.items()
        }
    return rows, without_recipe


def by_source(runs: Iterable[PlannedRun]) -> list[list[PlannedRun]]:
    """The runs grouped by source: each group trains on one copy of the data."""
    groups: dict[str, list[PlannedRun]] = {}
    for run in runs:
        groups.setdefault(run.recipe.data.source, []).append(run)
    return list(groups.values())
