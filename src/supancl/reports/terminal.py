"""Progress in a terminal, a notebook or a log: a bar, a table of epochs, warnings, and a box at the end of a run."""

from __future__ import annotations

import atexit
import builtins
import os
import shlex
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from supancl.data.splits import Data
from supancl.distributed import from_environment
from supancl.errors import make_visible, program_name
from supancl.recipes import Recipe
from supancl.recipes.plugins import plugin_flags
from supancl.reporter import Reporter
from supancl.reports.tables import Table, to_text, wrap_line
from supancl.stats import duration


class SafeConsole(Console):
    """A console on which names of files and classes cannot move the cursor or begin a line.

    `print(text)` prints one line, `print(text, end="")` a block of lines in which only names are unsafe. If its output
    is closed (`| head`) or its disk is full, the command goes on without it: a training is worth more than its log.
    """

    def __init__(self, stderr: bool, quiet: bool = False) -> None:
        # in a notebook, plain lines as of print, not an HTML block each
        plain: dict[str, Any] = {"markup": False, "highlight": False, "emoji": False, "force_jupyter": False}
        super().__init__(stderr=stderr, quiet=quiet, soft_wrap=True, **plain)

    def print(self, *objects: Any, end: str = "\n", **options: Any) -> None:
        if end == "\n":
            objects = tuple(
                wrap_line(make_visible(item), line_width(self)) if isinstance(item, str) else item for item in objects
            )
        try:
            super().print(*objects, end=end, **options)
        except OSError as error:
            self.on_broken_pipe()
            if not isinstance(error, BrokenPipeError) and not self.stderr:
                print_warning(f"standard output cannot be written ({error.strerror}); the command continues without it")

    def on_broken_pipe(self) -> None:
        """Print nothing from now on. rich calls this, and would end the process."""
        self.quiet = True
        discard_output(self.file)

    def render_str(self, text: str, **options: Any) -> Text:
        """Every text passes here, also the cells of tables."""
        return super().render_str(make_visible(text, keep="\n"), **options)


def discard_output(stream: IO[str]) -> None:
    """Send what a closed or full stream still holds, and all that follows, nowhere: Python writes it again at exit."""
    with suppress(OSError, ValueError):  # a stream of a test has no descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


@cache  # one terminal, so that there is one bar at a time
def _terminal() -> Reporter:
    return Terminal(make_console(False, False))


def python_terminal(verbose: bool | None) -> Reporter:
    """For calls from Python: unless it is said, shows progress in a terminal and in a notebook, not in a file."""
    shell = getattr(builtins, "get_ipython", lambda: None)()
    is_notebook = getattr(shell, "kernel", None) is not None
    shows = sys.stdout.isatty() or is_notebook if verbose is None else verbose
    return _terminal() if shows else Reporter()


def make_console(quiet: bool, json_to_stdout: bool) -> Console:
    """A console on stdout, or on stderr if the JSON goes to stdout; of several ranks only one prints."""
    console = SafeConsole(stderr=json_to_stdout, quiet=quiet or not from_environment().is_rank0)
    if not console.is_terminal:
        console.width = 160  # a file has no edge to wrap at
    return console


def line_width(console: Console) -> int:
    """Columns of the terminal; a file has no edge to wrap at."""
    return console.width if console.is_terminal else sys.maxsize


def print_warning(text: str, console: Console | None = None) -> None:
    """Print a warning to standard error, also if the command is quiet."""
    (console or SafeConsole(stderr=True)).print(f"warning: {text}", style="yellow")


MAX_SILENCE = 30.0  # seconds until a log says how far a job is
# columns of the table of epochs and their widths, 66 in all
EPOCHS = {"epoch": 9, "loss": 9, "rank": 7, "k-NN %": 8, "linear %": 10, "images/s": 10, "left": 13}
STYLES = {"good": "green", "unclear": "", "bad": "red"}


