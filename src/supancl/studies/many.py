"""Several runs of one study: trained one after another or side by side, and continued where they were left."""

from __future__ import annotations

import math
import multiprocessing
import shlex
import signal
import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console

from supancl.checkpoint import load_encoder, load_newest
from supancl.config import flattened
from supancl.data.images import cores
from supancl.data.sources import Data, open_data, same_source
from supancl.encoders import Encoder
from supancl.errors import BadInput, Collapsed, Interrupted, NonFinite
from supancl.recipes import Recipe
from supancl.reuse import one_step
from supancl.run import RunFolder
from supancl.start import agrees, pick_device, with_short_side
from supancl.train import Reporter, pretrain

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


def train_all(recipes: Mapping[str, Recipe], out: Path, jobs: int | None, console: Console) -> dict[str, Trained]:
    """Train each recipe in out/NAME, or go on with it where it was left; finished ones are only read."""
    for name, recipe in recipes.items():
        _check_same(recipe, RunFolder(out / name))
    jobs = jobs or default_jobs(next(iter(recipes.values())))
    waiting = [name for name in recipes if not is_finished(RunFolder(out / name), recipes[name])]
    done = len(recipes) - len(waiting)
    if done:
        console.print(f"{done} of {len(recipes)} runs are already there")
    try:
        for name in _trained({name: recipes[name] for name in waiting}, out, jobs):
            done += 1
            console.print(f"trained {name} ({done} of {len(recipes)})")
    except Interrupted as stop:
        name = signal.Signals(stop.signal_number).name
        how = f"continue with the same command and --out {shlex.quote(str(out))}"
        told = f"stopped by {name} with {done} of {len(recipes)} runs done, what had begun is saved; {how}"
        raise Interrupted(told, stop.signal_number) from None
    return {name: _read(RunFolder(out / name)) for name in recipes}


def _trained(recipes: Mapping[str, Recipe], out: Path, jobs: int) -> Iterator[str]:
    """The names of the runs as they end, one after another or `jobs` at a time."""
    if jobs == 1 or len(recipes) <= 1:
        with one_step():
            for name, recipe in recipes.items():
                _train_one(recipe, out / name)
                yield name
        return

    def stop(number: int, frame: Any) -> None:
        raise Interrupted("stopped", number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    # spawned, not forked: torch's threads do not survive a fork
    context = multiprocessing.get_context("spawn")
    stopping = context.Event()
    pool = ProcessPoolExecutor(jobs, context, initializer=_begin, initargs=(stopping,))
    try:
        futures = {pool.submit(_train_in_worker, recipe, out / name): name for name, recipe in recipes.items()}
        for future in as_completed(futures):
            future.result()
            yield futures[future]
    except BaseException:
        stopping.set()  # the pool has handed out a run more than it has workers, and cannot take it back
        for worker in list(getattr(pool, "_processes", {}).values()):
            worker.terminate()  # SIGTERM: each saves its run and goes
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        for number, handler in before.items():
            signal.signal(number, handler)


def _begin(stopping: Event) -> None:
    """A worker's own start: one thread, and the flag that no further run is to begin."""
    global _stopping
    _stopping = stopping
    torch.set_num_threads(1)


def _train_in_worker(recipe: Recipe, folder: Path) -> None:
    if _stopping is None or not _stopping.is_set():
        _train_one(recipe, folder)


def _train_one(recipe: Recipe, folder: Path) -> None:
    try:
        pretrain(None if RunFolder(folder).holds_run else recipe, out=folder, resume=RunFolder(folder).holds_run,
                 reporter=Reporter())
    except (Collapsed, NonFinite) as error:
        raise type(error)(f"{folder}: {error}") from None  # which of the study's runs it was


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


def _check_same(recipe: Recipe, folder: RunFolder) -> None:
    if not folder.holds_run:
        return
    kept = flattened(folder.read_recipe()[0])
    for key, value in flattened(recipe).items():
        if key in ("sources", "train.device", "data.short_side") or agrees(key, value, kept.get(key)):
            continue
        if key != "data.source" or not same_source(str(kept.get(key)), str(value)):
            raise BadInput(f"{folder.path} holds a run with {key} = {kept.get(key)!r}, this study asks for {value!r}; "
                           "choose another --out")


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
        raise BadInput(f"{recipe.data.source}: no held-out image has a label to judge by; leave out "
                       "--set data.holdout=0, or add labels to val/")


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
