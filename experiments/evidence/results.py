"""The results: one file per run, the settings that pilots chose, rows by seed, differences with their intervals."""

from __future__ import annotations

import json
import math
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
from supancl.errors import BadInput, plural
from supancl.files import jsonable, write_text
from supancl.recipes import recipe
from supancl.stats import (
    PooledDeviation,
    accuracy_half_width,
    difference_interval,
    pooled_deviation,
    seed_stats,
    t_half_width,
    t_quantile,
)

Result = dict[str, Any]
Results = Mapping[str, Result]
CHOSEN_BY = "linear"  # the value by which the best pilot is chosen, on held-out images
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
    "transfer": ("crossed", "pets"),
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
# titles of rows and differences; these two have the alpha of App. H
TITLES = NAMES | {
    method: f"{NAMES[method]} (alpha {recipe(f'cifar100.{method}').fields()['loss.alpha'][0]:g})"
    for method in ("supsiam", "supbyol")
}


NO_CLEAR_DIFFERENCE = "no clear difference"
ONE_SEED = "one seed only"


# --- files ------------------------------------------------------------------------------------------------------------


def read_results(folder: Path, plan: Plan | None = None) -> dict[str, Result]:
    """Read results by name, sorted; results of another plan (such as a rehearsal) are refused."""
    results: dict[str, Result] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            results[str(content["name"])] = content
        except (ValueError, KeyError, TypeError):
            raise BadInput(f"{path}: not the result of a run; remove it, and the run is made again") from None
        if plan is not None and content["plan"] != plan.name:
            raise BadInput(f"{path} is of plan {content['plan']!r}, this is {plan.name!r}; give another --results")
        step = None if plan is None else plan.step(content["name"])
        if plan and step and step.stage == "pilot" and content["settings"] != settings_of(step, plan, None):
            raise BadInput(
                f"{path} was made with other settings than the plan has now; remove it, and the run is made again"
            )
    return results


def write_result(folder: Path, result: Result) -> None:
    """Write atomically: a driver may be killed, and results may be copied, at any moment."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / f"{result['name']}.json", json.dumps(jsonable(result), indent=1) + "\n")


# --- what pilots chose ------------------------------------------------------------------------------------------------


def choose(plan: Plan, results: Results, method: str) -> Setting | None:
    """The setting of the best pilot; None until all of them are done, or if none of them trained.

    Best is the highest linear accuracy on the images held out of training; the first one if equal, which is
    the recipe's. A pilot that collapsed is chosen only if all did: it may lead for its few epochs.
    """
    best = best_pilot(plan, results, method)
    return None if best is None else plan.pilots[method][best]


def best_pilot(plan: Plan, results: Results, method: str) -> int | None:
    names = [f"pilot-{method}-{number}" for number in range(len(plan.pilots[method]))]
    if not all(name in results for name in names):
        return None
    scores = [results[name]["values"].get(CHOSEN_BY) for name in names]
    measured = [number for number, score in enumerate(scores) if score is not None]
    not_collapsed = [number for number in measured if results[names[number]]["status"] != "collapsed"]
    return max(not_collapsed or measured, key=lambda number: (scores[number], -number), default=None)


# --- which result belongs to a step -----------------------------------------------------------------------------------


def identity_of(step: Step, plan: Plan, results: Results) -> str | None:
    """The identity of a step's run; None while its pilots are not done."""
    if step.needs is not None:
        return f"{step.stage} {step.method}"
    setting = None if step.follows is None else choose(plan, results, step.follows)
    if step.follows is not None and setting is None:
        return None
    settings = tuple(settings_of(step, plan, setting).items())
    varied = "".join(f" {key}={value:g}" for key, value in settings if key in plan.varied)
    return _identity(plan.family, plan.suffix, step.method, step.epochs, settings) + varied


@cache
def _identity(family: str, suffix: str, method: str, epochs: int, settings: tuple[tuple[str, Any], ...]) -> str:
    """Cached, because every table needs the same ones."""
    return identity(recipe_of(family, f"{method}{suffix}", epochs, dict(settings)), method)


