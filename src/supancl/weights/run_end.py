"""The end of a run: finished.json or stopped.json, and which checkpoints a finished run keeps."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import Any, NamedTuple

from supancl.config import parse_json
from supancl.errors import BadInput, Interrupted, Stopped
from supancl.files import is_as_written, read_text, write_sealed_json
from supancl.weights.run_folder import RunFolder


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
    with suppress(BadInput, OSError):
        write_sealed_json(folder.stop_file, cause._asdict())


def read_stop(folder: RunFolder) -> StopCause | None:
    """What stopped.json says; None if there is none, as after `kill -9`, or if it is damaged."""
    try:
        content = parse_json(read_text(folder.stop_file))
        cause = StopCause(content["step"], content["reason"], content["exit_code"])
        is_intact = is_as_written(content)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    types = (int, str, int)
    return cause if is_intact and all(map(isinstance, cause, types)) else None


def record_end(folder: RunFolder, end: RunEnd, keep: str) -> None:
    """Write finished.json, then remove the checkpoints that `train.keep` does not keep."""
    if read_end(folder) != end:
        write_sealed_json(folder.end_file, {**end._asdict(), "run": folder.read_run_name()})
    if keep != "all":
        for path in folder.checkpoint_files()[: -1 if keep == "one" else None]:
            path.unlink(missing_ok=True)


def read_end(folder: RunFolder) -> RunEnd | None:
    """The end that finished.json records; None if there is none, or if the newest checkpoint is of an earlier step.

    A file that is damaged or of another run says nothing.
    """
    try:
        content = parse_json(read_text(folder.end_file))
        end = RunEnd(content["step"], content["collapsed"])
        is_intact = is_as_written(content) and content["run"] == folder.read_run_name()
    except (OSError, ValueError, LookupError, TypeError):
        return None
    if not is_intact or not isinstance(end.step, int) or not isinstance(end.collapsed, bool):
        return None
    newest = folder.checkpoint_files()[-1:]
    return None if newest and newest[0].name < f"step-{end.step:09d}.pt" else end


def has_collapsed(folder: RunFolder) -> bool | None:
    """Whether a run has collapsed, by finished.json or its newest checkpoint; None if neither says."""
    from supancl.weights.checkpoint import load_newest  # here, because torch takes seconds and finished.json none

    if (end := read_end(folder)) is not None:
        return end.collapsed
    return _collapsed_in(load_newest(folder.checkpoints)[0])


def peek_collapsed(folder: RunFolder) -> bool | None:
    """As `has_collapsed`, for lists of runs: reads no weights, compares no digest, and a damaged file says nothing."""
    if (end := read_end(folder)) is not None:
        return end.collapsed
    for path in reversed(folder.checkpoint_files()):
        from supancl.weights.checkpoint import load_tensors

        with suppress(BadInput, OSError):
            return _collapsed_in(load_tensors(path, mapped=True))
    return None


def _collapsed_in(state: dict[str, Any] | None) -> bool | None:
    monitor = (state or {}).get("monitor")
    collapsed = monitor.get("collapsed") if isinstance(monitor, dict) else None
    return collapsed if isinstance(collapsed, bool) else None
