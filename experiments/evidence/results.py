"""What is known: one file a run, the settings that pilots chose, rows by seed, and differences with their intervals."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from experiments.evidence.plan import (
    SELF_SUPERVISED,
    SHARERS,
    START_SECONDS,
    Plan,
    Setting,
    Speeds,
    Step,
    identity,
    pace_of,
    recipe_of,
    settings_of,
)
from experiments.evidence.plans import ALPHAS, CELLS, cell_name
from supancl.errors import BadInput
from supancl.files import jsonable, write_text
from supancl.recipes import recipe
from supancl.recipes.cifar import BEYOND
from supancl.stats import (
    PooledDeviation,
    accuracy_half_width,
    difference_interval,
    pooled_deviation,
    seed_stats,
    t_half_width,
)

Result = dict[str, Any]
Results = Mapping[str, Result]
SOURCE = "our choice: best of the pilots on held-out images (RESULTS.md)"  # of a default that a pilot settled
CHOSEN_BY = "linear"  # of a pilot's values, on the images it held out
DETECTED_IMAGES, DETECTED_PER_SECOND = 800, 250.0  # a pass of a detector, and a guess of its speed (docs/detection.md)


# name -> title and decimals
MEASURES: dict[str, tuple[str, int]] = {
    "knn": ("k-NN", 2),
    "linear": ("linear", 2),
    "crossed": ("CIFAR-10 linear", 2),
    "pets": ("Pets", 2),
    "omniglot_1": ("Omniglot 1-shot", 2),
    "omniglot_5": ("Omniglot 5-shot", 2),
    "traffic-signs_1": ("GTSRB 1-shot", 2),
    "traffic-signs_5": ("GTSRB 5-shot", 2),
    "ratio": ("S_W/S_T", 3),
    "train_ratio": ("S_W/S_T, train", 3),
    "effective_rank": ("effective rank", 1),
}
ACCURACIES = ("knn", "linear", "crossed", "pets", "omniglot_1", "omniglot_5", "traffic-signs_1", "traffic-signs_5")
KINDS = {
    "in-domain": ("knn", "linear"),
    "crossed": ("crossed", "pets"),
    "few-shot": ("omniglot_1", "omniglot_5", "traffic-signs_1", "traffic-signs_5"),
}
NAMES = {
    "simclr": "SimCLR",
    "supcon": "SupCon",
    "moco2": "MoCo-v2",
    "supmoco": "SupMoCo",
    "simsiam": "SimSiam",
    "supsiam": "SupSiam",
    "byol": "BYOL",
    "supbyol": "SupBYOL",
    "crossentropy": "cross-entropy",
}
# as rows and differences are called: a number of these two is of the alpha that App. H has for the method
TITLES = NAMES | {
    method: f"{NAMES[method]} (alpha {recipe(f'cifar100.{method}').fields()['loss.alpha'][0]:g})"
    for method in ("supsiam", "supbyol")
}


# --- files ------------------------------------------------------------------------------------------------------------


def read_results(folder: Path, plan: Plan | None = None) -> dict[str, Result]:
    """By name, in the order of the names; results of another plan are refused, a rehearsal's above all."""
    found: dict[str, Result] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            found[str(content["name"])] = content
        except (ValueError, KeyError, TypeError):
            raise BadInput(f"{path}: not the result of a run; remove it, and the run is made again") from None
        if plan is not None and content["plan"] != plan.name:
            raise BadInput(f"{path} is of plan {content['plan']!r}, this is {plan.name!r}; give another --results")
        step = None if plan is None else plan.step(content["name"])
        if plan and step and step.stage == "pilot" and content["settings"] != settings_of(step, plan, None):
            raise BadInput(
                f"{path} was made with other settings than the plan has now; remove it, and the run is made again"
            )
    return found


