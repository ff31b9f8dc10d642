"""The sweep runner: named recipes with several seeds, trained one after another or in parallel.

A sweep that is started again in the same folder continues where it stopped.
"""

from __future__ import annotations

import multiprocessing
import shlex
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import chain
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, TypeVar

import torch

from supancl.core.precision import pick_device
from supancl.data.decode import available_cores
from supancl.data.label_pairs import check_one_label
from supancl.data.opening import open_data
from supancl.data.sources.folder import check_out_folder
from supancl.data.splits import Data
from supancl.distributed import require_single_process
from supancl.errors import BadInput, Collapsed, Interrupted, NonFinite, did_you_mean, plural
from supancl.recipes import Recipe
from supancl.recipes.plugin_files import load_plugin, loaded_plugins
from supancl.recipes.plugins import describe_plugin_error
from supancl.recipes.recipe import resolve_warmup
from supancl.recipes.warmup import describe_resolution, resolve_label_warmup
from supancl.reporter import Reporter, current_reporter, report_to
from supancl.runs.checkpoint import checkpoints
from supancl.runs.folder import RunFolder, check_same_data, read_end
from supancl.sweeps.runs import (
    FAILURE_FILE,
    Failure,
    Runs,
    check_same_recipe,
    read_failure,
    read_run,
    record_failure,
    retry_flags,
)
from supancl.training.cuda.reuse import share_step
from supancl.training.memory import available_memory, check_memory, estimate_memory
from supancl.training.signals import signals_that_stop
from supancl.training.start import changed_settings, check_data, resolve, train, with_short_side

T = TypeVar("T")
MakeReporter = Callable[[], Reporter]
BYTES_PER_RUN = 1e9  # at least, of a process with a small encoder: 0.9 GB on the digits, most of it torch
SHORT_RUNS = 60.0  # seconds; of fewer nothing is said
_stopping: Event | None = None  # set in workers


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
        if self.seeds < 1:
            raise BadInput(f"seeds {self.seeds}: must be at least 1")
        if self.jobs is not None and self.jobs < 1:
            raise BadInput(f"jobs {self.jobs}: must be at least 1")

    @property
    def reporter(self) -> Reporter:
        return current_reporter()

    def check_folder(self, base: Recipe) -> None:
        """Refuse a folder that cannot be used. Call it before reading the data, which may take an hour."""
        folder = RunFolder(self.out)
        folder.check_place()
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

    def jobs_for(self, recipe: Recipe) -> int:
        return self.jobs or default_jobs(recipe)

    def train(self, recipes: Mapping[str, Recipe], data: Data) -> Runs:
        """Train each run in out/NAME, or continue it; finished ones are only read.

        A run that fails is recorded and does not end the sweep. Nothing is trained if any folder holds a run with
        other settings or on other data: that would mix two sweeps.
        """
        require_single_process("a study")
        images = len(data.train)
        resolved = {name: resolve_label_warmup(resolve_warmup(recipe), images) for name, recipe in recipes.items()}
        lines = [describe_resolution(recipes[name], recipe, images) for name, recipe in resolved.items()]
        for line in dict.fromkeys(chain.from_iterable(lines)):
            self.reporter.note(line)
        self.check_folder(next(iter(resolved.values())))
        for name, recipe in resolved.items():
            check_run(recipe, RunFolder(self.out / name), data)
        failed = self._train_missing(resolved)
        return Runs(
            {name: read_run(self.out / name) for name in resolved if name not in failed},
            {name: failed[name] for name in resolved if name in failed},
        )

    def _train_missing(self, recipes: Mapping[str, Recipe]) -> dict[str, Failure]:
        """Train the runs that have neither finished nor failed; returns all failures, old and new."""
        finished = [name for name in recipes if read_end(RunFolder(self.out / name)) is not None]
        failed = {
            name: failure
            for name in recipes
            if name not in finished and not self.retry and (failure := read_failure(self.out / name)) is not None
        }
        missing = {name: recipe for name, recipe in recipes.items() if name not in finished and name not in failed}
        done, total = len(recipes) - len(missing), plural(len(recipes), "run")
        if finished:
            self.reporter.note(f"{len(finished)} of {total} {'is' if len(finished) == 1 else 'are'} already finished")
        if failed:
            self.reporter.note(f"failed before: {', '.join(failed)}; continue them with {retry_flags(failed)}")
        jobs = self.jobs_for(next(iter(recipes.values())))
        for name, recipe in missing.items():
            try:
                check_memory(recipe, pick_device(recipe.train.device))
            except BadInput as error:
                raise BadInput(f"{name}: {error}") from None

        def how_to_continue(extra_flags: str = "") -> str:
            return (
                f"with {done} of {total} done; those in progress are saved; continue with the same "
                f"command and {extra_flags}--out {shlex.quote(str(self.out))}"
            )

        self.reporter.on_progress("training runs", done, len(recipes))
        try:
            for name, failure in train_each(missing, self.out, jobs, self.run_reporter):
                done += 1
                if failure is not None:
                    failed[name] = failure
                outcome = "trained" if failure is None else f"failed ({failure.reason}):"
                self.reporter.note(f"{outcome} {name} ({done} of {len(recipes)})")
                self.reporter.on_progress("training runs", done, len(recipes))
        except Interrupted as stop:
            signal_name = signal.Signals(stop.signal_number).name
            raise Interrupted(f"stopped by {signal_name} {how_to_continue()}", stop.signal_number) from None
        except BrokenProcessPool:
            raise BadInput(
                f"one of {jobs} processes was killed, most likely for lack of memory, "
                f"{how_to_continue(f'jobs {max(1, jobs // 2)} ')}"
            ) from None
        return failed


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


