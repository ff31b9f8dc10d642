"""What the pilots say about the recipes: settings that become defaults where the paper is silent."""

from __future__ import annotations

from experiments.evidence.plan import Plan
from experiments.evidence.results import CHOSEN_BY, Results, best_pilot
from supancl.recipes.cifar import BEYOND

SOURCE = "our choice: best of the pilots on held-out images (RESULTS.md)"


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
