"""Train several runs, one after another or in parallel processes, and measure them.

A sweep that is started again in the same folder continues where it stopped.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import shlex
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from supancl.config import parse_json
from supancl.data.decode import available_cores
from supancl.data.opening import is_same_source, open_data
from supancl.data.sources.folder import check_out_folder
from supancl.data.splits import Data
from supancl.distributed import require_single_process
from supancl.distributed.ranks import pick_device
from supancl.errors import BadInput, CheckFailed, Collapsed, Interrupted, NonFinite, SupanclError, did_you_mean
from supancl.evaluation import PROTOCOLS as SETTINGS
from supancl.evaluation.encoder import EvaluatedEncoder, EvaluationOptions, SourceCache, open_evaluated_encoder
from supancl.evaluation.protocols import evaluate
from supancl.evaluation.results import LEAST_GAIN, Row, rows_of_log, rows_of_result
from supancl.files import Output, read_text, write_text
from supancl.probes.knn import DEFAULT_K
from supancl.recipes import Recipe
from supancl.recipes.auto import with_short_side
from supancl.recipes.plugins import describe_plugin_error, load_plugin, loaded_plugins
from supancl.reporter import Reporter, current_reporter, report_to, warn
from supancl.runs.checkpoint import checkpoints
from supancl.runs.folder import RunFolder, check_same_data
from supancl.runs.log import read_end
from supancl.stats import mean_interval
from supancl.training.checks import available_memory, check_data, estimate_memory
from supancl.training.loop import signals_that_stop
from supancl.training.run import Run, continued_recipe, load, read_result
from supancl.training.start import resolve, train
from supancl.training.trainer import share_step

T = TypeVar("T")
FAILURE_FILE = "failed.json"  # in the folder of a failed run: why it failed
BYTES_PER_RUN = 1e9  # at least, of a process with a small encoder: 0.9 GB on the digits, most of it torch
ENDED = (
    "a process of this study ended early: it was killed, most likely for lack of memory (give fewer jobs), or could "
    'not import your file (call supancl in it under if __name__ == "__main__":); finished runs are kept'
)
MakeReporter = Callable[[], Reporter]
Result = dict[str, Any]


class Failure(NamedTuple):
    """Why a run ended before its last epoch, and the exit code it would have had on its own."""

    reason: str
    exit_code: int


class Task(NamedTuple):
    """A run to train or to continue: its recipe, its folder, and the weights that it starts from."""

    recipe: Recipe
    folder: Path
    start: str | None = None


class Runs(NamedTuple):
    """The runs of a sweep by name: those that finished, and those that failed."""

    trained: dict[str, Run]
    failed: dict[str, Failure]


class RunsFailed(CheckFailed):
    """Some runs of a sweep failed; the results of the others have been written."""

    def __init__(self, failed: Mapping[str, Failure], result: Result, out: Path) -> None:
        first = next(iter(failed))
        super().__init__(
            f"failed runs: {len(failed)} of {len(result['rows'])}, in no mean ({', '.join(failed)}); the other results "
            f"are in {out}; retry continues them, with on_nan skip or on_collapse warn past what stopped them; "
            f"{first}: {failed[first].reason}",
            result,
        )
        self.exit_code = max(failure.exit_code for failure in failed.values())


@dataclass(frozen=True)
class Sweep:
    """Settings of a sweep: each row, a named recipe, is trained with seeds 0 to `seeds` - 1 in out/ROW-seed-N."""

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
        Output(self.out, replaces=Path.is_dir).check()
        if RunFolder(self.out).has_run:
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
        self.check_folder(next(iter(recipes.values())))
        reporter, missing, failed = current_reporter(), dict[str, Task](), dict[str, Failure]()
        for name, recipe in recipes.items():
            folder = RunFolder(self.out / name)
            check_same_recipe(recipe, folder)
            check_data(recipe, data)
            if checkpoints(folder.checkpoints) or folder.end_file.exists():  # without one it starts over
                check_same_data(folder, data, "restore them, or choose another out", f"{folder.path}: ")
            failure = None if self.retry else read_failure(folder.path)
            if read_end(folder) is None and failure is not None:
                failed[name] = failure
            elif read_end(folder) is None:
                missing[name] = Task(recipe, folder.path, (starts or {}).get(name))
        total = len(recipes)
        done = total - len(missing) - len(failed)
        if done or failed:
            reporter.note(f"runs: {total}, finished before: {done}, failed before: {', '.join(failed) or 0}")
        jobs = self.jobs or default_jobs(next(iter(recipes.values())))
        reporter.on_progress("training runs", done, total)
        try:
            for name, failure in train_each(missing, jobs, self.run_reporter):
                done += 1
                if failure is not None:
                    failed[name] = failure
                outcome = "trained" if failure is None else f"failed ({failure.reason}):"
                reporter.note(f"{outcome} {name} ({done} of {total})")
                reporter.on_progress("training runs", done, total)
        except Interrupted as stop:
            raise Interrupted(
                f"stopped by {signal.Signals(stop.signal_number).name} with {done} of {total} runs done; those in "
                f"progress are saved; continue with the same command and --out {shlex.quote(str(self.out))}",
                stop.signal_number,
            ) from None
        trained = {name: load(self.out / name) for name in recipes if name not in failed}
        return Runs(trained, {name: failed[name] for name in recipes if name in failed})

    def raise_failed(self, runs: Runs, result: Result) -> None:
        """Raise RunsFailed if a run failed; call it once all results are written."""
        if runs.failed:
            raise RunsFailed(runs.failed, result, self.out)


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


def check_same_recipe(recipe: Recipe, folder: RunFolder) -> None:
    """Refuse a folder that holds a run whose settings differ from this recipe's."""
    if folder.has_run:
        continued_recipe(folder, recipe)