def result_of(step: Step, plan: Plan, results: Results) -> Result | None:
    """The step's result, or that of an equal run with another name; None if the pilots now choose other settings."""
    result, expected = results.get(step.name), identity_of(step, plan, results)
    if result is not None and (expected is None or step.stage == "pilot" or result["identity"] == expected):
        return result
    return next((other for other in same_run_results(step, plan, results) if other["seed"] == step.seed), None)


def same_run_results(step: Step, plan: Plan, results: Results) -> list[Result]:
    """The results of the same run with any seed, sorted by seed; a pilot equals no other run."""
    expected = None if step.stage == "pilot" else identity_of(step, plan, results)
    matches = [
        result
        for result in results.values()
        if expected is not None and result["identity"] == expected and result["stage"] != "pilot"
    ]
    by_seed = {int(result["seed"]): result for result in reversed(matches)}  # a repeated run is not another seed
    return [by_seed[seed] for seed in sorted(by_seed)]


def waiting(plan: Plan, results: Results) -> list[Step]:
    """Steps without a result, in the plan's order; equal runs are listed once."""
    steps: list[Step] = []
    planned: set[tuple[str, int]] = set()
    for step in plan.steps:
        if result_of(step, plan, results) is not None:
            continue
        run_identity = identity_of(step, plan, results)
        if run_identity is not None and step.stage != "pilot":
            if (run_identity, step.seed) in planned:
                continue
            planned.add((run_identity, step.seed))
        steps.append(step)
    return steps


# --- how long a run will take -----------------------------------------------------------------------------------------


def expected_seconds(
    step: Step, plan: Plan, results: Results, compiled: bool = True, judged: bool = True, shared: bool = False
) -> float:
    """Seconds for training and, if `judged`, for the evaluation."""
    judging = judging_seconds(step, plan, results) * judged
    if step.needs is not None:
        passes = step.epochs * DETECTED_IMAGES / DETECTED_PER_SECOND
        return START_SECONDS + passes * (SHARERS if shared else 1) + judging
    images = step.epochs * plan.images * (1 - float(step.settings.get("data.holdout") or 0))
    speed = expected_speed(pace_of(step.method, step.settings), results, shared, plan.speeds)
    training = images / speed + step.epochs * plan.speeds.epoch_seconds
    return START_SECONDS + training + plan.speeds.compile_seconds * (not compiled) + judging


def expected_speed(pace: str, results: Results, shared: bool, guesses: Speeds) -> float:
    """Images per second: the lowest of similar runs under the same conditions, else a first guess.

    The lowest, because a run that does not end in time is lost. A guess is scaled by the slowest run of any pace
    relative to its guess. A single run only lowers the guess: it may have been alone on the GPU for most of the time.
    """
    sharers = SHARERS if shared else 1
    measured = [
        (pace_of(result["method"], result["settings"]), float(result["images_per_second"]))
        for result in results.values()
        if result["images_per_second"] and result["shared"] == shared and result["stage"] != "detect"
    ]
    same_pace = [speed for other_pace, speed in measured if other_pace == pace]
    ratios = [speed * sharers / guesses.of(other_pace) for other_pace, speed in measured]
    scale = min(ratios) if shared and len(ratios) > 1 else min([1.0, *ratios])
    guess = guesses.of(pace) / sharers * scale
    return min([*same_pace, guess] if shared else same_pace or [guess])


def judging_seconds(step: Step, plan: Plan, results: Results) -> float:
    """A guess, or the longest time of a run with as many evaluations."""
    tasks = len(plan.tasks_of(step.stage, step.method, step.seed))
    similar_runs = (
        float(result["judge_seconds"]) for result in results.values() if len(result.get("commands", ())) == 1 + tasks
    )  # a run that is not evaluated yet has none
    return max([plan.speeds.task_seconds * tasks, *similar_runs])


# --- differences with their intervals ---------------------------------------------------------------------------------


