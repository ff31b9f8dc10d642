"""The runs that a table of the paper takes: its rows as recipes, how far each run is, how long the rest will take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supancl.core.methods import COLLAPSE_CELLS
from supancl.data.sources.benchmarks import find_benchmarks
from supancl.errors import BadInput, plural
from supancl.paper.collapse import cell, cell_name, check_base
from supancl.paper.study_rows import STUDIES, Rows, Study, batch_rows, check_supcon, memory_rows
from supancl.paper.tables.entries import MONITOR, PROJECTED
from supancl.paper.tables.layouts import Layout
from supancl.paper.tables.runs import read_entries
from supancl.recipes import RECIPES, Recipe
from supancl.sweeps.measures import has_projector
from supancl.sweeps.runner import Sweep, check_monitored, check_overrides, choose_rows
from supancl.sweeps.runs import failure_of, is_finished
from supancl.weights.run_folder import RunFolder

FAMILIES = ("imagenet100", "cifar100", "cifar10", "vit", "digits")
PAPERS_FAMILY = {"8": ("cifar100",), "G.1": ("vit",), "H.1": ("cifar10", "cifar100")}  # imagenet100 for the others
STUDY_OF = {"1": "alpha", "3": "alpha", "F.1": "alpha", "7": "pool", "F.2": "positives"}
TO_TRAIN, TO_EVALUATE, DONE, FAILED = "to train", "to evaluate", "done", "failed"


@dataclass(frozen=True)
class Request:
    """Which rows of a table to train, with how many seeds, and from which recipes and data."""

    build: Callable[[str], Recipe]  # a recipe by its name, with every field that was set
    overrides: Mapping[str, Any]  # those fields
    rows: str | None = None  # names with commas; None: all
    family: str | None = None
    recipe: str | None = None
    benchmarks: str | None = None


@dataclass(frozen=True)
class PlannedRun:
    """A run of a table: its folder, and the recipe that it is, or will be, trained with."""

    name: str
    recipe: Recipe
    folder: Path

    @property
    def is_trained(self) -> bool:
        return RunFolder(self.folder).holds_run and is_finished(RunFolder(self.folder), self.recipe)

    @property
    def images_left(self) -> float | None:
        """How many images are still to be trained on; None before the run has begun, of which data is not known."""
        folder = RunFolder(self.folder)
        if not folder.holds_run:
            return None
        images = int(folder.read_data()[0].get("train") or 0)
        batch, epochs = self.recipe.train.batch_size, self.recipe.train.epochs
        steps = max((row["step"] for row in folder.metrics()), default=0)
        return max(0.0, float(batch * (images // batch * epochs - steps)))

    @property
    def images_per_second(self) -> float | None:
        """Its rate over all logged rows, the first left out, in which a device warms up."""
        rates = [row["images_per_second"] for row in RunFolder(self.folder).metrics() if row["kind"] == "train"]
        rates = rates[1:] or rates
        return len(rates) / sum(1 / max(rate, 1e-9) for rate in rates) if rates else None


@dataclass(frozen=True)
class Plan:
    """All runs of a table, what their evaluations need, and the rows for which there is no recipe."""

    layout: Layout
    runs: tuple[PlannedRun, ...]
    benchmarks: Path | None
    lacking: tuple[str, ...] = ()

    @property
    def present(self) -> tuple[str, ...]:
        """The data sets among the table's columns that ROOT holds."""
        if self.benchmarks is None:
            return ()
        there = {*find_benchmarks(self.benchmarks, "transfer"), *find_benchmarks(self.benchmarks, "few-shot")}
        return tuple(name for name in self.wanted if name in there)

    @property
    def wanted(self) -> tuple[str, ...]:
        """The data sets that the table's columns, or H.1's rows, are of."""
        if self.layout.by_method:
            return ("cifar10", "cifar100")
        named = [column.partition(":")[2] for column in self.layout.paper.columns]
        return tuple(name for name in named if name)

    def measures(self, run: PlannedRun) -> list[str]:
        """What can be measured of a run with the data at hand; detectors are trained by `supancl detect`."""
        if self.layout.by_method:
            return [f"linear:{name}" for name in dict.fromkeys((*self.present, family_of(run.recipe)))]
        found = []
        for column in self.layout.paper.columns:
            kind, _, name = column.partition(":")
            if name in self.present or kind in ("knn", "linear", "within"):
                found += [
                    f"{column}:{section.key}" if kind == "fewshot" else column
                    for section in (self.layout.sections if kind == "fewshot" else self.layout.sections[:1])
                ]
        return found

    def state(self, run: PlannedRun) -> str:
        if not run.is_trained:
            return FAILED if failure_of(run.folder) is not None else TO_TRAIN
        (entry, *_) = read_entries([str(run.folder)])
        for measure in self.measures(run):
            ways = {found.how for found in entry.find(measure, self.layout.probe)} - {MONITOR}
            if not ways or (measure == "within" and has_projector(run.folder) and PROJECTED not in ways):
                return TO_EVALUATE
        return DONE

    def estimate(self, jobs: int, trial: tuple[int, float] | None = None) -> str:
        """How much is left to train and how long that will take, from the rate of runs that have begun.

        Before there is one, `trial` may say how many training images there are and how many a second a trial took.
        """
        waiting = [run for run in self.runs if not run.is_trained]
        if not waiting:
            return "nothing is left to train"
        epochs = max(run.recipe.train.epochs for run in waiting)
        left = f"{plural(len(waiting), 'run')} of {plural(epochs, 'epoch')} to train"
        begun = [run for run in self.runs if run.images_per_second]
        if not begun and trial is None:
            return f"{left}; how long that takes is measured once the data are open"
        whole, rate = trial or (
            max(int(RunFolder(run.folder).read_data()[0].get("train") or 0) for run in begun),
            sum(run.images_per_second or 0.0 for run in begun) / len(begun),
        )
        images = sum(whole * run.recipe.train.epochs if run.images_left is None else run.images_left for run in waiting)
        at_once = min(jobs, len(waiting))
        return (
            f"{left}, about {in_words(images / rate / at_once)} at {rate:,.0f} images/s"
            f"{f' each, {at_once} at a time' if at_once > 1 else ''}; evaluations come on top"
        )