def check_monitored(recipe: Recipe) -> None:
    if recipe.train.monitor_every == 0:
        raise BadInput("train.monitor_every = 0: a study needs the last check of each run; leave it at 1")


def open_recipe_data(recipe: Recipe, several_labels: bool = False) -> Data:
    """The data of a recipe; several labels per image are refused unless the caller can use them."""
    data = open_data(with_short_side(recipe).data, recipe.encoder.channels)
    if not several_labels and not data.levels:  # a hierarchy has one leaf per image
        data.train.all_labels.check_single(recipe.data.source, "a comparison of runs by their accuracy")
    return data


def open_held_out(base: Recipe, because: str, several_labels: bool = False) -> tuple[Recipe, Data]:
    """The recipe, fitted if it is an `auto` one, and its data with held-out images to compare runs on.

    Nothing is chosen on a test set: without a validation split, a tenth of the training images is held out.
    """
    base = resolve(base)  # once: a run that fits itself could not be continued
    data = open_recipe_data(base, several_labels)
    if data.summary["held_out_from"] == "test":
        base = base.with_set({"data.holdout": 0.1}, because=because)
        current_reporter().note("no val split: 10% of the training images are held out instead of the test split")
        data = open_recipe_data(base, several_labels)
    if data.train.class_ids() and not data.held_out.class_ids():
        raise BadInput(
            f"{base.data.source}: no held-out image has a label to compare runs on; leave out data.holdout=0, or add "
            "labels to val/"
        )
    return base, data


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


# --- processes --------------------------------------------------------------------------------------------------------


def train_run(task: Task, run_reporter: MakeReporter = Reporter) -> Failure | None:
    """Train one run or continue it from its last checkpoint; a failure is recorded in its folder and returned."""
    has_run = RunFolder(task.folder).has_run
    (task.folder / FAILURE_FILE).unlink(missing_ok=True)
    try:
        with report_to(run_reporter()):
            train(task.recipe, out=task.folder, resume=has_run, init=None if has_run else task.start)
    except (Collapsed, NonFinite) as error:
        failure = Failure(error.cause, error.exit_code)
        write_text(task.folder / FAILURE_FILE, json.dumps(failure._asdict()) + "\n")
        return failure
    return None