def write_result(folder: Path, result: Result) -> None:
    """Never half: a driver may be killed, and results are carried away, at any moment."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / f"{result['name']}.json", json.dumps(jsonable(result), indent=1) + "\n")


# --- what pilots chose ------------------------------------------------------------------------------------------------


def choose(plan: Plan, results: Results, method: str) -> Setting | None:
    """The setting of the best pilot; None until all of them are known, or where none of them trained.

    Best is the highest linear accuracy on the images held out of training; of equal ones the first, which is the
    recipe's own.
    """
    best = best_pilot(plan, results, method)
    return None if best is None else plan.pilots[method][best]


def best_pilot(plan: Plan, results: Results, method: str) -> int | None:
    names = [f"pilot-{method}-{number}" for number in range(len(plan.pilots[method]))]
    if not all(name in results for name in names):
        return None
    scores = [results[name]["values"].get(CHOSEN_BY) for name in names]
    known = [number for number, score in enumerate(scores) if score is not None]
    return max(known, key=lambda number: (scores[number], -number)) if known else None


def default_of(plan: Plan, results: Results, method: str) -> dict[str, float] | None:
    """Fields of the recipe that a pilot settles; None until its pilots are known.

    App. H states a learning rate for its six methods, and that one stays: their weight decay is that of the best pilot
    at that rate. The methods that App. H does not run take both values of the best pilot.
    """
    best = best_pilot(plan, results, method)
    if best is None:
        return None
    grid = plan.pilots[method]
    if method in BEYOND:
        return {"optimizer.lr": grid[best][0], "optimizer.weight_decay": grid[best][1]}
    stated = grid[0][0]  # the first pilot is the recipe's own
    scores = {
        number: results[f"pilot-{method}-{number}"]["values"].get(CHOSEN_BY)
        for number, (lr, _) in enumerate(grid)
        if lr == stated
    }
    known = {number: score for number, score in scores.items() if score is not None}
    if not known:
        return None
    return {"optimizer.weight_decay": grid[max(known, key=lambda number: (known[number], -number))][1]}


def default_lines(plan: Plan, results: Results) -> list[str]:
    """One line a method: the fields, as recipes/cifar.py should have them."""
    lines = []
    for method in plan.pilots:
        found = default_of(plan, results, method)
        told = (
            "its pilots are not all known"
            if found is None
            else ", ".join(f"{key} = {value:g}" for key, value in found.items())
        )
        lines.append(f"{plan.family}.{method}: {told}")
    return [*lines, f"source of each: {SOURCE!r}"]


# --- which result belongs to a step -----------------------------------------------------------------------------------


def identity_of(step: Step, plan: Plan, results: Results) -> str | None:
    """None while the pilots it follows are not known."""
    if step.needs is not None:
        return f"{step.stage} {step.method}"
    chosen = None if step.follows is None else choose(plan, results, step.follows)
    if step.follows is not None and chosen is None:
        return None
    settings = tuple(settings_of(step, plan, chosen).items())
    return _identity(plan.family, plan.suffix, step.method, step.epochs, settings)


@cache
def _identity(family: str, suffix: str, method: str, epochs: int, settings: tuple[tuple[str, Any], ...]) -> str:
    """Kept, since every table asks for the same ones."""
    return identity(recipe_of(family, f"{method}{suffix}", epochs, dict(settings)), method)


def result_of(step: Step, plan: Plan, results: Results) -> Result | None:
    """Its own result, or that of a run which differs in its name alone; not one that pilots of now would not give."""
    own, wanted = results.get(step.name), identity_of(step, plan, results)
    if own is not None and (wanted is None or step.stage == "pilot" or own["identity"] == wanted):
        return own
    return next((result for result in alike(step, plan, results) if result["seed"] == step.seed), None)


def alike(step: Step, plan: Plan, results: Results) -> list[Result]:
    """The results of this run with any seed, by seed; pilots are like nothing else."""
    wanted = None if step.stage == "pilot" else identity_of(step, plan, results)
    found = [
        result
        for result in results.values()
        if wanted is not None and result["identity"] == wanted and result["stage"] != "pilot"
    ]
    by_seed = {int(result["seed"]): result for result in reversed(found)}  # the same run twice is no further seed
    return [by_seed[seed] for seed in sorted(by_seed)]


def waiting(plan: Plan, results: Results) -> list[Step]:
    """Steps without a result, in the plan's order; of two that are the same run, the first."""
    found: list[Step] = []
    taken: set[tuple[str, int]] = set()
    for step in plan.steps:
        if result_of(step, plan, results) is not None:
            continue
        one = identity_of(step, plan, results)
        if one is not None and step.stage != "pilot":
            if (one, step.seed) in taken:
                continue
            taken.add((one, step.seed))
        found.append(step)
    return found


# --- how long a run will take -----------------------------------------------------------------------------------------