def in_words(seconds: float) -> str:
    """A duration in words.

    >>> in_words(42), in_words(600), in_words(8000)
    ('42 s', '10 min', '2 h 13 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"


def family_of(recipe: Recipe) -> str:
    return recipe.name.split(".")[0]


# --- rows as recipes --------------------------------------------------------------------------------------------------


def make_plan(layout: Layout, asked: Request, sweep: Sweep) -> Plan:
    """The table's rows, or those of --rows, with every seed, in the folder of the sweep."""
    check_overrides(asked.overrides, {"train.seed": "--seeds N"})
    root = Path(asked.benchmarks) if asked.benchmarks else None
    if root is not None and not root.is_dir():
        raise BadInput(f"--benchmarks {root}: no such folder; give the one that holds the data sets' folders")
    rows, lacking = table_rows(layout, asked)
    rows = {name: keep_out(layout, row) for name, row in choose_rows(rows, asked.rows, "table").items()}
    for row in rows.values():
        if not row.data.source:
            raise BadInput(f"Table {layout.name} trains {row.name}; name the data to train on with --data")
        check_monitored(row)
    named = sweep.with_seeds(rows, f"Table {layout.name}")
    runs = tuple(PlannedRun(name, recipe, sweep.out / name) for name, recipe in named.items())
    return Plan(layout, runs, root, tuple(lacking))


