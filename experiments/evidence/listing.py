"""The last part of the page: what failed, what is missing, and every run with the command that made it."""

from __future__ import annotations

import statistics
from typing import Any

from experiments.evidence.markdown import table
from experiments.evidence.plan import Plan
from experiments.evidence.results import Results, waiting
from supancl.errors import counted

STAGES = {"pilot": "pilots", "final": "main table", "alpha": "alpha sweep", "collapse": "collapse cells"}
COLUMNS = ("run", "seed", "epochs", "lr", "weight decay", "train s", "images/s", "images/s, whole", "judge s", "commit")


def told(plan: Plan, results: Results) -> str:
    """Failed and collapsed runs, what could not be measured, and what is missing."""
    lines = [
        f"- {name}: {result['status']}{': ' + result['why'] if result['why'] else ''}"
        for name, result in results.items()
        if result["status"] != "finished"
    ]
    lines += [
        f"- {name}: `{task}` could not be measured: {why}"
        for name, result in results.items()
        for task, why in result["not_measured"].items()
    ]
    left = waiting(plan, results)
    listed = {what: [step.name for step in left if step.stage == stage] for stage, what in STAGES.items()}
    missing = [f"- {what}: {', '.join(names)}" for what, names in listed.items() if names]
    return f"""## Failed, collapsed and missing

{chr(10).join(lines) or "No run failed or collapsed."}

Missing: {chr(10).join([f"{counted(len(left), 'run')}.", "", *missing]) if left else "nothing; the plan is done."}
"""


def own_speed(result: dict[str, Any]) -> str:
    shared = " (shared)" if result["shared"] else ""
    return f"{result['images_per_second']:,.0f}{shared}" if result["images_per_second"] else "-"


def whole_speed(result: dict[str, Any]) -> str:
    """Starting, compiling, checks and checkpoints included."""
    if result["resumed"] or result["status"] == "failed":
        return "-"
    return f"{result['data']['train'] * result['epochs'] / result['train_seconds']:,.0f}"


def row(name: str, result: dict[str, Any]) -> list[str]:
    settings = (f"{result['settings'][f'optimizer.{key}']:g}" for key in ("lr", "weight_decay"))
    return [
        name,
        str(result["seed"]),
        str(result["epochs"]),
        *settings,
        f"{result['train_seconds']:.0f}",
        own_speed(result),
        whole_speed(result),
        f"{result['judge_seconds']:.0f}",
        str(result["commit"]),
    ]


def commands(results: Results) -> str:
    """The judging commands once a stage: they are the same for all of its runs."""
    judging: dict[str, list[str]] = {}
    for name, result in results.items():
        if len(result["commands"]) > len(judging.get(result["stage"], ())):
            judging[result["stage"]] = [line.replace(f"runs/{name}", "RUN") for line in result["commands"][1:]]
    same: dict[tuple[str, ...], list[str]] = {}
    for stage, lines in judging.items():
        same.setdefault(tuple(lines), []).append(STAGES.get(stage, stage))
    listed = "\n".join(
        f"{' and '.join(stages).capitalize()}:\n\n```\n{chr(10).join(lines)}\n```\n"
        for lines, stages in same.items()
        if lines
    )
    speeds = [
        result["images_per_second"]
        for result in results.values()
        if result["images_per_second"] and not result["shared"]
    ]
    speed = f"Median speed {statistics.median(speeds):,.0f} images a second. " if speeds else ""
    trained = "\n".join(result["commands"][0] for result in results.values())
    return f"""## Every run

{speed}Seconds are of the whole command; images/s is the median of the log's intervals, beside it what the whole command
made of it, starting, compiling and checkpoints included. Of runs in a row that differ in seed, alpha or learning rate
alone only the first compiled: the others took over its captured step. A run may have been judged while the next one
trained, which slows both; where the speed is marked as shared, other runs of the plan or other work were on the GPU for
some or all of the time. They are no benchmark: [performance](docs/performance.md) has one.

{table(COLUMNS, [row(name, result) for name, result in results.items()])}
Trained with, a line a run, in a folder in which data/ holds the unpacked data sets:

```
{trained or "nothing yet"}
```

Judged with, RUN standing for the folder that `--out` names:

{listed or "nothing yet"}"""
