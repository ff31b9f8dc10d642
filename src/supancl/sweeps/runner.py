"""Several runs of one study: trained one after another or side by side, and continued where they were left."""

from __future__ import annotations

import json
import math
import multiprocessing
import shlex
import signal
import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from supancl.config import flattened
from supancl.core.encoders import Encoder
from supancl.data.sources.readers import check_apart
from supancl.data.splits import Data, open_data, same_source
from supancl.data.store.images import cores
from supancl.distributed import by_one
from supancl.errors import BadInput, CheckFailed, Collapsed, Interrupted, NonFinite, counted
from supancl.files import write_text
from supancl.recipes import Recipe
from supancl.recipes.plugins import fault_in_own, load_plugin, loaded_plugins
from supancl.recipes.recipe import describe_resolution, resolve_warmup
from supancl.reporter import Reporter
from supancl.training.cuda.reuse import one_step
from supancl.training.loop import pretrain
from supancl.training.preflight import (
    HOW,
    agrees,
    asked_anew,
    check_data,
    check_same_data,
    pick_device,
    with_short_side,
)
from supancl.weights.checkpoint import checkpoints, load_encoder, load_newest
from supancl.weights.run_folder import RunFolder, next_folder

FAILED = "failed.json"  # in the folder of a run that could not go on, and why
_stopping: Event | None = None  # in a worker of several


class Trained(NamedTuple):
    """What a study needs of a finished run."""

    recipe: Recipe
    encoder: Encoder
    metrics: list[dict[str, Any]]
    collapsed: bool

    def last_epoch(self, name: str) -> float:
        """A training value averaged over the rows of the last epoch."""
        rows = [row for row in self.metrics if row["kind"] == "train"]
        values = [row[name] for row in rows if row["epoch"] == rows[-1]["epoch"] and row[name] is not None]
        return sum(values) / len(values) if values else math.nan


class Failed(NamedTuple):
    """Why a run ended before its last epoch, with the exit code that it would have had alone."""

    reason: str
    exit_code: int

    @property
    def collapsed(self) -> bool:
        return self.exit_code == Collapsed.exit_code

    @property
    def not_finite(self) -> bool:
        return self.exit_code == NonFinite.exit_code


class Runs(NamedTuple):
    """The runs of a study by name: those that ended as they should, and those that could not go on."""

    trained: dict[str, Trained]
    failed: dict[str, Failed]

    def reason(self, name: str) -> str | None:
        return self.failed[name].reason if name in self.failed else None


def way_on(failed: Mapping[str, Failed]) -> str:
    """The flags with which failed runs go on; what ended one, a loss that was no number say, would only do so again."""
    ends = list(failed.values())
    skip = " --on-nan skip" if any(failure.not_finite for failure in ends) else ""
    return f"--retry{skip}" + (" --on-collapse warn" if any(failure.collapsed for failure in ends) else "")


class RunsFailed(CheckFailed):
    """Some runs of a study failed; what the others gave has been written."""

    def __init__(self, failed: Mapping[str, Failed], result: dict[str, Any], out: Path) -> None:
        first = next(iter(failed))
        are = "is" if len(failed) == 1 else "are"
        count = f"{len(failed)} of {counted(len(result['rows']), 'run')} failed and {are} in no mean"
        not_finite = any(failure.not_finite for failure in failed.values())
        anew = ", or begin another study with a lower --set optimizer.lr" if not_finite else ""
        super().__init__(
            f"{count} ({', '.join(failed)}); what the others gave is in {out}, and {way_on(failed)} "
            f"goes on with them from their last checkpoint{anew}; {first}: {failed[first].reason}",
            result,
        )
        self.exit_code = max(failure.exit_code for failure in failed.values())


def place_of(typed: str | None, name: str, base: Recipe) -> Path:
    """The folder of a study; one that cannot be is told before the data are read, which may take an hour."""
    out = Path(typed) if typed else next_folder(name)
    _check_place(base, out)
    return out


