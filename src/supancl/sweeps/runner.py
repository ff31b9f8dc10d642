"""The sweep runner: named recipes with several seeds, trained one after another or in parallel processes.

A sweep that is started again in the same folder continues where it stopped.
"""

from __future__ import annotations

import math
import shlex
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from supancl.config import MAY_CHANGE_ON_RESUME, fields_marked, flattened, parse_json
from supancl.core.encoders import Encoder
from supancl.core.precision import pick_device
from supancl.data.decode import available_cores
from supancl.data.opening import absolute_source, is_same_source, open_data
from supancl.data.sources.folder import check_out_folder
from supancl.data.splits import Data
from supancl.distributed import require_single_process
from supancl.errors import BadInput, CheckFailed, Collapsed, Interrupted, NonFinite, did_you_mean
from supancl.files import check_writable, read_text
from supancl.recipes import Recipe
from supancl.recipes.auto import with_short_side
from supancl.recipes.recipe import describe_changes, resolve_warmup
from supancl.reporter import Reporter, current_reporter
from supancl.runs.checkpoint import checkpoints
from supancl.runs.encoder_file import load_encoder
from supancl.runs.folder import RunFolder, check_same_data
from supancl.runs.log import has_collapsed, read_end
from supancl.sweeps.processes import FAILURE_FILE, Failure, MakeReporter, Task, WorkerKilled, train_each
from supancl.training.checks import available_memory, check_data, check_memory, estimate_memory
from supancl.training.resume import is_same_or_automatic
from supancl.training.start import resolve

T = TypeVar("T")
BYTES_PER_RUN = 1e9  # at least, of a process with a small encoder: 0.9 GB on the digits, most of it torch


class TrainedRun(NamedTuple):
    """A finished run: its recipe, encoder and log."""

    recipe: Recipe
    encoder: Encoder
    metrics: list[dict[str, Any]]
    collapsed: bool


class Runs(NamedTuple):
    """The runs of a sweep by name: those that finished, and those that failed."""

    trained: dict[str, TrainedRun]
    failed: dict[str, Failure]


class RunsFailed(CheckFailed):
    """Some runs of a sweep failed; the results of the others have been written."""

    def __init__(self, failed: Mapping[str, Failure], result: dict[str, Any], out: Path) -> None:
        first = next(iter(failed))
        super().__init__(
            f"failed runs: {len(failed)} of {len(result['rows'])}, in no mean ({', '.join(failed)}); the other results "
            f"are in {out}; {retry_flags(failed)} continues the failed runs from their last checkpoint; "
            f"{first}: {failed[first].reason}",
            result,
        )
        self.exit_code = max(failure.exit_code for failure in failed.values())


def retry_flags(failed: Mapping[str, Failure]) -> str:
    """Flags that let failed runs continue past the failure; without them they would fail again."""
    codes = {failure.exit_code for failure in failed.values()}
    skip = " on_nan skip" if NonFinite.exit_code in codes else ""
    return f"retry{skip}" + (" on_collapse warn" if Collapsed.exit_code in codes else "")