def expected_seconds(
    step: Step, plan: Plan, results: Results, compiled: bool = True, judged: bool = True, shared: bool = False
) -> float:
    """Training, and judging where it is to be waited for."""
    judging = judging_seconds(step, plan, results) * judged
    if step.needs is not None:
        passes = step.epochs * DETECTED_IMAGES / DETECTED_PER_SECOND
        return START_SECONDS + passes * (SHARERS if shared else 1) + judging
    images = step.epochs * plan.images * (1 - float(step.settings.get("data.holdout") or 0))
    speed = expected_speed(pace_of(step.method, step.settings), results, shared, plan.speeds)
    training = images / speed + step.epochs * plan.speeds.epoch_seconds
    return START_SECONDS + training + plan.speeds.compile_seconds * (not compiled) + judging


def expected_speed(pace: str, results: Results, shared: bool, guesses: Speeds) -> float:
    """Images a second: the least that runs of its pace had under like conditions, else a first guess.

    The least, since a run that does not end in time is lost, and one that ends early loses nothing. A guess is
    corrected by the slowest run of any pace, beside what was guessed for that one. A single run corrects it downwards
    only: if it was alone for most of its time, it says nothing of two side by side.
    """
    share = SHARERS if shared else 1
    measured = [
        (pace_of(result["method"], result["settings"]), float(result["images_per_second"]))
        for result in results.values()
        if result["images_per_second"] and result["shared"] == shared and result["stage"] != "detect"
    ]
    mine = [speed for one, speed in measured if one == pace]
    ratios = [speed * share / guesses.of(one) for one, speed in measured]
    scale = min(ratios) if shared and len(ratios) > 1 else min([1.0, *ratios])
    guess = guesses.of(pace) / share * scale
    return min([*mine, guess] if shared else mine or [guess])


def judging_seconds(step: Step, plan: Plan, results: Results) -> float:
    """A guess, or the longest that a run with as many evaluations took."""
    tasks = len(plan.tasks_of(step.stage, step.method, step.seed))
    alike_ones = (
        float(result["judge_seconds"]) for result in results.values() if len(result.get("commands", ())) == 1 + tasks
    )  # one that is trained and not judged has none
    return max([plan.speeds.task_seconds * tasks, *alike_ones])


# --- differences with their intervals ---------------------------------------------------------------------------------


class Gap(NamedTuple):
    """A difference of means with its 95% interval; without one where nothing says how seeds differ."""

    mean: float
    low: float | None = None
    high: float | None = None
    borrowed: bool = False  # the spread is that of other methods' seeds, for want of own ones

    def text(self, decimals: int = 2) -> str:
        if self.low is None or self.high is None:
            return f"{self.mean:+.{decimals}f} (one seed)"
        return f"{self.mean:+.{decimals}f} [{self.low:+.{decimals}f}, {self.high:+.{decimals}f}]{'*' * self.borrowed}"

    @property
    def verdict(self) -> str:
        """helps, hurts, or what cannot be told."""
        if self.low is None or self.high is None:
            return "cannot be told with one seed"
        return "helps" if self.low > 0 else "hurts" if self.high < 0 else "cannot be told apart"

    @property
    def excludes_zero(self) -> bool:
        return self.verdict in ("helps", "hurts")


def gap(
    ours: Sequence[float], theirs: Sequence[float], others: PooledDeviation | None = None, picked_of: int = 1
) -> Gap | None:
    """ours - theirs. With two seeds or more on both sides the interval is Student's for two samples of equal spread;
    else the spread of the other methods' seeds is borrowed, where two degrees of freedom of it are known. `picked_of`:
    between how many such differences this one was picked by its size."""
    if not ours or not theirs:
        return None
    if min(len(ours), len(theirs)) > 1:
        return Gap(*difference_interval(ours, theirs, picked_of=picked_of))
    if others is not None and others.freedom >= 2:
        return Gap(*difference_interval(ours, theirs, others, picked_of), borrowed=True)
    return Gap(seed_stats(ours).mean - seed_stats(theirs).mean)


def over_images(ours: float, theirs: float, images: int) -> Gap:
    """A difference of two accuracies in percent, with the 95% interval that so many test images leave.

    >>> over_images(60.0, 1.0, 10_000).text()
    '+59.00 [+58.02, +59.98]'
    """
    half = accuracy_half_width(images, ours, theirs)
    return Gap(ours - theirs, ours - theirs - half, ours - theirs + half)