def _check_place(base: Recipe, out: Path) -> None:
    folder = RunFolder(out)
    folder.check_place()
    if folder.holds_run:
        raise BadInput(f"{out} already holds a run, and a study is a folder of runs; choose another --out")
    check_apart(base.data.source, out)


def train_all(
    recipes: Mapping[str, Recipe],
    data: Data,
    out: Path,
    reporter: Reporter,
    jobs: int | None = None,
    retry: bool = False,
) -> Runs:
    """Train each recipe in out/NAME, or go on with it where it was left; finished ones are only read.

    A run that cannot go on is recorded and does not end the study. All are refused, before any is trained, where one
    of them cannot be: other settings, or data that have changed, would make two studies of it.
    """
    by_one("a study")
    written, recipes = recipes, {name: resolve_warmup(recipe) for name, recipe in recipes.items()}
    for line in dict.fromkeys(describe_resolution(written[name], recipe) for name, recipe in recipes.items()):
        if line:
            reporter.note(line)
    _check_place(next(iter(recipes.values())), out)
    _check_all(recipes, data, out)
    jobs = jobs or default_jobs(next(iter(recipes.values())))
    finished = [name for name in recipes if is_finished(RunFolder(out / name), recipes[name])]
    failed = {
        name: failure
        for name in recipes
        if name not in finished and not retry and (failure := failure_of(out / name)) is not None
    }
    waiting = {name: recipe for name, recipe in recipes.items() if name not in finished and name not in failed}
    done = len(recipes) - len(waiting)
    if finished:
        are = "is" if len(finished) == 1 else "are"
        reporter.note(f"{len(finished)} of {counted(len(recipes), 'run')} {are} already there")
    if failed:
        reporter.note(f"failed before: {', '.join(failed)}; {way_on(failed)} goes on with them")

    def left(more: str = "") -> str:
        return (
            f"with {done} of {counted(len(recipes), 'run')} done, what had begun is saved; continue with the same "
            f"command and {more}--out {shlex.quote(str(out))}"
        )

    try:
        for name, failure in _trained(waiting, out, jobs):
            done += 1
            if failure is not None:
                failed[name] = failure
            told = "trained" if failure is None else f"failed ({failure.reason}):"
            reporter.note(f"{told} {name} ({done} of {len(recipes)})")
    except Interrupted as stop:
        by = signal.Signals(stop.signal_number).name
        raise Interrupted(f"stopped by {by} {left()}", stop.signal_number) from None
    except BrokenProcessPool:
        raise BadInput(
            f"one of {jobs} processes was killed, most likely for lack of memory, "
            f"{left(f'--jobs {max(1, jobs // 2)} ')}"
        ) from None
    ordered = {name: failed[name] for name in recipes if name in failed}
    return Runs({name: _read(RunFolder(out / name)) for name in recipes if name not in failed}, ordered)


def _check_all(recipes: Mapping[str, Recipe], data: Data, out: Path) -> None:
    for name, recipe in recipes.items():
        folder = RunFolder(out / name)
        check_same_recipe(recipe, folder)
        check_data(recipe, data)
        if folder.holds_run and checkpoints(folder.checkpoints):  # one without begins anew, on the data as they are
            check_same_data(folder, data, "bring them back, or choose another --out", f"{folder.path}: ")


