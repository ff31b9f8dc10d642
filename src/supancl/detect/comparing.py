"""Runs side by side: detectors from several encoders, over seeds, at the same settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import mean, median
from typing import Any

from supancl.detect.saving import DetectFolder
from supancl.detect.spec import DetectSpec
from supancl.detect.train import spread
from supancl.errors import BadInput

NOT_THE_METHOD = {"seed", "device", "workers", "memory_gb", "log_every", "checkpoint_every", "eval_every"}
SCORES = ("AP", "AP50", "AP75")


@dataclass(frozen=True, eq=False)
class Finished:
    """A finished run: where it began, its settings, the rows it logged and its scores."""

    path: Path
    name: str
    encoder: str
    spec: DetectSpec
    rows: list[dict[str, Any]]
    scores: dict[str, Any]
    told: dict[str, Any]  # what else detect.json says

    def cost(self) -> dict[str, float | None]:
        """Seconds of training (without tests), images a second, GB on the GPU."""
        trained = [row for row in self.rows if row["kind"] == "train"]
        steps = [row["step"] - before for row, before in zip(trained, [0, *(r["step"] for r in trained)], strict=False)]
        counts = [number * self.spec.batch_size for number in steps]
        seconds = sum(count / row["images_per_second"] for count, row in zip(counts, trained, strict=True))
        memory = [row["peak_memory_gb"] for row in self.rows if row.get("peak_memory_gb") is not None]
        return {
            "seconds": seconds,
            "images_per_second": sum(counts) / seconds if seconds else None,
            "memory_gb": max(memory, default=None),
        }


def open_finished(text: str) -> list[Finished]:
    """RUN or NAME=RUN; a folder of several seeds counts as its runs."""
    name, equals, place = text.partition("=")
    named = bool(equals) and not Path(text).exists()
    path, name = (Path(place), name) if named else (Path(text), "")
    seeds = [file.parent for file in path.glob("seed-*/detect.json")]
    seeds.sort(key=lambda each: (len(each.name), each.name))
    folders = [path] if DetectFolder(path).has_run else seeds
    if not folders:
        raise BadInput(
            f"{path} holds no detector run (no detect.json, no seed-*/detect.json); supancl detect train makes one"
        )
    return [_opened(folder, name) for folder in folders]


def _opened(path: Path, name: str) -> Finished:
    folder = DetectFolder(path)
    spec, _, encoder, told = folder.read_settings()
    file = folder.evaluations / "detect.json"
    try:
        scores = json.loads(file.read_text())
        if not all(key in scores for key in (*SCORES, "classes")):
            raise ValueError("without scores")
    except OSError:
        raise BadInput(f"{path} has not been tested (no {file.name} in evaluate/); finish it with --resume") from None
    except (ValueError, TypeError):
        raise BadInput(f"{file}: not the scores of a detector; write it again with supancl detect eval") from None
    return Finished(path, name or short_name(encoder), encoder, spec, folder.metrics(), scores, told)


def short_name(encoder: str) -> str:
    """`random:resnet18` as it is; of a path the folder of the run, or the file."""
    path = Path(encoder)
    named = path.parent if path.name == "encoder.safetensors" else path
    return encoder if encoder.startswith("random:") else named.name


def compared(runs: Sequence[Finished]) -> dict[str, Any]:
    """Mean and spread for each name, in the order given; remarks where runs are not at equal settings."""
    groups: dict[str, list[Finished]] = {}
    named: dict[Path, str] = {}
    for run in runs:
        before = named.setdefault(run.path.resolve(), run.name)
        if before != run.name:
            raise BadInput(f"{run.path} is both {before} and {run.name}; leave one out")
        groups.setdefault(run.name, []).append(run)
    for name, members in groups.items():
        known: dict[int, Path] = {}
        for run in members:
            if run.encoder != members[0].encoder:
                raise BadInput(f"{name} is both {members[0].encoder} and {run.encoder}; tell them apart with NAME=RUN")
            if run.spec.seed in known:
                raise BadInput(f"{known[run.spec.seed]} and {run.path} are one seed of {name}; leave one out")
            known[run.spec.seed] = run.path
    return {"groups": {name: _group(members) for name, members in groups.items()}, "remarks": _differences(runs)}


def _group(runs: Sequence[Finished]) -> dict[str, Any]:
    costs = [run.cost() for run in runs]
    paid = {name: [cost[name] for cost in costs] for name in costs[0]}
    known = {name: [value for value in values if value is not None] for name, values in paid.items()}
    kinds = sorted({kind for run in runs for kind in run.scores["classes"]})
    by_class = {kind: [run.scores["classes"].get(kind, {}).get("AP50") for run in runs] for kind in kinds}
    found = {kind: [value for value in values if value is not None] for kind, values in by_class.items()}
    return {
        "encoder": runs[0].encoder, "seeds": [run.spec.seed for run in runs],
        "scores": [{key: run.scores[key] for key in SCORES} for run in runs],
        "spread": spread([run.scores for run in runs]),
        "classes_AP50": {kind: mean(values) if values else None for kind, values in found.items()},
        **{name: median(values) if values else None for name, values in known.items()},
    }  # fmt: skip


def _differences(runs: Sequence[Finished]) -> list[str]:
    told = []
    for field in fields(DetectSpec):
        values = {str(getattr(run.spec, field.name)) for run in runs}
        if field.name not in NOT_THE_METHOD and len(values) > 1:
            told.append(f"the runs differ in {field.name}: {', '.join(sorted(values))}")
    names = {run.told["encoder_spec"]["name"] for run in runs if "encoder_spec" in run.told}
    if len(names) > 1:
        told.append(f"the runs differ in encoder.name: {', '.join(sorted(names))}")
    for key, what in (("fingerprint", "trained"), ("test_fingerprint", "tested")):
        prints = {run.told[key] for run in runs if key in run.told}
        counts = {(run.scores.get("images"), run.scores.get("boxes")) for run in runs if what == "tested"}
        if len(prints) > 1 or len(counts) > 1:
            told.append(f"the runs were {what} on different images")
    return told
