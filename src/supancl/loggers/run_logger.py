"""The base of every logger: a reporter that also sends the rows of metrics.jsonl to a service."""

from __future__ import annotations

import json
import re
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from supancl.config import flattened, parse_json, to_json
from supancl.files import make_inner_folder, read_text, reason, write_json
from supancl.reporter import ForwardingReporter, Reporter
from supancl.runs.log import row_numbers
from supancl.version import __version__

SECONDS_BETWEEN = 1.0  # rows are collected and sent together: a request per row would slow down training
Numbers = dict[str, float]


@dataclass(frozen=True)
class LoggedRun:
    """What a service is told about a run before its numbers."""

    folder: Path
    settings: dict[str, Any]  # of the recipe, by dotted name
    tags: dict[str, str]

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    def make_folder(self, name: str) -> Path:
        """The absolute path of a folder in the run folder, for the files of a service."""
        folder = self.folder.resolve() / name
        make_inner_folder(folder)
        return folder


@dataclass(frozen=True)
class Record:
    """RUN/loggers/NAME.json: what the service has of a run."""

    run_id: str | None = None  # the service's
    last_steps: dict[str, int] = field(default_factory=dict)  # by kind of row

    @classmethod
    def read(cls, file: Path) -> Record:
        """The content of the file; of a missing or damaged one an empty record."""
        try:
            content = parse_json(read_text(file))
            record = cls(content["run_id"], dict(content["last_steps"]))
        except (OSError, ValueError, TypeError, LookupError):
            return cls()
        is_name = isinstance(record.run_id, str) and re.fullmatch(r"[\w-]{0,100}", record.run_id)
        return record if is_name and all(isinstance(step, int) for step in record.last_steps.values()) else cls()


class RunLogger(ForwardingReporter, ABC):
    """Passes every report on to `reporter`, and the numbers of every row to a service. Nothing it does ends training.

    A `Record` in the run folder says what the service has. So a resumed run goes on where it was, a step is sent once,
    and rows that the service lacks are sent at the start.
    """

    name: ClassVar[str] = ""  # of --logger, of the package and of its extra

    def __init__(self, reporter: Reporter | None = None, warn: Callable[[str], None] | None = None) -> None:
        super().__init__(reporter or Reporter())
        self.warn_user = warn or (warnings.warn if reporter is None else reporter.warn)
        self.folder = Path()
        self.is_open, self.step, self.steps, self.last_sent = False, 0, 0, 0.0
        self.pending: list[tuple[int, Numbers]] = []
        self.last_steps: dict[str, int] = {}  # sent, or to be sent
        self.record = Record()

    # --- what a service implements ------------------------------------------------------------------------------------

    @abstractmethod
    def open(self, run: LoggedRun, run_id: str | None) -> str:
        """Start the service's run, or continue the one with this id; returns its id."""

    @abstractmethod
    def send(self, rows: Sequence[tuple[int, Numbers]]) -> None:
        """Log these steps with their numbers."""

    @abstractmethod
    def close(self, is_finished: bool) -> None:
        """End the service's run; it may continue later if it is not finished."""

    # --- reports ------------------------------------------------------------------------------------------------------

    def on_start(self, recipe: Any, data: Any, folder: Path, device: str, step: int, steps: int) -> None:
        self.reporter.on_start(recipe, data, folder, device, step, steps)
        self.folder, self.step, self.steps = folder, step, steps
        self.is_open, self.pending = False, []
        tags = {"recipe": recipe.name, "method": recipe.method, "device": device, "supancl": __version__}
        settings = {name: to_json(value) for name, value in flattened(recipe).items() if name != "sources"}
        self._attempt(lambda: self._start(settings, tags))

    def on_step(self, step: int, row: dict[str, Any] | None) -> None:
        self.reporter.on_step(step, row)
        self.step = step
        if row is not None:
            self._log(row)

    def on_epoch(self, row: dict[str, Any]) -> None:
        self.reporter.on_epoch(row)
        self._log(row)

    def on_end(self) -> None:
        self.reporter.on_end()
        if self.is_open:
            self._attempt(self._end)

    # --- rows ---------------------------------------------------------------------------------------------------------

    @property
    def record_file(self) -> Path:
        return self.folder / "loggers" / f"{self.name}.json"

    def _start(self, settings: dict[str, Any], tags: dict[str, str]) -> None:
        from supancl.runs.folder import RunFolder

        self.record = Record.read(self.record_file)
        self.last_steps = dict(self.record.last_steps)
        make_inner_folder(self.record_file.parent)
        for row in RunFolder(self.folder).metrics():
            self._add(row)
        if self.step >= self.steps and not self.pending:
            return  # a finished run, and the service has all of it
        run_id = self.open(LoggedRun(self.folder, settings, tags), self.record.run_id)
        self.is_open = True
        self._write_record(Record(run_id, self.record.last_steps))
        self._send_pending()

    def _end(self) -> None:
        self._send_pending()
        self.is_open = False
        self.close(self.step >= self.steps)
        self._write_record(Record(self.record.run_id, dict(self.last_steps)))

    def _write_record(self, record: Record) -> None:
        self.record = record
        write_json(self.record_file, asdict(record))

    def _log(self, row: dict[str, Any]) -> None:
        if self.is_open:
            self._add(row)
            if time.monotonic() - self.last_sent >= SECONDS_BETWEEN:
                self._attempt(self._send_pending)

    def _add(self, row: dict[str, Any]) -> None:
        """Keep the row to be sent, unless its step was sent before: a resumed or rolled back run repeats steps."""
        kind, step = row["kind"], row["step"]
        if step > self.last_steps.get(kind, -1):
            self.last_steps[kind] = step
            numbers = {"epoch": float(row["epoch"]), **row_numbers(row)}
            # a folder of MLflow cannot hold both s_w and s_w/s_t
            self.pending.append((step, {f"{kind}/{name.replace('/', '_over_')}": n for name, n in numbers.items()}))

    def _send_pending(self) -> None:
        self.send(self.pending)
        self.pending, self.last_sent = [], time.monotonic()
        self._write_record(Record(self.record.run_id, dict(self.last_steps)))

    def _attempt(self, action: Callable[[], None]) -> None:
        """Do this; if it fails, warn and leave the service out from now on."""
        try:
            action()
        except Exception as error:  # whatever a service raises, training continues
            self.is_open = False
            with suppress(Exception):
                self.close(False)
            self.warn_user(
                f"logger {self.name} failed ({reason(error)}) and is left out; {self.folder / 'metrics.jsonl'} has "
                f"every row, and resuming {self.folder} with logger {self.name} sends those that are missing"
            )


def shorten(value: Any, length: int) -> str:
    """A setting as text of at most this length.

    >>> shorten([1, 2], 10), shorten("a" * 12, 10)
    ('[1, 2]', 'aaaaaaa...')
    """
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= length else f"{text[: length - 3]}..."
