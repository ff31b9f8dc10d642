"""experiments/results/runs.csv: one row per run of every plan, for any program that reads tables."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from experiments.evidence.further_plans import named_plan
from experiments.evidence.plan import Plan
from experiments.evidence.results import Evidence, Result, read_evidence
from supancl.recipes import recipe

LATER_PLANS = ("imagenet", "supbyol", "cifar10", "pools")  # each has a folder of results

# copied from a result as they are
COPIED = ("stage", "method", "seed", "epochs", "status", "train_seconds", "images_per_second", "shared", "hardware",
          "commit")  # fmt: skip


def runs_table(first: Evidence, results: Path) -> str:
    """The table as text: what each run is, what it cost, what it measured, and its command.

    `first` is the evidence of CIFAR-100; `results` has a folder for each later plan.
    """
    evidence = [first, *(read_evidence(results / name, named_plan(name)) for name in LATER_PLANS)]
    rows = [run_row(each.plan, result) for each in evidence for result in each.results.values()]
    measures = sorted({key for row in rows for key in row["values"]})
    facts = [name for name in rows[0] if name not in ("values", "command")] if rows else []
    written = io.StringIO()
    table = csv.DictWriter(written, [*facts, *measures, "command"], lineterminator="\n")
    table.writeheader()
    table.writerows({**row.pop("values"), **row} for row in rows)
    return written.getvalue()


def run_row(plan: Plan, result: Result) -> dict[str, Any]:
    return {
        "plan": plan.name,
        "run": result["name"],
        **{name: result.get(name) for name in COPIED},
        **rates(plan, result),
        "train_images": result["data"].get("train"),
        "evaluate_seconds": result["judge_seconds"],
        "values": result["values"],
        "command": result["commands"][0],
    }


def rates(plan: Plan, result: Result) -> dict[str, float | None]:
    """Learning rate and weight decay: of the recipe, unless the run sets others; a detector has its own."""
    if result["stage"] == "detect":
        return {"lr": None, "weight_decay": None}
    optimizer, settings = recipe(plan.recipe_name(str(result["method"]))).optimizer, result["settings"]
    return {name: settings.get(f"optimizer.{name}", getattr(optimizer, name)) for name in ("lr", "weight_decay")}