def train_each(
    tasks: Mapping[str, Task], jobs: int, run_reporter: MakeReporter = Reporter
) -> Iterator[tuple[str, Failure | None]]:
    """Train runs one after another, or `jobs` in parallel; yields each name when it ends, and its failure or None.

    Each process has its own pipe. A signal, or a process that ends early, ends all of them; their runs are saved.
    """
    if jobs == 1 or len(tasks) <= 1:
        with share_step():
            for name, task in tasks.items():
                yield name, train_run(task, run_reporter)
        return

    def stop(number: int, frame: Any) -> None:
        raise Interrupted("stopped", number)

    context, names = multiprocessing.get_context("spawn"), iter(tasks)  # torch's threads do not survive a fork
    processes: dict[Connection, Any] = {}
    busy: dict[Connection, str] = {}
    previous_handlers = {number: signal.signal(number, stop) for number in signals_that_stop()}

    def hand_out(connection: Connection) -> None:
        """Give a process its next run; without one, closing the pipe ends it."""
        if (name := next(names, None)) is None:
            connection.close()
            return
        busy[connection] = name
        with suppress(OSError):  # it was killed, as reading from it will show
            connection.send(tasks[name])

    try:
        for _ in range(min(jobs, len(tasks))):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, loaded_plugins(), run_reporter))
            process.start()
            processes[ours] = process
            theirs.close()
            hand_out(ours)
        while busy:
            for connection in wait(list(busy)):
                assert isinstance(connection, Connection)
                name = busy.pop(connection)
                try:
                    outcome = connection.recv()
                except (EOFError, OSError):
                    outcome = BadInput(ENDED)
                if isinstance(outcome, BaseException):
                    raise outcome
                yield name, outcome
                hand_out(connection)
    except BaseException:
        for process in processes.values():
            process.terminate()  # SIGTERM: it saves its run and ends
        raise
    finally:
        for connection, process in processes.items():
            connection.close()
            process.join()
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


def _work(connection: Connection, plugins: tuple[str, ...], run_reporter: MakeReporter) -> None:
    """Train the runs that come through the pipe until it closes; a signal, an error or the parent's end is the last."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # while it waits; a run in progress is stopped by it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    with suppress(EOFError, OSError):
        for file in plugins:
            load_plugin(file)
        while True:
            outcome: Failure | BaseException | None
            task = connection.recv()
            try:
                outcome = train_run(task, run_reporter)
            except SupanclError as error:
                outcome = error
            except Exception as error:  # a traceback does not cross processes
                fault = describe_plugin_error(error)
                outcome = BadInput(fault) if fault else RuntimeError(traceback.format_exc())
            connection.send(outcome)
            if isinstance(outcome, BaseException):
                return


def _end_with_parent() -> None:
    """Wait until the process that started this one has ended, then stop the run as a signal does."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


# --- measuring --------------------------------------------------------------------------------------------------------

# measure -> protocol and metric of its row
MEASURES = {
    "knn": ("knn", "accuracy"),
    "linear": ("linear", "accuracy"),
    "ratio": ("variance", "ratio"),
    "knn_map": ("knn", "map"),  # of images with several labels
    "linear_map": ("linear", "map"),
    "gain": ("linear", LEAST_GAIN),  # over random weights, at least
}


@dataclass(frozen=True)
class Measurement:
    """One call of a protocol: on the run's own data, or on `source`."""

    protocol: str
    split: str = "held-out"
    probe: str = "lbfgs"
    layer: str = "pooled"
    source: str | None = None
    k: int | None = DEFAULT_K  # of knn; None: as many as suit the references

    def matches(self, row: Row, run_source: str, weights: str) -> bool:
        """Whether a saved row is this measurement of an encoder with these weights."""
        settings = row.settings
        k = settings.get("default_k") if self.k is None else self.k
        wanted = {"layer": self.layer, "probe": self.probe, "k": k}
        return (
            (row.protocol, row.digest) == (self.protocol, weights)
            and is_same_source(row.data, self.source or run_source)
            and all(settings[name] == value for name, value in wanted.items() if name in settings)
            and self.split in (settings.get("split"), "test" if settings.get("judged") == "test" else "")
            and not set(row.changed) - {"split", *wanted}
        )

    def measure(self, evaluated: EvaluatedEncoder) -> Result:
        """Run the protocol; its result is also saved in the run folder."""
        own = {"k": self.k} if self.protocol == "knn" else {"probe": self.probe} if self.protocol == "linear" else {}
        return evaluate(evaluated, SETTINGS[self.protocol].given({**own, "split": self.split}), self.source)


