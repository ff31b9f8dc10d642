"""Compare detectors from several encoders, over seeds, at the same settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import mean, median
from typing import Any

from supancl.config import parse_json
from supancl.detection.saving import DetectFolder
from supancl.detection.spec import DetectSpec
from supancl.detection.train import score_stats
from supancl.errors import BadInput
from supancl.files import is_as_written, read_text
from supancl.weights.run_folder import folder_of_encoder

FIELDS_NOT_COMPARED = {"seed", "device", "workers", "memory_gb", "log_every", "checkpoint_every", "eval_every"}
SCORES = ("AP", "AP50", "AP75")


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A finished run: its encoder, settings, logged rows and scores."""

    path: Path
    name: str
    encoder: str
    spec: DetectSpec
    rows: list[dict[str, Any]]
    scores: dict[str, Any]
    settings: dict[str, Any]  # all of detect.json

    def cost(self) -> dict[str, float | None]:
        """Seconds of training (without tests), images per second, GB on the GPU."""
        train_rows = [row for row in self.rows if row["kind"] == "train"]
        steps = [
            row["step"] - previous
            for row, previous in zip(train_rows, [0, *(r["step"] for r in train_rows)], strict=False)
        ]
        counts = [count * self.spec.batch_size for count in steps]
        seconds = sum(count / row["images_per_second"] for count, row in zip(counts, train_rows, strict=True))
        memory = [row["peak_memory_gb"] for row in self.rows if row.get("peak_memory_gb") is not None]
        return {
            "seconds": seconds,
            "images_per_second": sum(counts) / seconds if seconds else None,
            "memory_gb": max(memory, default=None),
        }


def open_finished_runs(text: str) -> list[FinishedRun]:
    """The runs that RUN or NAME=RUN names; a folder of several seeds gives one run per seed."""
    name, equals, folder = text.partition("=")
    has_name = bool(equals) and not Path(text).exists()
    path, name = (Path(folder), name) if has_name else (Path(text), "")
    seeds = [file.parent for file in path.glob("seed-*/detect.json")]
    seeds.sort(key=lambda folder: (len(folder.name), folder.name))
    folders = [path] if DetectFolder(path).has_run else seeds
    if not folders:
        raise BadInput(
            f"{path} holds no detector run (no detect.json, no seed-*/detect.json); make one with supancl detect train"
        )
    return [_open_run(folder, name) for folder in folders]


def _open_run(path: Path, name: str) -> FinishedRun:
    folder = DetectFolder(path)
    spec, _, encoder, settings = folder.read_settings()
    file = folder.evaluations / "detect.json"
    try:
        scores = parse_json(read_text(file))
        if not all(key in scores for key in (*SCORES, "classes")):
            raise ValueError("without scores")
        if not is_as_written(scores):
            raise ValueError("damaged")
    except OSError:
        raise BadInput(f"{path} has not been tested (no {file.name} in evaluate/); finish it with resume") from None
    except (ValueError, TypeError):
        raise BadInput(f"{file}: not the scores of a detector; run supancl detect eval again") from None
    return FinishedRun(path, name or short_name(encoder), encoder, spec, folder.metrics(), scores, settings)


def short_name(encoder: str) -> str:
    """A short name for an encoder: `random:resnet18`, or the name of the run folder or of the file."""
    return encoder if encoder.startswith("random:") else folder_of_encoder(Path(encoder)).name


def compare_runs(runs: Sequence[FinishedRun]) -> dict[str, Any]:
    """Mean and deviation per name, in the given order, and remarks on settings that differ between runs."""
    groups: dict[str, list[FinishedRun]] = {}
    name_of_path: dict[Path, str] = {}
    for run in runs:
        first_name = name_of_path.setdefault(run.path.resolve(), run.name)
        if first_name != run.name:
            raise BadInput(f"{run.path} is both {first_name} and {run.name}; leave one out")
        groups.setdefault(run.name, []).append(run)
    for name, members in groups.items():
        path_of_seed: dict[int, Path] = {}
        for run in members:
            if run.encoder != members[0].encoder:
                raise BadInput(f"{name} is both {members[0].encoder} and {run.encoder}; name them with NAME=RUN")
            if run.spec.seed in path_of_seed:
                raise BadInput(
                    f"{path_of_seed[run.spec.seed]} and {run.path} are the same seed of {name}; leave one out"
                )
            path_of_seed[run.spec.seed] = run.path
    return {
        "groups": {name: _summarize_group(members) for name, members in groups.items()},
        "remarks": _differences(runs),
    }


def _summarize_group(runs: Sequence[FinishedRun]) -> dict[str, Any]:
    costs = [run.cost() for run in runs]
    cost_values = {name: [cost[name] for cost in costs] for name in costs[0]}
    measured = {name: [value for value in values if value is not None] for name, values in cost_values.items()}
    names = sorted({name for run in runs for name in run.scores["classes"]})
    by_class = {name: [run.scores["classes"].get(name, {}).get("AP50") for run in runs] for name in names}
    known_AP50 = {name: [value for value in values if value is not None] for name, values in by_class.items()}
    return {
        "encoder": runs[0].encoder, "seeds": [run.spec.seed for run in runs],
        "scores": [{key: run.scores[key] for key in SCORES} for run in runs],
        "spread": score_stats([run.scores for run in runs]),
        "classes_AP50": {name: mean(values) if values else None for name, values in known_AP50.items()},
        **{name: median(values) if values else None for name, values in measured.items()},
    }  # fmt: skip


def _differences(runs: Sequence[FinishedRun]) -> list[str]:
    remarks = []
    for field in fields(DetectSpec):
        values = {str(getattr(run.spec, field.name)) for run in runs}
        if field.name not in FIELDS_NOT_COMPARED and len(values) > 1:
            remarks.append(f"the runs differ in {field.name}: {', '.join(sorted(values))}")
    names = {run.settings["encoder_spec"]["name"] for run in runs if "encoder_spec" in run.settings}
    if len(names) > 1:
        remarks.append(f"the runs differ in encoder.name: {', '.join(sorted(names))}")
    for key, stage in (("fingerprint", "trained"), ("test_fingerprint", "tested")):
        fingerprints = {run.settings[key] for run in runs if key in run.settings}
        counts = {(run.scores.get("images"), run.scores.get("boxes")) for run in runs if stage == "tested"}
        if len(fingerprints) > 1 or len(counts) > 1:
            remarks.append(f"the runs were {stage} on different images")
    return remarks
