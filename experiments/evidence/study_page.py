"""What every later part of RESULTS.md has: differences of rows, what failed or is missing, and all runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.evidence.plan import Plan
from experiments.evidence.results import Evidence, Result, Row, gap, mean_text, waiting
from experiments.evidence.tables import COLUMNS, problem_lines, run_row, table
from supancl.errors import plural
from supancl.recipes import recipe
from supancl.stats import PooledDeviation, pooled_deviation


def mark(row: Row) -> str:
    """The method's name, with a dagger if the monitor reported collapse in a run of it."""
    return f"{row.name} †" if row.collapsed else row.name


def describe_collapse(rows: Mapping[str, Row]) -> str:
    """What a dagger means, with how many directions the projector's features use at the end."""
    alarmed = [row for row in rows.values() if row.collapsed]
    ends = [f"{row.name} {mean_text(row.values('projector_effective_rank'), 1)}" for row in alarmed]
    return (
        f"""
† The monitor reported collapse at some point of training: a batch's targets used fewer than 10 directions, or were
nearly equal. Training continued to the end. An early report can pass; at the end the projector's features of training
images have an effective rank of: {", ".join(ends)}.
A difference to a run that ends collapsed shows that labels prevent collapse at this learning rate, not how much they
help a network that trains well.
"""
        if alarmed
        else ""
    )


def spread_of(rows: Mapping[str, Row], measure: str) -> PooledDeviation | None:
    """The deviation over seeds, pooled over the methods that have several."""
    return pooled_deviation(row.values(measure) for row in rows.values() if not row.collapsed)


def differences(rows: Mapping[str, Row], pairs: Sequence[tuple[str, str]], accuracies: Mapping[str, str]) -> str:
    """The differences of these pairs of rows; `accuracies` has the titles of the measures."""
    pairs = [pair for pair in pairs if all(name in rows for name in pair)]
    if not pairs:
        return ""
    lines = []
    for ours, theirs in pairs:
        gaps = {m: gap(rows[ours].values(m), rows[theirs].values(m), spread_of(rows, m)) for m in accuracies}
        cells = [difference.text() if difference else "-" for difference in gaps.values()]
        lines.append([f"{mark(rows[ours])} - {mark(rows[theirs])}", *cells])
    return f"""### Differences

In points; "[low, high]" is a 95% interval over seeds. "*": one side has one seed, and the deviation is pooled over the
methods that have several. "(one seed)": too few seeds for an interval. Intervals do not cover other test images or
settings.

{table(["difference", *accuracies.values()], lines)}"""


def left_over(evidence: Evidence) -> str:
    unfinished = waiting(evidence.plan, evidence.results)
    missing = (
        f"{plural(len(unfinished), 'run')}: {', '.join(step.name for step in unfinished)}." if unfinished else "none."
    )
    return f"""### Failed, collapsed and not run

{problem_lines(evidence)}

Not run: {missing}
"""


def every_run(evidence: Evidence) -> str:
    """All runs and their commands; detectors are only among the commands, as they have no epochs and rates."""
    rows = [
        run_row(name, with_rates(evidence.plan, result))
        for name, result in evidence.results.items()
        if result["stage"] != "detect"
    ]
    commands = "\n".join(result["commands"][0] for result in evidence.results.values())
    longest = max(evidence.results.values(), key=lambda result: len(result["commands"]))
    judging = "\n".join(line.replace(f"runs/{longest['name']}", "RUN") for line in longest["commands"][1:])
    return f"""### Every run of this part

{table(COLUMNS, rows)}
```
{commands}
```

Evaluated with (RUN is the folder of `--out`):

```
{judging}
```
"""


def with_rates(plan: Plan, result: Result) -> Result:
    """The result with the recipe's learning rate and weight decay in its settings, unless it sets others."""
    optimizer = recipe(plan.recipe_name(str(result["method"]))).optimizer
    rates = {"optimizer.lr": optimizer.lr, "optimizer.weight_decay": optimizer.weight_decay}
    return {**result, "settings": {**rates, **result["settings"]}}