@dataclass(frozen=True)
class Sweep:
    """Settings of a sweep: each row is trained with seeds 0 to `seeds` - 1.

    A row is a named recipe; its runs are in out/ROW-seed-N.
    """

    out: Path
    seeds: int = 1
    jobs: int | None = None  # runs in parallel; None: as many as suit the recipe
    retry: bool = False  # continue runs that failed before
    run_reporter: MakeReporter = Reporter  # makes the reporter of each run; it is pickled for parallel runs

    def __post_init__(self) -> None:
        if self.seeds < 1 or (self.jobs is not None and self.jobs < 1):
            raise BadInput(f"seeds {self.seeds}, jobs {self.jobs}: must be at least 1")

    def check_folder(self, base: Recipe) -> None:
        """Refuse a folder that cannot be used. Call it before reading the data, which may take an hour."""
        folder = RunFolder(self.out)
        check_writable(self.out)
        if folder.has_run:
            raise BadInput(f"{self.out} already holds a single run; choose another out for a study")
        for source in base.data.all_sources:
            check_out_folder(source, self.out)

    def with_seeds(self, rows: Mapping[str, Recipe], because: str) -> dict[str, Recipe]:
        """The runs by name: each row with every seed."""
        return {
            run_name(row, seed): recipe.with_set({"train.seed": seed}, because=because)
            for row, recipe in rows.items()
            for seed in range(self.seeds)
        }

    def train(self, recipes: Mapping[str, Recipe], data: Data, starts: Mapping[str, str | None] | None = None) -> Runs:
        """Train each run in out/NAME, or continue it; finished ones are only read.

        A run that fails is recorded and does not end the sweep. Nothing is trained if any folder holds a run with
        other settings or on other data: that would mix two sweeps. `starts` are the weights that runs start from.
        """
        require_single_process("a study")
        images, note = len(data.train), current_reporter().note
        resolved = {name: resolve_warmup(recipe, images) for name, recipe in recipes.items()}
        lines = [describe_changes(recipes[name], recipe) for name, recipe in resolved.items()]
        for line in dict.fromkeys(chain.from_iterable(lines)):
            note(line)
        self.check_folder(next(iter(resolved.values())))
        for name, recipe in resolved.items():
            check_run(recipe, RunFolder(self.out / name), data)
        tasks = {name: Task(recipe, self.out / name, (starts or {}).get(name)) for name, recipe in resolved.items()}
        failed = self._train_missing(tasks)
        return Runs({name: read_run(self.out / name) for name in resolved if name not in failed}, failed)

    def raise_failed(self, runs: Runs, result: dict[str, Any]) -> None:
        """Raise RunsFailed if a run failed; call it once all results are written."""
        if runs.failed:
            raise RunsFailed(runs.failed, result, self.out)

    def _train_missing(self, tasks: Mapping[str, Task]) -> dict[str, Failure]:
        """Train the runs that have neither finished nor failed; returns all failures, old and new."""
        reporter = current_reporter()
        missing = {name: task for name, task in tasks.items() if read_end(RunFolder(task.folder)) is None}
        old = {} if self.retry else {name: read_failure(task.folder) for name, task in missing.items()}
        failed = {name: failure for name, failure in old.items() if failure is not None}
        if len(missing) < len(tasks):
            reporter.note(f"finished runs: {len(tasks) - len(missing)} of {len(tasks)}")
        if failed:
            reporter.note(f"failed before: {', '.join(failed)}; continue them with {retry_flags(failed)}")
        missing = {name: task for name, task in missing.items() if name not in failed}
        for name, task in missing.items():
            try:
                check_memory(task.recipe, pick_device(task.recipe.train.device))
            except BadInput as error:
                raise BadInput(f"{name}: {error}") from None
        jobs = self.jobs or default_jobs(next(iter(tasks.values())).recipe)
        done = len(tasks) - len(missing)
        reporter.on_progress("training runs", done, len(tasks))

        def how_to_continue(flags: str = "") -> str:
            return (
                f"with {done} of {len(tasks)} runs done; those in progress are saved; continue with the same "
                f"command and {flags}--out {shlex.quote(str(self.out))}"
            )

        try:
            for name, failure in train_each(missing, jobs, self.run_reporter):
                done += 1
                if failure is not None:
                    failed[name] = failure
                outcome = "trained" if failure is None else f"failed ({failure.reason}):"
                reporter.note(f"{outcome} {name} ({done} of {len(tasks)})")
                reporter.on_progress("training runs", done, len(tasks))
        except Interrupted as stop:
            signal_name = signal.Signals(stop.signal_number).name
            raise Interrupted(f"stopped by {signal_name} {how_to_continue()}", stop.signal_number) from None
        except WorkerKilled:
            fewer = f"jobs {max(1, jobs // 2)} "
            raise BadInput(
                f"one of {jobs} processes was killed, most likely for lack of memory, {how_to_continue(fewer)}"
            ) from None
        return {name: failed[name] for name in tasks if name in failed}


# --- rows and runs ----------------------------------------------------------------------------------------------------


def run_name(row: str, seed: int) -> str:
    """The name of a run, and of its folder."""
    return f"{row}-seed-{seed}"