class Gap(NamedTuple):
    """A difference of means with its 95% interval; no interval if the deviation over seeds is unknown."""

    mean: float
    low: float | None = None
    high: float | None = None
    borrowed: bool = False  # the deviation is that of other methods' seeds

    def text(self, decimals: int = 2) -> str:
        if self.low is None or self.high is None:
            return f"{self.mean:+.{decimals}f} (no interval)"
        return f"{self.mean:+.{decimals}f} [{self.low:+.{decimals}f}, {self.high:+.{decimals}f}]{'*' * self.borrowed}"

    @property
    def verdict(self) -> str:
        """helps, hurts, no clear difference, or one seed only."""
        if self.low is None or self.high is None:
            return ONE_SEED
        return "helps" if self.low > 0 else "hurts" if self.high < 0 else NO_CLEAR_DIFFERENCE

    @property
    def excludes_zero(self) -> bool:
        return self.verdict in ("helps", "hurts")


def gap(
    ours: Sequence[float], theirs: Sequence[float], others: PooledDeviation | None = None, picked_of: int = 1
) -> Gap | None:
    """ours - theirs. With two seeds or more on both sides: Student's interval for two samples of equal variance.
    Otherwise the deviation of other methods' seeds is borrowed, if it has two degrees of freedom. `picked_of`: from how
    many differences this one was picked by its size (Bonferroni)."""
    if not ours or not theirs:
        return None
    if min(len(ours), len(theirs)) > 1:
        return Gap(*difference_interval(ours, theirs, picked_of=picked_of))
    if others is not None and others.freedom >= 2:
        return Gap(*difference_interval(ours, theirs, others, picked_of), borrowed=True)
    return Gap(seed_stats(ours).mean - seed_stats(theirs).mean)


def over_images(ours: float, theirs: float, images: int) -> Gap:
    """A difference of two accuracies in percent, with its 95% interval over so many test images.

    >>> over_images(60.0, 1.0, 10_000).text()
    '+59.00 [+58.02, +59.98]'
    """
    half = accuracy_half_width(images, ours, theirs)
    return Gap(ours - theirs, ours - theirs - half, ours - theirs + half)


def mean_text(values: Sequence[float], decimals: int = 2, spread: PooledDeviation | None = None) -> str:
    """Mean and half its 95% interval over seeds, from `spread` or else their own deviation; one value has no interval.

    >>> mean_text([70.0, 71.0, 72.0]), mean_text([70.0, 72.0], 1, PooledDeviation(1.0, 6))
    ('71.00 ± 2.48', '71.0 ± 1.7')
    >>> mean_text([70.0]), mean_text([])
    ('70.00', '-')
    """
    if not values:
        return "-"
    mean = seed_stats(values).mean
    half = f" ± {half_width(values, spread):.{decimals}f}" if len(values) > 1 else ""
    return f"{mean:.{decimals}f}{half}"


def half_width(values: Sequence[float], spread: PooledDeviation | None = None) -> float:
    """Half the 95% interval of their mean, from `spread` or else their own deviation; 0 for one value.

    >>> half_width([70.0]), round(half_width([70.0, 72.0], PooledDeviation(1.0, 6)), 2)
    (0.0, 1.73)
    """
    if len(values) < 2:
        return 0.0
    if spread is None:
        return t_half_width(seed_stats(values).sd, len(values))
    return t_quantile(spread.freedom) * spread.deviation / math.sqrt(len(values))


# --- rows by seed -----------------------------------------------------------------------------------------------------


def with_losses(result: Result) -> Mapping[str, float]:
    """What was measured, and the training losses of the last epoch."""
    return {**result.get("last", {}), **result["values"]}


