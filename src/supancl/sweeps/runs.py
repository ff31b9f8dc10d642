"""The state of one run of a sweep: finished, failed, or trained with other settings."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from supancl.config import MAY_CHANGE_ON_RESUME, fields_marked, flattened, parse_json
from supancl.core.encoders import Encoder
from supancl.data.opening import absolute_source, is_same_source
from supancl.errors import BadInput, CheckFailed, Collapsed, NonFinite, plural
from supancl.files import read_text, write_text
from supancl.recipes import Recipe
from supancl.runs.encoder_file import load_encoder
from supancl.runs.folder import RunFolder, has_collapsed
from supancl.training.start import is_same_or_automatic

FAILURE_FILE = "failed.json"  # in the folder of a failed run: why it failed


class TrainedRun(NamedTuple):
    """A finished run: its recipe, encoder and log."""

    recipe: Recipe
    encoder: Encoder
    metrics: list[dict[str, Any]]
    collapsed: bool

    def last_epoch(self, name: str) -> float:
        """Mean of a logged training value over the last epoch; nan if none was logged."""
        rows = [row for row in self.metrics if row["kind"] == "train"]
        values = [row[name] for row in rows if row["epoch"] == rows[-1]["epoch"] and row[name] is not None]
        return sum(values) / len(values) if values else math.nan


class Failure(NamedTuple):
    """Why a run ended before its last epoch, and the exit code it would have had on its own."""

    reason: str
    exit_code: int

    @property
    def collapsed(self) -> bool:
        return self.exit_code == Collapsed.exit_code

    @property
    def not_finite(self) -> bool:
        return self.exit_code == NonFinite.exit_code


class Runs(NamedTuple):
    """The runs of a sweep by name: those that finished, and those that failed."""

    trained: dict[str, TrainedRun]
    failed: dict[str, Failure]


def retry_flags(failed: Mapping[str, Failure]) -> str:
    """Flags that let failed runs continue past the failure; without them they would fail again."""
    failures = list(failed.values())
    skip = " on_nan skip" if any(failure.not_finite for failure in failures) else ""
    return f"retry{skip}" + (" on_collapse warn" if any(failure.collapsed for failure in failures) else "")


class RunsFailed(CheckFailed):
    """Some runs of a sweep failed; the results of the others have been written."""

    def __init__(self, failed: Mapping[str, Failure], result: dict[str, Any], out: Path) -> None:
        first = next(iter(failed))
        are = "is" if len(failed) == 1 else "are"
        count = f"{len(failed)} of {plural(len(result['rows']), 'run')} failed and {are} in no mean"
        not_finite = any(failure.not_finite for failure in failed.values())
        new_study = ", or start another study with a lower optimizer.lr" if not_finite else ""
        super().__init__(
            f"{count} ({', '.join(failed)}); the other results are in {out}; {retry_flags(failed)} "
            f"continues the failed runs from their last checkpoint{new_study}; {first}: {failed[first].reason}",
            result,
        )
        self.exit_code = max(failure.exit_code for failure in failed.values())


def read_failure(folder: Path) -> Failure | None:
    """Why the run in this folder failed; None if no failure is recorded."""
    try:
        recorded = parse_json(read_text(folder / FAILURE_FILE))
        return Failure(str(recorded["reason"]), int(recorded["exit_code"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def record_failure(folder: Path, failure: Failure) -> None:
    write_text(folder / FAILURE_FILE, json.dumps(failure._asdict()) + "\n")


def check_same_recipe(recipe: Recipe, folder: RunFolder) -> None:
    """Refuse a folder that holds a run whose settings differ from this recipe's."""
    if not folder.has_run:
        return
    trained_with = flattened(folder.read_recipe()[0])
    free = {"sources", "train.device", "data.short_side", *fields_marked(recipe, MAY_CHANGE_ON_RESUME)}
    for key, value in flattened(recipe).items():
        if key in free or is_same_or_automatic(key, value, trained_with.get(key)):
            continue
        if key == "data.joined" and list(map(absolute_source, trained_with[key])) == list(map(absolute_source, value)):
            continue
        if key != "data.source" or not is_same_source(str(trained_with.get(key)), str(value)):
            raise BadInput(
                f"{folder.path} holds a run with {key} = {trained_with.get(key)!r}, this study needs {value!r}; "
                "choose another out"
            )


def read_run(path: Path) -> TrainedRun:
    folder = RunFolder(path)
    folder.check_recipe_file()
    return TrainedRun(folder.read_recipe()[0], load_encoder(path), folder.metrics(), bool(has_collapsed(folder)))