class RunEvaluator:
    """Measures runs one after another; nothing is measured twice, and data stay open for the next run."""

    def __init__(self, device: str, baselines: bool = False) -> None:
        self.device, self.baselines, self.sources = device, baselines, SourceCache()
        self._open: tuple[Path, str, EvaluatedEncoder] | None = None

    def open_run(self, run: Path, layer: str = "pooled") -> EvaluatedEncoder:
        """The run's encoder at this layer; the last one stays open."""
        if self._open is None or self._open[:2] != (run, layer):
            device = pick_device(self.device)
            options = EvaluationOptions(device, layer=layer, sources=self.sources, baselines=self.baselines)
            self._open = run, layer, open_evaluated_encoder(str(run), options)
        return self._open[2]

    def rows(self, run: Path, measurement: Measurement) -> list[Row]:
        """The rows saved for these weights by an earlier call or by `supancl evaluate`, or measured now."""
        evaluated = self.open_run(run, measurement.layer)
        assert evaluated.recipe is not None
        source, weights = evaluated.recipe.data.source, evaluated.weights
        saved = (row for name, result in saved_results(run) for row in rows_of_result(name, result, str(run)))
        kept = [row for row in saved if measurement.matches(row, source, weights)]
        return kept or rows_of_result(measurement.protocol, measurement.measure(evaluated))

    def measure(
        self, run: Path, measures: Iterable[str], split: str = "held-out", k: int | None = None
    ) -> dict[str, float | None]:
        """Losses of the last epoch, and the measures as in `supancl evaluate`; None, with a warning, without one."""
        losses = {row.metric: row.value for row in rows_of_log(run) if row.protocol == "training"}
        found: dict[str, float | None] = {name: losses.get(name, math.nan) for name in ("ssl", "sup")}
        for name in measures:
            protocol, metric = MEASURES[name]
            try:
                rows = self.rows(run, Measurement(protocol, split, k=k))
                found[name] = next((row.value for row in rows if row.metric == metric), None)
            except BadInput as error:
                warn(f"{run.name}: {protocol} is not measured: {error}")
                found[name] = None
        return found


def has_projector(run: Path) -> bool:
    """Whether the projector was saved."""
    return (run / "projector.safetensors").is_file()


def saved_results(run: Path) -> Iterator[tuple[str, Result]]:
    """The evaluations in a run folder by name; damaged files count as missing."""
    for file in sorted(RunFolder(run).evaluations.glob("*.json")):
        with suppress(BadInput):
            yield file.stem, read_result(file)


def collect_results(
    sweep: Sweep,
    runs: Runs,
    labels: Mapping[str, Mapping[str, Any]],
    measures: Iterable[str],
    measure: Callable[[Path], Mapping[str, float | None]],
) -> list[Result]:
    """For each run: its row's labels, seed, values (None if it failed), whether it collapsed, why it failed."""
    results = []
    for row, label in labels.items():
        for seed in range(sweep.seeds):
            name = run_name(row, seed)
            failure, measured = runs.failed.get(name), dict[str, float | None](dict.fromkeys(measures))
            if failure is None:
                measured |= measure(sweep.out / name)
            collapsed = runs.trained[name].collapsed if failure is None else failure.exit_code == Collapsed.exit_code
            reason = None if failure is None else failure.reason
            results.append({**label, "seed": seed, **measured, "collapsed": collapsed, "failed": reason})
    return results


def summarize(results: Iterable[Result], label: Mapping[str, Any], measures: Iterable[str]) -> Result:
    """Mean and half a 95% interval of each measure over the runs of a row that did not fail; nan: none."""
    of_row = [result for result in results if label.items() <= result.items()]
    finished = [result for result in of_row if not result["failed"]]
    entry: Result = {**label, "n": len(of_row), "measured": len(finished)}
    entry |= {end: sum(bool(result[end]) for result in of_row) for end in ("collapsed", "failed")}
    for key in measures:
        mean, low, _ = mean_interval([math.nan if result[key] is None else float(result[key]) for result in finished])
        entry[key], entry[f"{key}_half_interval"] = mean, mean - low if math.isfinite(low) else math.nan
    return entry