def keep_out(layout: Layout, row: Recipe) -> Recipe:
    """The row with 10% of its training images kept out of pretraining, where a convex probe's ridge is chosen on them.

    A `--set data.holdout` stays. Table 4's probe is SGD's, which has no ridge, and other tables have no linear column.
    """
    has_ridge = layout.by_method or ("linear" in layout.paper.columns and layout.probe != "sgd")
    if not has_ridge or row.data.holdout is not None:
        return row
    return row.with_set({"data.holdout": 0.1}, because=f"Table {layout.name}: images that choose the probe's ridge")


def table_rows(layout: Layout, asked: Request) -> tuple[Rows, list[str]]:
    """The table's rows as recipes, and the names of those that the package has no recipe for."""
    if layout.name == "2":
        raise BadInput("Table 2 is of toy data: supancl paper toy --out DIR, then supancl paper table 2 DIR")
    families = (asked.family,) if asked.family else PAPERS_FAMILY.get(layout.name, ("imagenet100",))
    if layout.by_method:
        return _cifar_rows(layout, families, asked)
    if layout.name == "F.3":
        return _batch_rows(families[0], asked)
    if layout.name in (*STUDY_OF, "8"):
        base = asked.build(asked.recipe or f"{families[0]}.supsiam")
        if layout.name != "8":
            return _study_rows(STUDIES[STUDY_OF[layout.name]], base, asked), []
        check_base(base)
        return {cell_name(key): cell(base, *key) for key in COLLAPSE_CELLS}, []
    if asked.recipe:
        raise BadInput(f"--recipe {asked.recipe}: Table {layout.name} has a row a method; give --family or --rows")
    methods = next(iter(layout.paper.rows.values()))
    return _known({method: f"{families[0]}.{method}" for method in methods}, asked)


def _known(named: Mapping[str, str], asked: Request) -> tuple[Rows, list[str]]:
    lacking = [name for name in named.values() if name not in RECIPES]
    rows = {row: asked.build(name) for row, name in named.items() if name in RECIPES}
    if not rows:
        raise BadInput(f"there is no recipe {' and no '.join(lacking)}; choose another --family")
    return rows, lacking


def _study_rows(study: Study, base: Recipe, asked: Request) -> Rows:
    check_overrides(asked.overrides, study.varies)
    study.check(base)
    return {name: row for name, row in study.rows(base).items() if name != "none"}  # Table 7 has no row without a pool


def _batch_rows(family: str, asked: Request) -> tuple[Rows, list[str]]:
    """SupCon without and with a memory bank, and SupSiam, each at both batch sizes."""
    check_overrides(asked.overrides, STUDIES["memory"].varies)
    bases, lacking = _known({method: f"{family}.{method}" for method in ("supcon", "supsiam")}, asked)
    if "supcon" in bases:
        check_supcon(bases["supcon"])
    of = {"supcon": memory_rows, "supsiam": batch_rows}
    rows = {f"{method}-{name}": row for method, base in bases.items() for name, row in of[method](base).items()}
    return rows, lacking


def _cifar_rows(layout: Layout, families: Sequence[str], asked: Request) -> tuple[Rows, list[str]]:
    """Table H.1: every method on CIFAR-10 and on CIFAR-100, from --benchmarks or, for one of them, from --data."""
    if "data.source" in asked.overrides and len(families) > 1:
        raise BadInput(
            "Table H.1 is trained on two data sets: give --benchmarks ROOT with both, or one of them with "
            "--family cifar10 --data SOURCE"
        )
    rows, lacking = _known(
        {f"{family}-{method}": f"{family}.{method}" for family in families for method in layout.paper.columns}, asked
    )
    if asked.benchmarks:
        rows = {
            name: row
            if row.data.source
            else row.with_set({"data.source": f"{family_of(row)}@{asked.benchmarks}"}, because="Table H.1")
            for name, row in rows.items()
        }
    return rows, lacking


def by_source(runs: Iterable[PlannedRun]) -> list[list[PlannedRun]]:
    """The runs of one source together: they are trained on one copy of the data."""
    groups: dict[str, list[PlannedRun]] = {}
    for run in runs:
        groups.setdefault(run.recipe.data.source, []).append(run)
    return list(groups.values())
