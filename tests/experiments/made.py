"""Results as the driver writes them, with numbers of our making."""

from __future__ import annotations

from typing import Any

from experiments.evidence.further_plans import PLANS
from experiments.evidence.plan import Plan, Step, identity, recipe_of, settings_of, words_of
from experiments.evidence.plans import cifar_plan
from experiments.evidence.results import ACCURACIES, choose


def result(plan: Plan, step: Step, chosen: Any, values: dict[str, float], **others: Any) -> dict[str, Any]:
    settings = settings_of(step, plan, chosen)
    train = 45_000 if step.stage == "pilot" else 50_000
    return {
        "name": step.name,
        "stage": step.stage,
        "method": step.method,
        "seed": step.seed,
        "epochs": step.epochs,
        "identity": identity(recipe_of(plan.family, step.method, step.epochs, settings), step.method),
        "settings": settings,
        "train_seconds": 100.0,
        "resumed": False,
        "beside": True,
        "shared": False,
        "warnings": [],
        "images_per_second": 35_000.0,
        "last": {"loss": -0.8, "ssl": -0.9, "sup": -0.7, "std": 0.9, "target_effective_rank": 80.0},
        "curve": [],
        "plan": plan.name,
        "status": "finished",
        "why": None,
        "not_measured": {},
        "judge_seconds": 20.0,
        "commands": ["supancl " + " ".join(words_of(step, plan, settings)), f"supancl evaluate knn runs/{step.name}"],
        "values": values,
        "hardware": "a GPU",
        "versions": {"torch": "2.11"},
        "commit": "abc",
        "data": {"train": train},
        **others,
    }


def pilot_results(scores: dict[str, tuple[float | None, ...]]) -> dict[str, dict[str, Any]]:
    """None: the pilot failed."""
    plan, found = cifar_plan(), {}
    for method, each in scores.items():
        for number, score in enumerate(each):
            step = plan.step(f"pilot-{method}-{number}")
            values = {} if score is None else {"linear": float(score), "knn": float(score) - 2}
            failed = {"status": "failed", "why": "the loss is not finite"} if score is None else {}
            found[step.name] = result(plan, step, None, values, **failed)
    return found


def whole(levels: dict[str, float], plan: Plan | None = None, noise: float = 0.1) -> dict[str, dict[str, Any]]:
    """Every step of the plan; `levels` says how high a method, an `alpha-A` or a `collapse-CELL` lies."""
    plan = plan or PLANS["cifar100"]()
    found = pilot_results(dict.fromkeys(plan.pilots, (3, 2, 1)))
    for step in plan.steps:
        if step.stage == "pilot":
            continue
        prefix = step.name.rpartition("-")[0]
        level = levels.get(prefix, levels.get(step.method, 50.0)) + noise * (step.seed - 1)
        values = dict.fromkeys(ACCURACIES, level)
        values |= {"ratio": 0.5, "train_ratio": 0.3, "effective_rank": 100.0, "within": 0.4, "total": 0.8}
        collapsed = {"status": "collapsed"} if level < 2 else {}
        found[step.name] = result(plan, step, choose(plan, found, step.follows or ""), values, **collapsed)
    return found
