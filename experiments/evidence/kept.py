"""Evaluations that came back from a machine that is gone, with the encoder that they measured.

An encoder of 90 MB stays on the machine that trained it, but `experiments.evidence.remote --collect` brings back the
evaluations that were finished. `python -m experiments.evidence judge NAME --work FOLDER` writes the run's result from
them, where FOLDER is plans/PLAN of the unpacked logs.tar.gz; what is missing is listed as not measured.
"""

from __future__ import annotations

import json
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from experiments.evidence.plan import Plan, Task
from supancl.errors import BadInput

WEIGHTS = ("encoder.safetensors", "detector.safetensors")
GONE = "the machine was gone before it was measured"
Evaluation = dict[str, Any]


def is_gone(run: Path) -> bool:
    """Whether a trained run folder is without its weights."""
    return not any((run / name).exists() for name in WEIGHTS)


def kept_evaluations(run: Path) -> list[Evaluation]:
    """The evaluations in a run folder; a detector's has another form and is read elsewhere."""
    contents = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((run / "evaluate").glob("*.json"))]
    return [content for content in contents if "protocol" in content]


def find_kept(plan: Plan, task: Task, kept: list[Evaluation]) -> tuple[dict[str, Any] | None, str]:
    """The answer of a task as far as it was measured, or None; and why it is not complete."""
    protocol, flags = task.words[0], dict(pairwise(task.words))
    found = [content for content in kept if content["protocol"] == protocol and is_asked_for(content, flags, plan.data)]
    if protocol not in ("transfer", "fewshot"):
        return (found[0], "") if found else (None, GONE)
    asked = len(flags.get("--sets", "").split(",")) * len(flags.get("--shots", "").split(","))
    if not found:
        return None, GONE
    missing = asked - len(found)
    return {"results": found}, f"{missing} of {asked}: {GONE}" if missing else ""


def is_asked_for(content: Evaluation, flags: dict[str, str], trained_on: str) -> bool:
    """Whether an evaluation has the data, split, probe and layer that these flags ask for."""
    if "--sets" in flags:
        return content["data"] in flags["--sets"].split(",")
    return (
        Path(content["source"]).name == Path(flags.get("--data", trained_on)).name
        and flags.get("--split") in (None, content.get("judged"))
        and flags.get("--probe", "lbfgs") == content.get("probe", "lbfgs")
        and flags.get("--layer", "pooled") == content["layer"]
    )


def machine_of(run: Path, kept: list[Evaluation]) -> dict[str, Any]:
    """What the evaluations were measured on; those of another run of the same machine if this one has none."""
    others = (content for folder in sorted(run.parent.iterdir()) for content in kept_evaluations(folder))
    for content in chain(kept, others):
        return {key: content[key] for key in ("hardware", "versions")}
    raise BadInput(f"{run.parent}: no evaluation names its machine; add the folder of another run of that machine")
