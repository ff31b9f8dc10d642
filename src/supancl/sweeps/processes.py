"""The processes that train the runs of a sweep, one run after another; a signal or a failing run ends all of them."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import torch

from supancl.errors import BadInput, Collapsed, Interrupted, NonFinite, SupanclError
from supancl.files import write_text
from supancl.recipes import Recipe
from supancl.recipes.plugins import describe_plugin_error, load_plugin, loaded_plugins
from supancl.reporter import Reporter, report_to
from supancl.runs.folder import RunFolder
from supancl.training.resume import changed_settings
from supancl.training.signals import signals_that_stop
from supancl.training.start import train
from supancl.training.trainer import share_step

FAILURE_FILE = "failed.json"  # in the folder of a failed run: why it failed
MakeReporter = Callable[[], Reporter]


class Failure(NamedTuple):
    """Why a run ended before its last epoch, and the exit code it would have had on its own."""

    reason: str
    exit_code: int

    @property
    def collapsed(self) -> bool:
        return self.exit_code == Collapsed.exit_code


class Task(NamedTuple):
    """A run to train or to continue: its recipe, its folder, and the weights that it starts from."""

    recipe: Recipe
    folder: Path
    start: str | None = None


class WorkerKilled(Exception):
    """A process that trains runs was killed."""


def train_run(task: Task, run_reporter: MakeReporter = Reporter) -> Failure | None:
    """Train one run or continue it from its last checkpoint; a failure is recorded in its folder and returned."""
    folder = RunFolder(task.folder)
    (task.folder / FAILURE_FILE).unlink(missing_ok=True)
    recipe: Recipe | None = task.recipe
    if folder.has_run:
        saved = folder.read_recipe()[0]
        changed = changed_settings(task.recipe, saved)
        recipe = saved.with_set(changed) if changed else None
    try:
        with report_to(run_reporter()):
            train(recipe, out=task.folder, resume=folder.has_run, init=None if folder.has_run else task.start)
    except (Collapsed, NonFinite) as error:
        failure = Failure(error.cause, error.exit_code)
        write_text(task.folder / FAILURE_FILE, json.dumps(failure._asdict()) + "\n")
        return failure
    return None


def train_each(
    tasks: Mapping[str, Task], jobs: int, run_reporter: MakeReporter = Reporter
) -> Iterator[tuple[str, Failure | None]]:
    """Train runs one after another, or `jobs` in parallel; yields each name when it ends, and its failure or None."""
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
            processes[ours] = context.Process(target=_work, args=(theirs, loaded_plugins(), run_reporter))
            processes[ours].start()
            theirs.close()
            hand_out(ours)
        while busy:
            for connection in wait(list(busy)):
                assert isinstance(connection, Connection)
                name, outcome = busy.pop(connection), _receive(connection, processes[connection])
                if isinstance(outcome, BaseException):
                    raise outcome
                yield name, outcome
                hand_out(connection)
    except BaseException:
        for process in processes.values():
            with suppress(AttributeError):  # it was not started yet
                process.terminate()  # SIGTERM: it saves its run and ends
        raise
    finally:
        for connection, process in processes.items():
            connection.close()
            with suppress(AssertionError):
                process.join()
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


def _receive(connection: Connection, process: Any) -> Failure | BaseException | None:
    """What a process says of its run; if it ended without a word, why."""
    try:
        return connection.recv()  # type: ignore[no-any-return]
    except (EOFError, OSError):
        process.join()
    if process.exitcode > 0:
        return BadInput(
            "the processes of this study could not start (see the error above): each imports your file again; call "
            'supancl in it under if __name__ == "__main__":, or give --jobs 1'
        )
    return WorkerKilled()


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