class Terminal(Reporter):
    """Reports to a console: a line per epoch, and a live progress bar if it is a terminal."""

    def __init__(self, console: Console) -> None:
        self.console, self.errors = console, SafeConsole(stderr=True)
        self.progress: Progress | None = None
        self.task, self.total, self.done, self.first = "", 0, 0, 0  # the job, and how far it is and was
        self.started = self.last_printed = 0.0
        self.last: dict[str, Any] = {}
        self.epochs, self.has_header = 1, False

    def note(self, text: str) -> None:
        self.console.print(text)

    def warn(self, text: str) -> None:
        print_warning(text, self.errors)

    def show(self, table: Any) -> None:
        text = to_text(table, line_width(self.console)) if isinstance(table, Table) else table
        self.console.print(text, end="")

    def on_progress(self, task: str, done: int, total: int) -> None:
        """Show a bar, or in a log a line every half minute. With a total of 0, print `task`."""
        if total == 0:
            self.note(task)
            return
        if self.task != task or done <= self.done:
            self._start(task, total, done)
        self._advance(done)
        if self._is_silent():
            self.last_printed = time.perf_counter()
            self.note(f"{task}: {done:,} of {total:,}, about {self._time_left()} left")
        if done == total:
            self.on_end()

    def _start(self, task: str, total: int, done: int) -> None:
        self.on_end()  # of a job that was given up, or of one that this job is part of
        self.task, self.total, self.done, self.first = task, total, done, done
        self.started = self.last_printed = time.perf_counter()
        if not self.console.is_terminal or done >= total:
            return
        texts = TextColumn("{task.description}", markup=False), TextColumn("left"), TextColumn("{task.fields[loss]}")
        columns = texts[0], BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), texts[1], TimeRemainingColumn()
        self.progress = Progress(*columns, texts[2], console=self.console, transient=True)
        self.progress.add_task(make_visible(task), total=total, completed=done, loss="")
        self.progress.start()
        atexit.register(self.on_end)  # a bar left running would hide the cursor

    def _advance(self, done: int, loss: str = "") -> None:
        self.done = done
        if self.progress is not None:
            self.progress.update(self.progress.task_ids[0], completed=done, loss=loss)

    def _is_silent(self) -> bool:
        """Whether a log has had no line for long."""
        return not self.console.is_terminal and time.perf_counter() - self.last_printed >= MAX_SILENCE

    def _time_left(self) -> str:
        elapsed = time.perf_counter() - self.started
        left = elapsed / max(1, self.done - self.first) * (self.total - self.done)
        return duration(left) if left and self.done > self.first else ""

    def on_end(self) -> None:
        self.task = ""
        if self.progress is not None:
            self.progress.stop()
            self.progress = None
            atexit.unregister(self.on_end)

    def on_start(self, recipe: Recipe, data: Data, folder: Path, device: str, step: int, steps: int) -> None:
        counts = f"images: {len(data.train)}, labelled: {data.train.num_labelled}, held out: {len(data.held_out)}"
        source = " + ".join(recipe.data.all_sources) or "the data"
        self.note(f"{recipe.name} on {source}: {counts}, classes: {len(data.classes)}; {device} -> {folder}")
        if step >= steps:
            self.note(
                f"{folder} is finished, at step {step} of {steps}; to train longer, continue it in another folder: "
                f"extend={folder} with more epochs"
            )
            return
        if step:
            self.note(f"continuing at step {step} of {steps}")
        self.epochs, self.last, self.has_header = recipe.train.epochs, {}, False
        self._start(recipe.name, steps, step)

    def on_step(self, step: int, row: dict[str, Any] | None) -> None:
        self.last = row or self.last
        self._advance(step, loss=f"loss {self.last['loss']:.4f}" if self.last else "")
        if self._is_silent() and self.total:
            self.on_epoch({"epoch": (step - 1) * self.epochs // self.total})

    def on_epoch(self, row: dict[str, Any]) -> None:
        """Print a row of the table of epochs."""
        self.last_printed = time.perf_counter()
        values = {
            "epoch": f"{row['epoch'] + 1}/{self.epochs}",
            "loss": _fixed(self.last.get("loss"), 4),
            "rank": _fixed(row.get("effective_rank"), 1),
            "k-NN %": _fixed(row.get("knn", row.get("knn_map")), 1),
            "linear %": _fixed(row.get("linear"), 1),
            "images/s": _fixed(self.last.get("images_per_second"), 0),
            "left": self._time_left(),
        }
        if not self.has_header:
            titles = {"k-NN %": "mAP %"} if "knn_map" in row else {}
            self.note("".join(f"{titles.get(name, name):>{width}}" for name, width in EPOCHS.items()))
            self.has_header = True
        self.note("".join(f"{values[name]:>{width}}" for name, width in EPOCHS.items()).rstrip())

    def on_finished(self, folder: Path) -> None:
        """Print the verdict and the next command in a box."""
        from supancl.reports.verdict import RunRecord, find_verdict

        verdict = find_verdict(RunRecord(folder))
        command = f"{program_name()} {'report' if verdict.tone == 'bad' else 'predict'} {shlex.quote(str(folder))}"
        dash = "─" if (sys.stdout.encoding or "").lower().startswith("utf") else "-"
        width = min(80, line_width(self.console))
        self.console.print(f"{dash * 2} {verdict.headline} ".ljust(width, dash), style=STYLES[verdict.tone])
        for line in wrap_line(f"{verdict.detail[:1].upper()}{verdict.detail[1:]}", width).splitlines():
            self.note(line)
        self.note(f"next: {command}{plugin_flags()}")
        self.note(dash * width)


def _fixed(value: float | None, decimals: int) -> str:
    return "" if value is None else "-" if value != value else f"{value:.{decimals}f}"