def mean_text(values: Sequence[float], decimals: int = 2) -> str:
    """Mean and half its 95% t-interval over seeds; a single value as it is.

    >>> mean_text([70.0, 71.0, 72.0])
    '71.00 ± 2.48'
    >>> mean_text([70.0]), mean_text([])
    ('70.00', '-')
    """
    if not values:
        return "-"
    mean, sd = seed_stats(values)
    half = "" if len(values) == 1 else f" ± {t_half_width(sd, len(values)):.{decimals}f}"
    return f"{mean:.{decimals}f}{half}"


# --- rows by seed -----------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """One set of settings with its seeds."""

    name: str
    results: list[Result]
    failed: int = 0  # runs without numbers, which are not in `results`

    def values(self, measure: str) -> list[float]:
        return [float(result["values"][measure]) for result in self.results if measure in result["values"]]

    def last(self, term: str) -> list[float]:
        """A training loss of the last epoch; without a pool and without labels l_sup is l_ssl, so there is none."""
        return [
            float(result["last"][term])
            for result in self.results
            if term in result["last"] and not (term == "sup" and result["method"] in SELF_SUPERVISED.values())
        ]

    @property
    def seeds(self) -> str:
        return ", ".join(str(result["seed"]) for result in self.results)

    @property
    def collapsed(self) -> int:
        return sum(result["status"] == "collapsed" for result in self.results)

    @property
    def lacking(self) -> str:
        """Why there are no numbers: no run was made, or it ended without them."""
        return "" if self.results else "failed" if self.failed else "missing"


@dataclass(frozen=True)
class Evidence:
    """A plan with the results that are there: what tables, answers and figures are made from."""

    plan: Plan
    results: Results

    def row(self, title: str, name: str) -> Row:
        """The run of that name with every seed there is."""
        step = self.plan.step(name)
        found = [] if step is None else alike(step, self.plan, self.results)
        kept = [one for one in found if one["status"] != "failed"]
        return Row(title, kept, len(found) - len(kept))

    @cached_property
    def methods(self) -> dict[str, Row]:
        """By method, in the order of the paper's table; a method without a result has no results in its row."""
        order = [method for method in NAMES if method in self.plan.pilots]
        return {method: self.row(NAMES[method], f"final-{method}-0") for method in order}

    @cached_property
    def alphas(self) -> dict[float, Row]:
        """alpha .5 is SupSiam's final run; alpha 1 may be SimSiam's, where the pilots chose the same for both."""
        steps = {alpha: "final-supsiam-0" if alpha == 0.5 else f"alpha-{alpha:g}-0" for alpha in ALPHAS}
        return {alpha: self.row(f"{alpha:g}", name) for alpha, name in steps.items()}

    def cells(self, harsh: bool = False) -> dict[tuple[bool, bool], Row]:
        return {key: self.row(name, cell_name(*key, harsh=harsh)) for key, name in CELLS.items()}

    @cached_property
    def lenders(self) -> list[Row]:
        """The methods and alphas that have several seeds and so tell how far seeds lie apart; one in both, once."""
        rows: dict[str, Row] = {}
        named = {f"alpha {alpha:g}": row for alpha, row in self.alphas.items()}
        for name, row in {**{row.name: row for row in self.methods.values()}, **named}.items():
            if len(row.results) > 1 and not row.collapsed:
                rows.setdefault(row.results[0]["identity"], row._replace(name=name))
        return list(rows.values())

    def seed_spread(self, measure: str) -> PooledDeviation | None:
        """How far seeds lie apart, over every method and alpha that has several."""
        return pooled_deviation(row.values(measure) for row in self.lenders)

    def row_gaps(
        self, ours: Row, theirs: Row, measures: Sequence[str] = ACCURACIES, picked_of: int = 1
    ) -> dict[str, Gap]:
        """ours - theirs, for every measure that both have; `picked_of`: see `gap`."""
        found = {
            measure: gap(ours.values(measure), theirs.values(measure), self.seed_spread(measure), picked_of)
            for measure in measures
        }
        return {measure: one for measure, one in found.items() if one is not None}

    def gaps(self, ours: str, theirs: str, picked_of: int = 1) -> dict[str, Gap]:
        """The same of two methods, in the accuracies."""
        rows = self.methods
        if ours not in rows or theirs not in rows:
            return {}
        return self.row_gaps(rows[ours], rows[theirs], picked_of=picked_of)
