"""Train several runs, one after another or in parallel processes, and measure them.

A sweep that is started again in the same folder continues where it stopped.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import shlex
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import torch

from supancl.data.decode import available_cores
from supancl.data.opening import open_data
from supancl.data.sources.folder import check_out_folder
from supancl.data.splits import Data
from supancl.distributed import require_single_process
from supancl.distributed.ranks import pick_device
from supancl.errors import BadInput, CheckFailed, Collapsed, Interrupted, NonFinite, SupanclError
from supancl.evaluation import PROTOCOLS, Settings
from supancl.evaluation.encoder import EvaluatedEncoder, EvaluationOptions, SourceCache, open_evaluated_encoder
from supancl.evaluation.protocols import evaluate
from supancl.evaluation.results import LEAST_GAIN, Row, rows_of_log, rows_of_result
from supancl.files import Output
from supancl.recipes import Recipe
from supancl.recipes.auto import with_short_side
from supancl.recipes.plugins import describe_plugin_error, load_plugin, loaded_plugins
from supancl.reporter import Reporter, current_reporter, report_to, warn
from supancl.runs.checkpoint import checkpoints
from supancl.runs.folder import RunFolder, check_same_data
from supancl.runs.log import StopCause, has_collapsed, read_end, read_stop
from supancl.stats import mean_interval
from supancl.sweeps import Sweep, run_name
from supancl.training.checks import available_memory, check_data
from supancl.training.loop import signals_that_stop
from supancl.training.run import continued_recipe, read_results
from supancl.training.start import resolve, train

BYTES_PER_RUN = 1e9  # of a process with a small encoder: 0.9 GB on the digits, most of it torch
ENDED = "a process of this study was killed, most likely for lack of memory: give fewer jobs; finished runs are kept"
MakeReporter = Callable[[], Reporter]
Result = dict[str, Any]


Outcomes = dict[str, StopCause | None]  # of each run by name; None: it is trained


class Task(NamedTuple):
    """A run to train or to continue: its recipe, its folder, and the weights that it starts from."""

    recipe: Recipe
    folder: Path
    start: str | None = None


class RunsFailed(CheckFailed):
    """Some runs of a sweep failed; the results of the others have been written."""

    def __init__(self, failed: Mapping[str, StopCause], result: Result, out: Path) -> None:
        first = next(iter(failed))
        super().__init__(
            f"failed runs: {len(failed)} of {len(result['rows'])}, in no mean ({', '.join(failed)}); the other results "
            f"are in {out}; retry continues them, with on_collapse warn past a collapse; "
            f"{first}: {failed[first].reason}",
            result,
        )
        self.exit_code = max(failure.exit_code for failure in failed.values())


def raise_failed(sweep: Sweep, outcomes: Outcomes, result: Result) -> None:
    """Raise RunsFailed if a run failed; call it once all results are written."""
    if failed := {name: failure for name, failure in outcomes.items() if failure}:
        raise RunsFailed(failed, result, sweep.out)


# --- training ---------------------------------------------------------------------------------------------------------


def check_folder(sweep: Sweep, base: Recipe) -> None:
    """Refuse a folder that cannot be used. Call it before reading the data, which may take an hour."""
    Output(sweep.out, replaces=Path.is_dir).check()
    if RunFolder(sweep.out).has_run:
        raise BadInput(f"{sweep.out} already holds a single run; choose another out for a study")
    for source in base.data.all_sources:
        check_out_folder(source, sweep.out)


def train_runs(
    sweep: Sweep, recipes: Mapping[str, Recipe], data: Data, starts: Mapping[str, str | None] | None = None
) -> Outcomes:
    """Train each run in out/NAME, or continue it; finished ones are only read.

    A run that fails is recorded and does not end the sweep. Nothing is trained if any folder holds a run with other
    settings or on other data: that would mix two sweeps. `starts` are the weights that runs start from.
    """
    require_single_process("a study")
    check_folder(sweep, next(iter(recipes.values())))
    reporter, missing, outcomes = current_reporter(), dict[str, Task](), Outcomes()
    for name, recipe in recipes.items():
        folder = RunFolder(sweep.out / name)
        check_same_recipe(recipe, folder)
        check_data(recipe, data)
        if checkpoints(folder.checkpoints) or folder.end_file.exists():  # without one it starts over
            check_same_data(folder, data, "restore them, or choose another out", f"{folder.path}: ")
        outcomes[name] = None if sweep.retry or read_end(folder) else read_failure(folder.path)
        if outcomes[name] is None and read_end(folder) is None:
            missing[name] = Task(recipe, folder.path, (starts or {}).get(name))
    total = len(recipes)
    done = total - len(missing)
    if done:
        reporter.note(f"runs: {total}, finished before: {done}, of which failed: {sum(map(bool, outcomes.values()))}")
    jobs = sweep.jobs or default_jobs(next(iter(recipes.values())))
    reporter.on_progress("training runs", done, total)
    try:
        for name, outcomes[name] in train_each(missing, jobs, sweep.run_reporter):
            done, failure = done + 1, outcomes[name]
            reporter.note(f"{f'failed ({failure.reason}):' if failure else 'trained'} {name} ({done} of {total})")
            reporter.on_progress("training runs", done, total)
    except Interrupted as stop:
        raise Interrupted(
            f"stopped by {signal.Signals(stop.signal_number).name} with {done} of {total} runs done; those in "
            f"progress are saved; continue with the same command and --out {shlex.quote(str(sweep.out))}",
            stop.signal_number,
        ) from None
    return outcomes


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
        raise BadInput(f"{base.data.source}: no held-out image has a label to compare runs on; set data.holdout")
    return base, data


def read_failure(folder: Path) -> StopCause | None:
    """Why the run in this folder failed: it collapsed, or its loss was not finite; None if it did not."""
    stop = read_stop(RunFolder(folder))
    return stop if stop is not None and stop.exit_code in (Collapsed.exit_code, NonFinite.exit_code) else None


def default_jobs(recipe: Recipe) -> int:
    """One run per core for small encoders on a CPU, as far as memory allows; otherwise one run at a time."""
    device = pick_device(recipe.train.device)
    if recipe.encoder.name not in ("cnn", "linear") or device.type != "cpu":
        return 1
    available = available_memory(device)
    fitting = math.inf if available is None else available // BYTES_PER_RUN
    return max(1, int(min(available_cores(), fitting)))


# --- processes --------------------------------------------------------------------------------------------------------


def train_run(task: Task, run_reporter: MakeReporter = Reporter) -> StopCause | None:
    """Train one run or continue it from its last checkpoint; returns why it failed."""
    has_run = RunFolder(task.folder).has_run
    try:
        with report_to(run_reporter()):
            train(task.recipe, out=task.folder, resume=has_run, init=None if has_run else task.start)
    except (Collapsed, NonFinite) as error:
        return StopCause(0, error.cause, error.exit_code)
    return None


def train_each(
    tasks: Mapping[str, Task], jobs: int, run_reporter: MakeReporter = Reporter
) -> Iterator[tuple[str, StopCause | None]]:
    """Train runs one after another, or `jobs` in parallel; yields each name when it ends, and its failure or None.

    Each process has its share of the runs and its own pipe. A signal, or a process that ends early, ends all of them;
    their runs are saved.
    """
    if jobs == 1 or len(tasks) <= 1:
        for name, task in tasks.items():
            yield name, train_run(task, run_reporter)
        return

    def stop(number: int, frame: Any) -> None:
        raise Interrupted("stopped", number)

    context, names = multiprocessing.get_context("spawn"), list(tasks)  # torch's threads do not survive a fork
    processes, busy = [], dict[Any, list[str]]()  # pipe -> what its process has yet to train
    previous_handlers = {number: signal.signal(number, stop) for number in signals_that_stop()}
    try:
        for share in (names[start::jobs] for start in range(min(jobs, len(names)))):
            ours, theirs = context.Pipe(duplex=False)
            todo = pickle.dumps(
                [tasks[name] for name in share]
            )  # a loss of one's own is known after its plugin is loaded
            processes.append(context.Process(target=_work, args=(theirs, todo, loaded_plugins(), run_reporter)))
            processes[-1].start()
            theirs.close()
            busy[ours] = share
        while busy:
            for connection in wait(list(busy)):
                assert isinstance(connection, Connection)
                try:
                    outcome = connection.recv()
                except (EOFError, OSError):
                    outcome = BadInput(ENDED)
                if isinstance(outcome, BaseException):
                    raise outcome
                yield busy[connection].pop(0), outcome
                if not busy[connection]:
                    del busy[connection]
    except BaseException:
        for process in processes:
            process.terminate()  # SIGTERM: it saves its run and ends
        raise
    finally:
        for process in processes:
            process.join()
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


def _work(connection: Connection, tasks: bytes, plugins: tuple[str, ...], run_reporter: MakeReporter) -> None:
    """Train these runs and send the outcome of each; a signal, an error or the parent's end is the last."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # while none is trained; a run in progress is stopped by it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    try:
        for file in plugins:
            load_plugin(file)
        for task in pickle.loads(tasks):
            connection.send(train_run(task, run_reporter))
        return
    except SupanclError as error:
        ended: BaseException = error
    except Exception as error:  # a traceback does not cross processes
        fault = describe_plugin_error(error)
        ended = BadInput(fault) if fault else RuntimeError(traceback.format_exc())
    with suppress(OSError):  # the parent has ended
        connection.send(ended)


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