class Row(NamedTuple):
    """One set of settings with its seeds."""

    name: str
    results: list[Result]
    failed: int = 0  # runs without numbers, which are not in `results`

    def having(self, measure: str) -> list[Result]:
        """The results with this measure or loss; self-supervised methods have no l_sup (the log repeats l_ssl)."""
        others = SELF_SUPERVISED.values() if measure == "sup" else ()
        return [each for each in self.results if measure in with_losses(each) and each["method"] not in others]

    def values(self, measure: str) -> list[float]:
        return [float(with_losses(each)[measure]) for each in self.having(measure)]

    def text(self, measure: str, decimals: int = 2, spread: PooledDeviation | None = None) -> str:
        """Mean and interval (`mean_text`); says how many seeds have this measure if not all do.

        >>> seeds = [{"method": "a", "values": {"knn": 5}}, {"method": "a", "values": {"knn": 6, "linear": 60}}]
        >>> Row("a", seeds).text("linear"), Row("a", seeds).text("pets")
        ('60.00 (1 seed)', '-')
        """
        values = self.values(measure)
        fewer = f" ({plural(len(values), 'seed')})" if 0 < len(values) < len(self.results) else ""
        return mean_text(values, decimals, spread) + fewer

    @property
    def seeds(self) -> str:
        return ", ".join(str(result["seed"]) for result in self.results)

    @property
    def collapsed(self) -> int:
        return sum(result["status"] == "collapsed" for result in self.results)

    @property
    def missing_reason(self) -> str:
        """Why there are no numbers: the run is missing, or it failed."""
        return "" if self.results else "failed" if self.failed else "missing"


@dataclass(frozen=True)
class Evidence:
    """A plan and its results: the input of all tables, answers and figures."""

    plan: Plan
    results: Results

    def row(self, title: str, name: str) -> Row:
        """The run of this name with all its seeds."""
        step = self.plan.step(name)
        results = [] if step is None else same_run_results(step, self.plan, self.results)
        finished = [result for result in results if result["status"] != "failed"]
        return Row(title, finished, len(results) - len(finished))

    @cached_property
    def methods(self) -> dict[str, Row]:
        """Method -> row, in the order of the paper's table; a row may have no results."""
        order = [method for method in NAMES if method in self.plan.pilots]
        return {method: self.row(NAMES[method], f"final-{method}-0") for method in order}

    @cached_property
    def alphas(self) -> dict[float, Row]:
        """Alpha .5 is SupSiam's final run; alpha 1 is SimSiam's if the pilots chose the same settings for both."""
        steps = {alpha: "final-supsiam-0" if alpha == 0.5 else f"alpha-{alpha:g}-0" for alpha in ALPHAS}
        return {alpha: self.row(f"{alpha:g}", name) for alpha, name in steps.items()}

    def cells(self, harsh: bool = False) -> dict[tuple[bool, bool], Row]:
        return {key: self.row(name, cell_name(*key, harsh=harsh)) for key, name in CELLS.items()}

    @cached_property
    def lender_rows(self) -> list[Row]:
        """The methods and alphas with several seeds, whose deviation others borrow; each run counts once."""
        rows: dict[str, Row] = {}
        alpha_rows = {f"alpha {alpha:g}": row for alpha, row in self.alphas.items()}
        for name, row in {**{row.name: row for row in self.methods.values()}, **alpha_rows}.items():
            if len(row.results) > 1 and not row.collapsed:
                rows.setdefault(row.results[0]["identity"], row._replace(name=name))
        return list(rows.values())

    def seed_spread(self, measure: str) -> PooledDeviation | None:
        """The deviation over seeds, pooled over every method and alpha that has several."""
        return pooled_deviation(row.values(measure) for row in self.lender_rows)

    def row_gaps(
        self, ours: Row, theirs: Row, measures: Sequence[str] = ACCURACIES, picked_of: int = 1
    ) -> dict[str, Gap]:
        """ours - theirs, for every measure that both have; `picked_of`: see `gap`."""
        gaps = {
            measure: gap(ours.values(measure), theirs.values(measure), self.seed_spread(measure), picked_of)
            for measure in measures
        }
        return {measure: difference for measure, difference in gaps.items() if difference is not None}

    def gaps(self, ours: str, theirs: str, picked_of: int = 1) -> dict[str, Gap]:
        """The differences of two methods in all accuracies."""
        rows = self.methods
        if ours not in rows or theirs not in rows:
            return {}
        return self.row_gaps(rows[ours], rows[theirs], picked_of=picked_of)


def read_evidence(folder: Path, plan: Plan) -> Evidence:
    """A plan and the results in its folder, which may not be there yet."""
    return Evidence(plan, read_results(folder, plan))