def check_monitored(recipe: Recipe) -> None:
    if recipe.train.monitor_every == 0:
        raise BadInput("train.monitor_every = 0: a study needs the last check of each run; leave it at 1")


def open_recipe_data(recipe: Recipe, several_labels: bool = False) -> Data:
    """The data of a recipe; several labels per image are refused unless the caller can use them."""
    data = open_data(with_short_side(recipe).data, recipe.encoder.channels)
    if not several_labels and not data.levels:  # a hierarchy has one leaf per image
        check_one_label(data.train.pairs, recipe.data.source, "a comparison of runs by their accuracy")
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
            f"{base.data.source}: no held-out image has a label to evaluate on; leave out "
            "data.holdout=0, or add labels to val/"
        )
    return base, data


# --- training ---------------------------------------------------------------------------------------------------------


def default_jobs(recipe: Recipe) -> int:
    """One run per core for small encoders on a CPU, as far as memory allows; otherwise one run at a time."""
    device = pick_device(recipe.train.device)
    if recipe.encoder.name not in ("cnn", "linear") or device.type != "cpu":
        return 1
    available, needed = available_memory(device), estimate_memory(recipe, device)
    bytes_per_run = max(BYTES_PER_RUN, needed or 0)
    fitting = available_cores() if available is None else int(available // bytes_per_run)
    return max(1, min(available_cores(), fitting))


def train_each(
    recipes: Mapping[str, Recipe], out: Path, jobs: int, run_reporter: MakeReporter = Reporter
) -> Iterator[tuple[str, Failure | None]]:
    """Train runs one after another, or `jobs` in parallel; yields each name when it ends, and its failure or None."""
    if jobs == 1 or len(recipes) <= 1:
        with share_step():
            for name, recipe in recipes.items():
                yield name, train_run(recipe, out / name, run_reporter)
        return

    def stop(number: int, frame: Any) -> None:
        raise Interrupted("stopped", number)

    previous_handlers = {number: signal.signal(number, stop) for number in signals_that_stop()}
    # spawned, not forked: torch's threads do not survive a fork
    context = multiprocessing.get_context("spawn")
    stopping = context.Event()
    pool = ProcessPoolExecutor(jobs, context, initializer=_start_worker, initargs=(stopping, loaded_plugins()))
    try:
        futures = {
            pool.submit(_train_in_worker, recipe, out / name, run_reporter): name for name, recipe in recipes.items()
        }
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BaseException as error:
        stopping.set()  # the pool has queued one run more than it has workers, and cannot cancel it
        workers = list((getattr(pool, "_processes", None) or {}).values())
        for worker in workers:
            worker.terminate()  # SIGTERM: each saves its run and exits
        pool.shutdown(cancel_futures=True)  # waits, so that the exit codes are known
        if isinstance(error, BrokenProcessPool) and _failed_to_start([worker.exitcode for worker in workers]):
            raise BadInput(
                f"the {jobs} processes of this study could not start (see the error above): each imports your "
                'file again; call supancl in it under if __name__ == "__main__":, or give --jobs 1'
            ) from None
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


def _failed_to_start(exit_codes: Sequence[int | None]) -> bool:
    """Whether a worker exited with an error and none was killed."""
    return -signal.SIGKILL not in exit_codes and any(code is not None and code > 0 for code in exit_codes)


def _start_worker(stopping: Event, plugins: Sequence[str] = ()) -> None:
    """Set up a worker: one thread, the plugins, and the event that keeps it from starting another run."""
    global _stopping
    _stopping = stopping
    torch.set_num_threads(1)
    for file in plugins:
        load_plugin(file)


def _train_in_worker(recipe: Recipe, folder: Path, run_reporter: MakeReporter = Reporter) -> Failure | None:
    if _stopping is not None and _stopping.is_set():
        return None
    try:
        return train_run(recipe, folder, run_reporter)
    except Exception as error:
        if fault := describe_plugin_error(error):  # here, because the traceback does not cross processes
            raise BadInput(fault) from error
        raise


def train_run(recipe: Recipe, path: Path, run_reporter: MakeReporter = Reporter) -> Failure | None:
    """Train one run or continue it from its last checkpoint; a failure is recorded in its folder and returned."""
    folder = RunFolder(path)
    (path / FAILURE_FILE).unlink(missing_ok=True)
    to_train: Recipe | None = recipe
    if folder.has_run:
        saved = folder.read_recipe()[0]
        changed = changed_settings(recipe, saved)
        to_train = saved.with_set(changed) if changed else None
    try:
        with report_to(run_reporter()):
            train(to_train, out=path, resume=folder.has_run)
    except (Collapsed, NonFinite) as error:
        failure = Failure(error.cause, error.exit_code)
        record_failure(path, failure)
        return failure
    return None
