"""What is known: one file a run in results/, and the settings that the pilots chose."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from experiments.evidence.plan import (
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
from supancl.errors import BadInput
from supancl.files import jsonable, write_text

Result = dict[str, Any]
Results = Mapping[str, Result]
CHOSEN_BY = "linear"  # of a pilot's values, on the images it held out
DETECTED_IMAGES, DETECTED_PER_SECOND = 800, 250.0  # a pass of a detector, and a guess of its speed (docs/detection.md)


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
