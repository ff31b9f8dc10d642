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
from typing import IO, Any, ClassVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from supancl.data.splits import Data
from supancl.distributed import should_print
from supancl.errors import make_visible, program_name
from supancl.recipes import Recipe
from supancl.recipes.plugins import plugin_flags
from supancl.reporter import Reporter
from supancl.reports.tables import Table, to_text, wrap_line
from supancl.stats import duration


class SafeConsole(Console):
    """A console on which names of files and classes cannot move the cursor or begin a line.

    `print(text)` prints one line, which a terminal shows broken between words. `print(text, end="")` prints a block of
    lines, in which only names are unsafe. If its output is closed (`| head`) or its disk is full, the command goes on
    without it: a training is worth more than its log.
    """

    def __init__(self, stderr: bool, quiet: bool = False) -> None:
        super().__init__(
            stderr=stderr,
            quiet=quiet,
            markup=False,
            highlight=False,
            emoji=False,
            soft_wrap=True,
            force_jupyter=False,  # in a notebook, plain lines as of print, not an HTML block each
        )

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
    console = SafeConsole(stderr=json_to_stdout, quiet=quiet or not should_print())
    if not console.is_terminal:
        console.width = 160  # a file has no edge to wrap at
    return console


def line_width(console: Console) -> int:
    """Columns of the terminal; a file has no edge to wrap at."""
    return console.width if console.is_terminal else sys.maxsize


def terminal_width() -> int:
    return line_width(SafeConsole(stderr=False))


def print_warning(text: str, console: Console | None = None) -> None:
    """Print a warning to standard error, also if the command is quiet."""
    (console or SafeConsole(stderr=True)).print(f"warning: {text}", style="yellow")


# without a terminal:
MIN_SECONDS = 5.0  # of a job before its progress is printed
MAX_SILENCE = 30.0  # seconds within an epoch until progress is printed
EPOCHS = {
    "epoch": 9,
    "loss": 9,
    "rank": 7,
    "k-NN %": 8,
    "linear %": 10,
    "images/s": 10,
    "left": 13,
}  # widths, 66 in all
STYLES = {"good": "green", "unclear": "", "bad": "red"}


def block_letter() -> str:
    """A bar's letter, which the terminal can show."""
    return "█" if (sys.stdout.encoding or "").lower().startswith("utf") else "#"


