"""What a person sees: progress with the time left, one line an epoch, warnings, and errors of one line."""

from __future__ import annotations

import atexit
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from supancl.data.splits import Data
from supancl.distributed import should_print, should_report_failure
from supancl.errors import plural
from supancl.recipes import Recipe
from supancl.reporter import Reporter


def make_console(quiet: bool, json_to_stdout: bool) -> Console:
    """Standard output, or standard error when the JSON goes to standard output; of several ranks only one prints."""
    made = Console(
        stderr=json_to_stdout, quiet=quiet or not should_print(), markup=False, highlight=False, soft_wrap=True
    )
    if not made.is_terminal:
        made.width = 160  # a file has no edge to wrap at
    return made


LONG = 1000  # things to read, from which on a file or a pipe is told how far it is
WORTH_TELLING = 5.0  # seconds; what is done sooner needs no lines
SILENCE = 30.0  # seconds within an epoch, after which a file or a pipe is told how far the run is


class Terminal(Reporter):
    """Tells a console; a live bar where there is a terminal, a line per epoch in any case."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.errors = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)
        self.progress: Progress | None = None
        self.last: dict[str, Any] = {}
        self.counting: tuple[str, int, float, int] = ("", 0, 0.0, 0)
        self.begun, self.told, self.first, self.steps, self.epochs = 0.0, 0.0, 0, 0, 1
        self.labelled = 0  # training images with a label
        atexit.register(self.ends)  # a bar that was left running would leave the cursor hidden

    def note(self, text: str) -> None:
        self.console.print(text)

    def warn(self, text: str) -> None:
        self.errors.print(f"warning: {text}", style="yellow")

    def reading(self, what: str, done: int, total: int) -> None:
        """A bar, or, where there is no terminal, a line every tenth of what takes long. A total of 0 is a sentence."""
        if total == 0:
            self.note(what)
            return
        if not self.console.is_terminal:
            self._count(what, done, total)
            return
        if self.progress is None:
            self._start(what, total, 0)
        if self.progress is not None:
            self.progress.update(self.progress.task_ids[0], completed=done)
        if done == total:
            self.ends()

    def _count(self, what: str, done: int, total: int) -> None:
        if total < LONG:
            return
        if self.counting[0] != what or done <= self.counting[3]:
            self.counting = (what, 0, time.perf_counter(), 0)
        _, told, since, _ = self.counting
        tenths, taken = done * 10 // total, time.perf_counter() - since
        is_due = tenths > told and taken >= WORTH_TELLING
        self.counting = (what, tenths if is_due else told, since, done)
        if is_due:
            left = f", about {taken / done * (total - done):.0f} s left" if done < total else f" in {taken:.0f} s"
            self.note(f"{what}: {done:,} of {total:,}{left}")

    def begins(self, recipe: Recipe, data: Data, folder: Path, device: str, step: int, steps: int) -> None:
        self.labelled = data.train.num_labelled
        share = "" if self.labelled == len(data.train) else f", {self.labelled} of them labelled"
        self.note(
            f"{recipe.name} on {recipe.data.source or 'the data'}: "
            f"{plural(len(data.train), 'training image')}{share}, {len(data.held_out)} held out, "
            f"{plural(len(data.classes), 'class', 'classes')}; {device} -> {folder}"
        )
        if recipe.train.batch_size != recipe.optimizer.reference_batch:
            self.note(
                f"batch {recipe.train.batch_size}: learning rate {recipe.optimizer.lr:g} of batch "
                f"{recipe.optimizer.reference_batch} becomes {recipe.learning_rate:g}"
            )
        if step >= steps:
            self.note(
                f"{folder} is finished, at step {step} of {steps}; to train on, start another run with "
                f"--init {folder} and another --out"
            )
            return
        if step:
            self.note(f"going on at step {step} of {steps}")
        self.begun = self.told = time.perf_counter()
        self.first, self.steps, self.epochs, self.last = step, steps, recipe.train.epochs, {}
        self._start(recipe.name, steps, step)

    def _start(self, what: str, total: int, done: int) -> None:
        if not self.console.is_terminal:
            return
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[loss]}"),
            console=self.console,
            transient=True,
        )
        self.progress.add_task(what, total=total, completed=done, loss="")
        self.progress.start()

    def stepped(self, step: int, row: dict[str, Any] | None) -> None:
        if row is not None:
            self.last = row
        if self.progress is not None:
            loss = f"loss {self.last['loss']:.4f}" if self.last else ""
            self.progress.update(self.progress.task_ids[0], completed=step, loss=loss)
        elif not self.console.is_terminal and self.steps and time.perf_counter() - self.told >= SILENCE:
            self._tell(step)

    def _tell(self, step: int) -> None:
        """How far it is, of what the log has anyway: nobody waits for the device because of a line."""
        self.told = time.perf_counter()
        epoch, taken = (step - 1) * self.epochs // self.steps + 1, self.told - self.begun
        parts = [f"epoch {epoch} of {self.epochs}, step {step:,} of {self.steps:,}"]
        if self.last:
            parts += [f"loss {self.last['loss']:.4f}", f"{compact(self.last['images_per_second'])} img/s"]
        if step > self.first:  # a run that went back has nothing to judge by yet
            parts.append(f"about {duration(taken / (step - self.first) * (self.steps - step))} left")
        self.note(", ".join(parts))

    def epoch_ended(self, row: dict[str, Any]) -> None:
        shown = {"loss": self.last.get("loss"), "ssl": self.last.get("ssl"), "sup": self.last.get("sup")}
        shown |= {"std": row.get("std"), "rank": row.get("effective_rank"), "S_W/S_T": row.get("s_w/s_t")}
        references = row.get("knn_references", self.labelled)
        sampled = f" (of {references})" if references < self.labelled else ""  # training images compared with
        shown |= {f"k-NN{sampled}": row.get("knn"), "linear": row.get("linear")}
        shown |= {"pool": row.get("pool_coverage"), "age": row.get("pool_staleness")}
        shown |= {"img/s": self.last.get("images_per_second")}
        values = "  ".join(f"{name} {compact(value)}" for name, value in shown.items() if value is not None)
        self.note(f"epoch {row['epoch'] + 1:4d}  {values}")
        self.told = time.perf_counter()

    def ends(self) -> None:
        if self.progress is not None:
            self.progress.stop()
            self.progress = None


def duration(seconds: float) -> str:
    """The two largest units of it.

    >>> duration(42), duration(3 * 3600 + 5 * 60)
    ('42 s', '3 h 5 min')
    """
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def compact(value: float) -> str:
    if value != value:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 10 else f"{value:.3f}"


def table(title: str, columns: list[str], rows: list[list[str]]) -> Table:
    """A plain table; columns whose cells, where they are not empty, are all numbers are set to the right."""
    laid = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        starts = {cells[i].strip()[:1] for cells in rows} - {""}
        laid.add_column(column, justify="right" if i > 0 and starts <= set("0123456789+-−.") else "left")
    for cells in rows:
        laid.add_row(*cells)
    return laid


def say_error(text: str) -> None:
    if should_report_failure():
        print(f"supancl: {text}", file=sys.stderr)