class Measurement(NamedTuple):
    """One evaluation of a run: on its own data, or on `source`."""

    settings: Settings
    layer: str = "pooled"
    source: str | None = None


class RunEvaluator:
    """Measures runs one after another; nothing is measured twice, and data stay open for the next run."""

    def __init__(self, device: str, baselines: bool = False) -> None:
        self.options = EvaluationOptions(pick_device(device), baselines=baselines, sources=SourceCache())
        self._open: dict[tuple[Path, str], EvaluatedEncoder] = {}  # the last one

    def open_run(self, run: Path, layer: str = "pooled") -> EvaluatedEncoder:
        """The run's encoder at this layer."""
        if (run, layer) not in self._open:
            self._open = {(run, layer): open_evaluated_encoder(str(run), replace(self.options, layer=layer))}
        return self._open[run, layer]

    def rows(self, run: Path, measurement: Measurement) -> list[Row]:
        """The rows saved for these weights by an earlier call or by `supancl evaluate`, or measured now."""
        evaluated = self.open_run(run, measurement.layer)
        result = evaluate(evaluated, measurement.settings, measurement.source, saved=read_results(run).values())
        return rows_of_result(measurement.settings.name, result, str(run))

    def measure(
        self, run: Path, measures: Iterable[str], split: str = "held-out", k: int | None = None
    ) -> dict[str, float | None]:
        """Losses of the last epoch, and the measures as in `supancl evaluate`; None, with a warning, without one."""
        losses = {row.metric: row.value for row in rows_of_log(run) if row.protocol == "training"}
        found: dict[str, float | None] = {name: losses.get(name, math.nan) for name in ("ssl", "sup")}
        for name in measures:
            protocol, metric = MEASURES[name]
            try:
                settings = PROTOCOLS[protocol].given({"split": split, **({"k": k} if protocol == "knn" else {})})
                rows = self.rows(run, Measurement(settings))
                found[name] = next((row.value for row in rows if row.metric == metric), None)
            except BadInput as error:
                warn(f"{run.name}: {protocol} is not measured: {error}")
                found[name] = None
        return found


def collect_results(
    sweep: Sweep,
    outcomes: Outcomes,
    labels: Mapping[str, Mapping[str, Any]],
    measures: Iterable[str],
    measure: Callable[[Path], Mapping[str, Any]],
) -> list[Result]:
    """For each run: its row's labels, seed, values (None if it failed), whether it collapsed, why it failed."""
    results, nothing = [], dict.fromkeys(measures)
    for row, seed in ((row, seed) for row in labels for seed in range(sweep.seeds)):
        folder, failure = sweep.out / run_name(row, seed), outcomes[run_name(row, seed)]
        if failure is None:
            ended = {**measure(folder), "collapsed": has_collapsed(RunFolder(folder)), "failed": None}
        else:
            ended = {"collapsed": failure.exit_code == Collapsed.exit_code, "failed": failure.reason}
        results.append({**labels[row], "seed": seed, **nothing, **ended})
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
