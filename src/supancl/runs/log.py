"""The log of a run: metrics.jsonl, an object in JSON per line, and TensorBoard."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from supancl.config import parse_json
from supancl.errors import BadInput
from supancl.files import describe_write_failure, jsonable, make_inner_folder, open_regular, open_to_append, reason

if TYPE_CHECKING:
    from supancl.runs.folder import RunFolder

MAX_ROW_LENGTH = 2**20  # of a line, in characters: ours have hundreds
OLD_KEYS = {"row", "crc"}  # a number and a checksum, in rows of 0.2.0


@dataclass
class LogRows:
    """What a log holds: rows with their lines, and the numbers of lines that are none."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)

    @property
    def damage(self) -> str:
        """Which lines are left out, in words; empty if none is."""
        more = f" and {len(self.damaged) - 1} more" if len(self.damaged) > 1 else ""
        return f"line {self.damaged[0]}{more} cannot be read" if self.damaged else ""


def row_numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a row by name, without its step and epoch: what loggers draw."""
    return {
        name: value
        for name, value in row.items()
        if isinstance(value, (int, float)) and name not in ("step", "epoch") and math.isfinite(value)
    }


def read_rows(path: Path, required: Mapping[str, type]) -> LogRows:
    """The rows of a log with these fields. A last line without its end is what a killed run leaves, and no damage."""
    log, number, is_open = LogRows(), 0, False
    with io.TextIOWrapper(open_regular(path), encoding="utf-8", errors="replace", newline="\n") as file:
        while line := file.readline(MAX_ROW_LENGTH):
            continues, is_open = is_open, not line.endswith("\n")
            number += not continues
            row = None if continues or is_open else _parse_row(line, required)
            if row is not None:
                log.rows.append(row)
                log.lines.append(line)
            elif not is_open:
                log.damaged.append(number)
    return log


def read_last_rows(path: Path, required: Mapping[str, type], max_bytes: int = 2**16) -> list[dict[str, Any]]:
    """The rows at the end of a log, to look at it quickly."""
    with open_regular(path) as file:
        start = max(0, os.fstat(file.fileno()).st_size - max_bytes)
        file.seek(start)
        lines = file.read(max_bytes).decode(errors="replace").split("\n")
    rows = (_parse_row(line, required) for line in lines[1 if start else 0 : -1])
    return [row for row in rows if row is not None]


def _parse_row(line: str, required: Mapping[str, type]) -> dict[str, Any] | None:
    """The row in a line; None if it is none."""
    try:
        row = parse_json(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or any(not isinstance(row.get(key), kind) for key, kind in required.items()):
        return None
    return {key: value for key, value in row.items() if key not in OLD_KEYS}


class MetricsLog:
    """Writes rows to metrics.jsonl and to TensorBoard."""

    def __init__(self, folder: RunFolder, resumed_at: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.folder = folder
        self.file: IO[str] = open_to_append(folder.metrics_file)
        make_inner_folder(folder.tensorboard)
        # TensorBoard drops this step and later ones; the row of `resumed_at` is kept
        purge_step = None if resumed_at is None else resumed_at + 1
        self.board = SummaryWriter(str(folder.tensorboard), purge_step=purge_step)
        self.excepthook = _ignore_board_threads()

    def write(self, row: dict[str, Any]) -> None:
        try:
            self.file.write(json.dumps(jsonable(row)) + "\n")
            self.file.flush()
            for name, value in row_numbers(row).items():
                self.board.add_scalar(f"{row['kind']}/{name}", value, row["step"])
        except OSError as error:
            way_out = f"free some space, then continue with resume out {self.folder.path}"
            raise BadInput(describe_write_failure(self.folder.metrics_file, reason(error), way_out)) from None

    def sync(self) -> None:
        """Make the rows so far survive a power cut; before a checkpoint, which counts on them."""
        with contextlib.suppress(OSError):  # not every file system can sync
            os.fsync(self.file.fileno())

    def rewind(self, step: int) -> None:
        """Drop the rows after `step`; they will be written again."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self.file.close()
        self.folder.keep_metrics_until(step)
        self.file = open_to_append(self.folder.metrics_file)
        # what purge_step writes, but in the same file: files of the same second may be read in any order
        event = Event(step=step + 1, session_log=SessionLog(status=SessionLog.START))
        self.board._get_file_writer().add_event(event)

    def close(self) -> None:
        for close in (self.file.close, self.board.close):
            with contextlib.suppress(OSError):
                close()
        threading.excepthook = self.excepthook


def _ignore_board_threads() -> Callable[[threading.ExceptHookArgs], object]:
    """Print no traceback of TensorBoard's thread: `write` raises its error. Returns the hook to restore."""
    previous = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if type(args.thread).__name__ != "_AsyncWriterThread":
            previous(args)

    threading.excepthook = hook
    return previous


class NoLog(MetricsLog):
    """For ranks that do not write."""

    def __init__(self) -> None: ...

    def write(self, row: dict[str, Any]) -> None: ...

    def sync(self) -> None: ...

    def rewind(self, step: int) -> None: ...

    def close(self) -> None: ...
