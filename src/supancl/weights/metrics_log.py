"""The log of a run: metrics.jsonl and TensorBoard."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable
from typing import IO, Any

from supancl.errors import BadInput
from supancl.files import describe_write_failure, jsonable, make_inner_folder, open_to_append, reason
from supancl.weights.log_rows import row_numbers
from supancl.weights.run_folder import RunFolder


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