def select_rows(rows: Mapping[str, T], requested: str | None, kind: str) -> dict[str, T]:
    """The rows that `--rows A,B` names, in the order of `rows`; all rows if it is None."""
    names = list(rows) if requested is None else [name.strip() for name in requested.split(",")]
    for name in names:
        if name not in rows:
            raise BadInput(f"rows {requested}: no row {name!r} in this {kind}{did_you_mean(name, rows)}")
    return {name: row for name, row in rows.items() if name in names}


def check_run(recipe: Recipe, folder: RunFolder, data: Data) -> None:
    """Refuse a recipe that cannot be trained on these data, and a folder that holds a different run."""
    check_same_recipe(recipe, folder)
    check_data(recipe, data)
    if folder.has_run and checkpoints(folder.checkpoints):  # without one it starts over
        check_same_data(folder, data, "restore them, or choose another out", f"{folder.path}: ")


def check_same_recipe(recipe: Recipe, folder: RunFolder) -> None:
    """Refuse a folder that holds a run whose settings differ from this recipe's."""
    if not folder.has_run:
        return
    saved = flattened(folder.read_recipe()[0])
    free = {"sources", "train.device", "data.short_side", *fields_marked(recipe, MAY_CHANGE_ON_RESUME)}
    for key, value in flattened(recipe).items():
        if key in free or is_same_or_automatic(key, value, saved.get(key)):
            continue
        if key == "data.joined" and list(map(absolute_source, saved[key])) == list(map(absolute_source, value)):
            continue
        if key != "data.source" or not is_same_source(str(saved.get(key)), str(value)):
            raise BadInput(
                f"{folder.path} holds a run with {key} = {saved.get(key)!r}, this study needs {value!r}; "
                "choose another out"
            )


def check_monitored(recipe: Recipe) -> None:
    if recipe.train.monitor_every == 0:
        raise BadInput("train.monitor_every = 0: a study needs the last check of each run; leave it at 1")


def open_recipe_data(recipe: Recipe, several_labels: bool = False) -> Data:
    """The data of a recipe; several labels per image are refused unless the caller can use them."""
    data = open_data(with_short_side(recipe).data, recipe.encoder.channels)
    if not several_labels and not data.levels:  # a hierarchy has one leaf per image
        data.train.all_labels.check_single(recipe.data.source, "a comparison of runs by their accuracy")
    return data


def open_held_out(base: Recipe, because: str, hint: str = "", several_labels: bool = False) -> tuple[Recipe, Data]:
    """The recipe, fitted if it is an `auto` one, and its data with held-out images to compare runs on.

    Nothing is chosen on a test set: without a validation split, a tenth of the training images is held out.
    """
    base = resolve(base)  # once: a run that fits itself could not be continued
    data = open_recipe_data(base, several_labels)
    if data.summary["held_out_from"] == "test":
        base = base.with_set({"data.holdout": 0.1}, because=because)
        current_reporter().note(
            f"the data have a test split but no val split: 10% of the training images are held out instead{hint}"
        )
        data = open_recipe_data(base, several_labels)
    if data.train.class_ids() and not data.held_out.class_ids():
        raise BadInput(
            f"{base.data.source}: no held-out image has a label to compare runs on; leave out data.holdout=0, or add "
            "labels to val/"
        )
    return base, data


def read_run(path: Path) -> TrainedRun:
    """The finished run in this folder."""
    folder = RunFolder(path)
    folder.check_recipe_file()
    return TrainedRun(folder.read_recipe()[0], load_encoder(path), folder.metrics(), bool(has_collapsed(folder)))


def read_failure(folder: Path) -> Failure | None:
    """Why the run in this folder failed; None if no failure is recorded."""
    try:
        recorded = parse_json(read_text(folder / FAILURE_FILE))
        return Failure(str(recorded["reason"]), int(recorded["exit_code"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def default_jobs(recipe: Recipe) -> int:
    """One run per core for small encoders on a CPU, as far as memory allows; otherwise one run at a time."""
    device = pick_device(recipe.train.device)
    if recipe.encoder.name not in ("cnn", "linear") or device.type != "cpu":
        return 1
    available, needed = available_memory(device), estimate_memory(recipe, device)
    fitting = math.inf if available is None else available // max(BYTES_PER_RUN, needed or 0)
    return max(1, int(min(available_cores(), fitting)))