class Terminal(Reporter):
    """Reports to a console: a line per epoch, and a live progress bar if it is a terminal."""

    with_bar: ClassVar[Terminal | None] = None  # of all terminals, the one that shows a bar

    def __init__(self, console: Console) -> None:
        self.console = console
        self.errors = SafeConsole(stderr=True)
        self.progress: Progress | None = None
        self.task, self.is_training = "", False  # what the bar shows
        self.last: dict[str, Any] = {}
        self.counted, self.tenths, self.count_started = ("", 0), 0, 0.0
        self.started, self.last_printed, self.first_step, self.steps, self.epochs = 0.0, 0.0, 0, 0, 1
        self.step, self.has_header = 0, False

    def note(self, text: str) -> None:
        self.console.print(text)

    def warn(self, text: str) -> None:
        print_warning(text, self.errors)

    def show(self, table: Any) -> None:
        text = to_text(table, line_width(self.console)) if isinstance(table, Table) else table
        self.console.print(text, end="")

    def on_progress(self, task: str, done: int, total: int) -> None:
        """Show a bar, or without a terminal a line per tenth of a long job. With a total of 0, print `task`.

        A job within training, or within a job of another terminal, is not shown.
        """
        if total == 0:
            self.note(task)
            return
        if not self.console.is_terminal:
            self._print_count(task, done, total)
            return
        if self.is_training or Terminal.with_bar not in (None, self):
            return
        if self.task != task:
            self.on_end()  # of a job that was given up, or of one that this job is part of
        if self.progress is None and done < total:
            self._start(task, total, 0)
        if self.progress is not None:
            self.progress.update(self.progress.task_ids[0], completed=done)
        if done == total:
            self.on_end()

    def _print_count(self, title: str, done: int, total: int) -> None:
        if self.counted[0] != title or done <= self.counted[1]:
            self.tenths, self.count_started = 0, time.perf_counter()
        self.counted = title, done
        elapsed = time.perf_counter() - self.count_started
        if done * 10 // total > self.tenths and elapsed >= MIN_SECONDS:
            self.tenths = done * 10 // total
            left = f", about {elapsed / done * (total - done):.0f} s left" if done < total else f" in {elapsed:.0f} s"
            self.note(f"{title}: {done:,} of {total:,}{left}" if total > 1 else f"{title}: {elapsed:.0f} s")

    def on_start(self, recipe: Recipe, data: Data, folder: Path, device: str, step: int, steps: int) -> None:
        labelled = data.train.num_labelled
        labelled_note = "" if labelled == len(data.train) else f", {labelled} of them labelled"
        all_labels = data.train.all_labels
        several = "" if all_labels.has_one_each else f", up to {all_labels.classes.shape[1]} per image"
        self.note(
            f"{recipe.name} on {' + '.join(recipe.data.all_sources) or 'the data'}: {len(data.train)} training "
            f"images{labelled_note}, {len(data.held_out)} held out, classes: {len(data.classes)}{several}; {device} -> "
            f"{folder}"
        )
        if recipe.train.batch_size != recipe.optimizer.reference_batch:
            self.note(
                f"batch {recipe.train.batch_size}: learning rate {recipe.optimizer.lr:g} of batch "
                f"{recipe.optimizer.reference_batch} becomes {recipe.learning_rate:g}"
            )
        if step >= steps:
            self.note(
                f"{folder} is finished, at step {step} of {steps}; to train longer, continue it in another folder: "
                f"extend={folder} with more epochs"
            )
            return
        if step:
            self.note(f"continuing at step {step} of {steps}")
        self.started = self.last_printed = time.perf_counter()
        self.first_step, self.step, self.steps, self.epochs = step, step, steps, recipe.train.epochs
        self.last, self.has_header = {}, False
        self.on_end()
        self._start(recipe.name, steps, step)
        self.is_training = True

    def _start(self, title: str, total: int, done: int) -> None:
        if not self.console.is_terminal:
            return
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[loss]}"),
            console=self.console,
            transient=True,
        )
        self.progress.add_task(make_visible(title), total=total, completed=done, loss="")
        self.task, Terminal.with_bar = title, self
        self.progress.start()
        atexit.register(self.on_end)  # a bar left running would hide the cursor

    def on_step(self, step: int, row: dict[str, Any] | None) -> None:
        self.step = step
        if row is not None:
            self.last = row
        if self.progress is not None:
            loss = f"loss {self.last['loss']:.4f}" if self.last else ""
            self.progress.update(self.progress.task_ids[0], completed=step, loss=loss)
        elif not self.console.is_terminal and self.steps and time.perf_counter() - self.last_printed >= MAX_SILENCE:
            self._print_row((step - 1) * self.epochs // self.steps + 1, {})

    def on_epoch(self, row: dict[str, Any]) -> None:
        self._print_row(row["epoch"] + 1, row)

    def _print_row(self, epoch: int, row: dict[str, Any]) -> None:
        """A row of the table of epochs, by values already logged, so as not to wait for the device."""
        self.last_printed, done = time.perf_counter(), self.step - self.first_step  # after a rollback none
        left = (self.last_printed - self.started) / done * (self.steps - self.step) if done > 0 else 0
        values = {
            "epoch": f"{epoch}/{self.epochs}",
            "loss": _fixed(self.last.get("loss"), 4),
            "rank": _fixed(row.get("effective_rank"), 1),
            "k-NN %": _fixed(row.get("knn", row.get("knn_map")), 1),
            "linear %": _fixed(row.get("linear"), 1),
            "images/s": _fixed(self.last.get("images_per_second"), 0),
            "left": duration(left) if done > 0 and self.step < self.steps else "",
        }
        if not self.has_header:
            self.note(
                "".join(f"{'mAP %' if 'knn_map' in row and n == 'k-NN %' else n:>{w}}" for n, w in EPOCHS.items())
            )
            self.has_header = True
        self.note("".join(f"{values[name]:>{width}}" for name, width in EPOCHS.items()).rstrip())

    def on_end(self) -> None:
        self.is_training = False
        if self.progress is not None:
            self.progress.stop()
            self.progress, self.task, Terminal.with_bar = None, "", None
            atexit.unregister(self.on_end)

    def on_finished(self, folder: Path) -> None:
        """Print the verdict and the next command in a box."""
        from supancl.reports.run_record import read_record
        from supancl.reports.verdict import find_verdict

        verdict = find_verdict(read_record(folder))
        command = "report" if verdict.tone == "bad" else "predict"
        next_line = f"next: {program_name()} {command} {shlex.quote(str(folder))}{plugin_flags()}"
        dash = "─" if (sys.stdout.encoding or "").lower().startswith("utf") else "-"
        width = min(80, line_width(self.console))
        self.console.print(f"{dash * 2} {verdict.headline} ".ljust(width, dash), style=STYLES[verdict.tone])
        self.note(wrap_line(f"{verdict.detail[:1].upper()}{verdict.detail[1:]}", width))
        self.note(next_line)
        self.note(dash * width)


def _fixed(value: float | None, decimals: int) -> str:
    return "" if value is None else "-" if value != value else f"{value:.{decimals}f}"