def _trained(recipes: Mapping[str, Recipe], out: Path, jobs: int) -> Iterator[tuple[str, Failed | None]]:
    """The names of the runs as they end, one after another or `jobs` at a time, and why they failed."""
    if jobs == 1 or len(recipes) <= 1:
        with one_step():
            for name, recipe in recipes.items():
                yield name, _train_one(recipe, out / name)
        return

    def stop(number: int, frame: Any) -> None:
        raise Interrupted("stopped", number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    # spawned, not forked: torch's threads do not survive a fork
    context = multiprocessing.get_context("spawn")
    stopping = context.Event()
    pool = ProcessPoolExecutor(jobs, context, initializer=_begin, initargs=(stopping, loaded_plugins()))
    try:
        futures = {pool.submit(_train_in_worker, recipe, out / name): name for name, recipe in recipes.items()}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BaseException as error:
        stopping.set()  # the pool has handed out a run more than it has workers, and cannot take it back
        workers = list((getattr(pool, "_processes", None) or {}).values())
        for worker in workers:
            worker.terminate()  # SIGTERM: each saves its run and goes
        pool.shutdown(cancel_futures=True)  # how they ended is known when all have
        if isinstance(error, BrokenProcessPool) and _could_not_begin([worker.exitcode for worker in workers]):
            raise BadInput(
                f"the {jobs} processes of this study could not begin (their error stands above): each reads "
                'your file anew, where supancl must be called under if __name__ == "__main__":; mend '
                "that, or give --jobs 1"
            ) from None
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        for number, handler in before.items():
            signal.signal(number, handler)


def _could_not_begin(ends: Sequence[int | None]) -> bool:
    """Whether a worker ended by an error of its own, and none was killed."""
    return -signal.SIGKILL not in ends and any(end is not None and end > 0 for end in ends)


def _begin(stopping: Event, plugins: Sequence[str] = ()) -> None:
    """A worker's own start: one thread, the plugins, and the flag that no further run is to begin."""
    global _stopping
    _stopping = stopping
    torch.set_num_threads(1)
    for file in plugins:
        load_plugin(file)


def _train_in_worker(recipe: Recipe, folder: Path) -> Failed | None:
    if _stopping is not None and _stopping.is_set():
        return None
    try:
        return _train_one(recipe, folder)
    except Exception as error:
        if fault := fault_in_own(error):  # told here: where an error came from does not cross processes
            raise BadInput(fault) from error
        raise


def _train_one(recipe: Recipe, path: Path) -> Failed | None:
    folder = RunFolder(path)
    (path / FAILED).unlink(missing_ok=True)
    chosen: Recipe | None = recipe
    if folder.holds_run:
        kept = folder.read_recipe()[0]
        asked = asked_anew(recipe, kept)
        chosen = kept.with_set(asked) if asked else None
    try:
        pretrain(chosen, out=path, resume=folder.holds_run, reporter=Reporter())
    except (Collapsed, NonFinite) as error:
        failure = Failed(error.what, error.exit_code)
        write_text(path / FAILED, json.dumps(failure._asdict()) + "\n")
        return failure
    return None


def failure_of(folder: Path) -> Failed | None:
    """Why the run in this folder could not go on; None where no study has recorded that it could not."""
    try:
        kept = json.loads((folder / FAILED).read_text())
        return Failed(str(kept["reason"]), int(kept["exit_code"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def default_jobs(recipe: Recipe) -> int:
    """One run per core for the small encoders that do not fill several; one run at a time otherwise."""
    small = recipe.encoder.name in ("cnn", "linear") and pick_device(recipe.train.device).type == "cpu"
    return cores() if small else 1


def is_finished(folder: RunFolder, recipe: Recipe) -> bool:
    """Whether the last epoch was closed: its check is logged first, its checkpoint written last."""
    last = folder.metrics()[-1:]
    return any(
        row["kind"] == "monitor"
        and row["epoch"] == recipe.train.epochs - 1
        and (folder.checkpoints / f"step-{row['step']:09d}.pt").exists()
        for row in last
    )


def check_same_recipe(recipe: Recipe, folder: RunFolder) -> None:
    """Refuse a folder that holds a run with other settings than this recipe's."""
    if not folder.holds_run:
        return
    kept = flattened(folder.read_recipe()[0])
    for key, value in flattened(recipe).items():
        if key in ("sources", "train.device", "data.short_side", *HOW) or agrees(key, value, kept.get(key)):
            continue
        if key != "data.source" or not same_source(str(kept.get(key)), str(value)):
            raise BadInput(
                f"{folder.path} holds a run with {key} = {kept.get(key)!r}, this study asks for {value!r}; "
                "choose another --out"
            )


def _read(folder: RunFolder) -> Trained:
    state, _ = load_newest(folder.checkpoints)
    collapsed = state is not None and bool(state["monitor"]["collapsed"])
    return Trained(folder.read_recipe()[0], load_encoder(folder.path), folder.metrics(), collapsed)


def left_out_classes(data: Data, share: float) -> list[str]:
    """Classes to keep out of pretraining: about `share` of them, at least two, and at least two stay; drawn once.

    Both kinds are counted among the classes that have training and held-out images: others can judge nothing.
    """
    classes = len(data.classes)
    judged = set(data.train.present()) & set(data.held_out.present())
    count = min(max(2, round(share * classes)), len(judged) - 2)
    if share == 0 or count < 2:
        return []
    order = torch.randperm(classes, generator=torch.Generator().manual_seed(0)).tolist()
    return sorted(data.classes[i] for i in [i for i in order if i in judged][:count])


def check_held_out(data: Data, recipe: Recipe) -> None:
    """Before anything is trained: without a labelled held-out image there is nothing to compare runs by."""
    if data.train.present() and not data.held_out.present():
        raise BadInput(
            f"{recipe.data.source}: no held-out image has a label to judge by; leave out "
            "--set data.holdout=0, or add labels to val/"
        )


def check_overrides(overrides: Mapping[str, Any], varied: Mapping[str, str]) -> None:
    """What a study sets itself cannot be given; `varied` says for each field what to give instead."""
    for field, instead in varied.items():
        if field in overrides:
            raise BadInput(f"{field} is for this study to set; give {instead} instead")


def check_jobs(jobs: int | None) -> None:
    if jobs is not None and jobs < 1:
        raise BadInput(f"--jobs {jobs}: must be at least 1")


def spread(values: Sequence[float]) -> float:
    """The standard deviation; not a number for a single value, or where a value is none."""
    if len(values) < 2 or any(value != value for value in values):
        return math.nan
    return statistics.stdev(values)


def data_of(recipe: Recipe) -> Data:
    return open_data(with_short_side(recipe).data, recipe.encoder.channels)


def mean_cell(mean: float, deviation: float, decimals: int) -> str:
    """mean +- sd, as the studies' tables have it; nan is what there is not."""
    if mean != mean:
        return "-"
    return f"{mean:.{decimals}f}" + (f" +- {deviation:.{decimals}f}" if deviation == deviation else "")


def share_cell(count: int, of: int) -> str:
    """How many of a row's runs ended so."""
    return f"{count} of {of}" if count else "no"


def reach_of_all(values: Sequence[Sequence[float]]) -> float:
    """How far a difference of two rows' means reaches: 95% intervals that hold for all pairs of rows together.

    Tukey's, with the columns (seeds) as blocks: each row has the same ones. An interval for each pair by itself would,
    of five equal rows, find some worse than the best in a quarter of the studies. For two rows it is Student's, paired.
    """
    rows, columns = len(values), len(values[0])
    if rows < 2 or columns < 2:
        return math.inf
    table = np.asarray(values, dtype=np.float64)
    rest = table - table.mean(1, keepdims=True) - table.mean(0, keepdims=True) + table.mean()
    freedom = (rows - 1) * (columns - 1)
    error = math.sqrt(float((rest**2).sum()) / freedom / columns)
    return _tukeys(rows, freedom) * error


@cache
def _tukeys(rows: int, freedom: int) -> float:
    """The 95% point of the range of that many rows, in deviations: a tenth of a second each time it is integrated."""
    from scipy import stats

    return float(stats.studentized_range.ppf(0.95, rows, freedom))


def interval(differences: Sequence[float]) -> tuple[float, float, float]:
    """Mean of paired differences with its 95% interval (Student's t); infinite with a single pair."""
    from scipy import stats

    n = len(differences)
    mean = sum(differences) / n
    if n < 2:
        return mean, -math.inf, math.inf
    deviation = math.sqrt(sum((d - mean) ** 2 for d in differences) / (n - 1))
    reach = float(stats.t.ppf(0.975, n - 1)) * deviation / math.sqrt(n)
    return mean, mean - reach, mean + reach
