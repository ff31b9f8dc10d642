"""The loop around the steps of a run: log, checkpoints and signals. Pretraining and detection say what a step is."""

from __future__ import annotations

import shlex
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, Self

from supancl.data.threads import WaitStopped, is_waiting_for_images
from supancl.distributed import SINGLE_PROCESS, Ranks
from supancl.errors import Interrupted, program_name
from supancl.reporter import Reporter
from supancl.runs.checkpoint import Writer, load_newest
from supancl.runs.folder import RunFolder
from supancl.runs.log import MetricsLog, record_stop

SAME_SIGNAL_SECONDS = 2.0  # shells deliver one Ctrl-C twice, and torchrun forwards what its ranks have received too


class Loop(ABC):
    """Takes steps until the last one. A `with` block closes its files and threads, and records why a run stopped.

    A subclass has `step`, `steps`, `log_every`, `checkpoint_every` and the abstract methods.
    """

    command: str  # that continues the run
    step: int
    steps: int
    log_every: int
    checkpoint_every: int | None
    keeps_all = False  # checkpoints
    logs_saves = False  # whether a row is logged before every checkpoint, which then has no sums of losses

    def __init__(
        self, folder: RunFolder, resumed_at: int | None, reporter: Reporter, ranks: Ranks = SINGLE_PROCESS
    ) -> None:
        self.folder, self.reporter, self.ranks, self.writer = folder, reporter, ranks, Writer()
        self.log = MetricsLog(folder, resumed_at) if ranks.is_rank0 else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.writer.close()
        self.close_inputs()
        if self.log is not None:
            if isinstance(error, Exception):
                record_stop(self.folder, self.step, error)
            self.log.close()
        self.reporter.on_end()

    # --- what a run is ------------------------------------------------------------------------------------------------

    @abstractmethod
    def advance(self) -> int:
        """Take the next step and return the number of its images."""

    @abstractmethod
    def row(self) -> dict[str, Any] | None:
        """The row of the log for the steps since the last one."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """The content of a checkpoint."""

    @abstractmethod
    def part_ends(self) -> bool:
        """Whether something is measured after this step, as at the end of an epoch."""

    @abstractmethod
    def end_part(self) -> None:
        """Measure and log it."""

    def is_saved(self, part_ends: bool) -> bool:
        """Whether a checkpoint is written after this step, besides every `checkpoint_every` steps and on signals."""
        return part_ends

    def check(self, logs: bool, saves: bool) -> None:  # noqa: B027
        """Refuse losses or weights that are not finite."""

    def advice(self) -> str:
        """What else the command needs to continue the run."""
        return ""

    @abstractmethod
    def close_inputs(self) -> None:
        """End the threads that read images."""

    # --- the loop -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Take the steps that are left, until the last one or a signal."""
        since, images = time.perf_counter(), 0
        # several ranks stop after the same step
        with record_signals(self.reporter.note, stops_waits=self.ranks.size == 1) as received:
            while self.step < self.steps:
                is_new = True
                try:
                    images += self.advance()
                except WaitStopped:  # by a signal: the run stops below, with the state after the step before
                    is_new = False
                signal_number = self.ranks.signal_on_any_rank(received)
                part_ends = is_new and self.part_ends()
                checkpoint_is_due = self.checkpoint_every is not None and self.step % self.checkpoint_every == 0
                saves = self.is_saved(part_ends) or checkpoint_is_due or bool(signal_number)
                logs = part_ends or (is_new and self.step % self.log_every == 0) or (self.logs_saves and saves)
                self.check(logs, saves)
                row = self.row() if logs else None
                if row is not None:
                    row["images_per_second"] = images / max(time.perf_counter() - since, 1e-9)
                    self.write(row)
                    since, images = time.perf_counter(), 0
                self.reporter.on_step(self.step, row)
                if part_ends:
                    self.end_part()
                    since = time.perf_counter()
                self.keep(saves)
                if signal_number and self.step < self.steps:
                    self.stop(signal_number)
        self.ranks.on_rank0(self.writer.wait)

    def write(self, row: dict[str, Any]) -> None:
        if self.log is not None:
            self.log.write(row)

    def keep(self, saves: bool) -> None:
        """Write a checkpoint if one is due."""
        if not saves:
            return
        if self.log is not None:
            self.log.sync()
        state = self.state()
        self.ranks.on_rank0(lambda: self.writer.save(self.folder.checkpoints, self.step, state, self.keeps_all))

    def stop(self, number: int) -> NoReturn:
        """End the run after a signal; its state is saved."""
        self.ranks.on_rank0(self.writer.wait)
        command = f"{program_name()} {self.command} --resume --out {shlex.quote(str(self.folder.path))}"
        raise Interrupted(
            f"stopped by {signal.Signals(number).name} at step {self.step} of {self.steps}, saved; continue with: "
            f"{command}{self.advice()}",
            number,
        )


def load_state_to_resume(checkpoints: Path, reporter: Reporter) -> dict[str, Any] | None:
    """Load the newest readable checkpoint of a run; report damaged ones, and if there is none."""
    state, damaged = load_newest(checkpoints)
    for line in damaged:
        reporter.warn(line)
    if state is None:
        reporter.note(f"{checkpoints.parent} holds no checkpoint yet: starting at step 0")
    return state


# --- signals ----------------------------------------------------------------------------------------------------------


def signals_that_stop() -> list[signal.Signals]:
    """The signals that stop a run: not SIGHUP if nohup lets this process ignore it. Windows has none."""
    hangup = getattr(signal, "SIGHUP", None)
    heeds_hangup = hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([signal.Signals.SIGHUP] if heeds_hangup else [])]


@contextmanager
def record_signals(acknowledge: Callable[[str], None], stops_waits: bool = True) -> Iterator[list[int]]:
    """A list that stopping signals are added to. A second one ends the process, unless it is the same one again.

    The first one is acknowledged with a line at once, because the step may take long. If the step still waits for its
    images, which may come from a disk that hangs, `WaitStopped` is raised there (if `stops_waits`).
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received  # signals reach the main thread only
        return
    handlers = {number: signal.getsignal(number) for number in signals_that_stop()}
    first_time = 0.0

    def restore() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def record(number: int, frame: Any) -> None:
        nonlocal first_time
        now = time.monotonic()
        if received and now - first_time > SAME_SIGNAL_SECONDS:
            restore()
            signal.raise_signal(number)
            return
        if not received:
            first_time = now
            line = f"{signal.Signals(number).name}: stopping after this step; a second one ends the process at once"
            # in a thread: this one may hold the console's lock
            threading.Thread(target=acknowledge, args=(line,), daemon=True).start()
        received.append(number)
        if stops_waits and is_waiting_for_images():
            raise WaitStopped

    for number in handlers:
        signal.signal(number, record)
    try:
        yield received
    finally:
        restore()
