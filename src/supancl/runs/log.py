"""The log of a run and its end: metrics.jsonl (an object in JSON per line), TensorBoard, finished and stopped.json."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from supancl.config import parse_json
from supancl.errors import BadInput, Collapsed, Interrupted, Stopped
from supancl.files import (
    describe_write_failure,
    is_as_written,
    jsonable,
    make_inner_folder,
    open_regular,
    open_to_append,
    read_json,
    reason,
    write_sealed_json,
)

if TYPE_CHECKING:
    from supancl.runs.folder import RunFolder

MAX_ROW_LENGTH = 2**20  # of a line, in characters: ours have hundreds
OLD_KEYS = {"row", "crc"}  # a number and a checksum, in rows of 0.2.0


def row_numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a row by name, without its step and epoch: what loggers draw."""
    return {
        name: value
        for name, value in row.items()
        if isinstance(value, (int, float)) and name not in ("step", "epoch") and math.isfinite(value)
    }


def read_rows(path: Path) -> tuple[list[dict[str, Any]], str]:
    """The rows of a log, and how many lines are none, in words; a killed run leaves a last line without its end.

    Every row has a kind, a step and an epoch.
    """
    with io.TextIOWrapper(open_regular(path), encoding="utf-8", errors="replace", newline="\n") as file:
        lines = [_parse_row(line) for line in iter(lambda: file.readline(MAX_ROW_LENGTH), "") if line.endswith("\n")]
    rows = [row for row in lines if row is not None]
    skipped = len(lines) - len(rows)
    return rows, f"lines that cannot be read and are left out: {skipped}" if skipped else ""


def _parse_row(line: str) -> dict[str, Any] | None:
    try:
        row = parse_json(line)
        row.setdefault("epoch", 0)  # detectors count none
    except (ValueError, AttributeError):
        return None
    is_row = all(isinstance(row.get(key), kind) for key, kind in (("kind", str), ("step", int), ("epoch", int)))
    return {key: value for key, value in row.items() if key not in OLD_KEYS} if is_row else None


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
        self.excepthook = threading.excepthook
        threading.excepthook = self._ignore_board_thread

    def _ignore_board_thread(self, args: threading.ExceptHookArgs) -> None:
        if type(args.thread).__name__ != "_AsyncWriterThread":  # its error is raised again by `write`
            self.excepthook(args)

    def write(self, row: dict[str, Any]) -> None:
        try:
            self.file.write(json.dumps(jsonable(row)) + "\n")
            self.file.flush()
            for name, value in row_numbers(row).items():
                self.board.add_scalar(f"{row['kind']}/{name}", value, row["step"])
        except OSError as error:
            raise BadInput(describe_write_failure(self.folder.metrics_file, reason(error))) from None

    def sync(self) -> None:
        """Make the rows so far survive a power cut; before a checkpoint, which counts on them."""
        with contextlib.suppress(OSError):  # not every file system can sync
            os.fsync(self.file.fileno())

    def close(self) -> None:
        for close in (self.file.close, self.board.close):
            with contextlib.suppress(OSError):
                close()
        threading.excepthook = self.excepthook


# --- the end of a run -------------------------------------------------------------------------------------------------


class RunEnd(NamedTuple):
    """The last step of a finished run, and whether it collapsed."""

    step: int
    collapsed: bool


class StopCause(NamedTuple):
    """Where and why a run ended before its last step; the exit code says which kind of reason it is."""

    step: int
    reason: str
    exit_code: int


def record_stop(folder: RunFolder, step: int, error: Exception) -> None:
    """Write stopped.json; a failure to do so must not hide the reason for the stop."""
    reason = f"an error: {' '.join(str(error).split())[:300] or type(error).__name__}"
    if isinstance(error, (Stopped, Interrupted)):
        reason = signal.Signals(error.signal_number).name if isinstance(error, Interrupted) else error.cause
    cause = StopCause(step, reason, getattr(error, "exit_code", 1))
    with contextlib.suppress(BadInput, OSError):
        write_sealed_json(folder.stop_file, cause._asdict())


def read_stop(folder: RunFolder) -> StopCause | None:
    """What stopped.json says; None if there is none, as after `kill -9`, or if it is damaged."""
    content: Any = read_json(folder.stop_file)
    cause = StopCause(*map(content.get, StopCause._fields))
    return cause if is_as_written(content) and all(map(isinstance, cause, (int, str, int))) else None


def record_end(folder: RunFolder, end: RunEnd, keep: str) -> None:
    """Write finished.json, then remove the checkpoints that `train.keep` does not keep."""
    if read_end(folder) != end:
        write_sealed_json(folder.end_file, {**end._asdict(), "run": folder.read("run", "")})
    if keep != "all":
        for path in folder.checkpoint_files()[: -1 if keep == "one" else None]:
            path.unlink(missing_ok=True)


def read_end(folder: RunFolder) -> RunEnd | None:
    """The end that finished.json records; None if there is none, or if the newest checkpoint is of an earlier step.

    A file that is damaged or of another run says nothing.
    """
    content: Any = read_json(folder.end_file)
    end = RunEnd(*map(content.get, RunEnd._fields))
    is_ours = is_as_written(content) and content.get("run") == folder.read("run", "")
    if not is_ours or not all(map(isinstance, end, (int, bool))):
        return None
    newest = folder.checkpoint_files()[-1:]
    return None if newest and newest[0].name < f"step-{end.step:09d}.pt" else end


def has_collapsed(folder: RunFolder) -> bool | None:
    """Whether a run has collapsed, by finished.json or stopped.json; None if neither says."""
    if (end := read_end(folder)) is not None:
        return end.collapsed
    stop = read_stop(folder)
    return True if stop is not None and stop.exit_code == Collapsed.exit_code else None
