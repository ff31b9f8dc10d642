"""The log of a run, row by row: metrics.jsonl and TensorBoard."""

from __future__ import annotations

import contextlib
import json
import math
from typing import IO, Any

from supancl.errors import BadInput
from supancl.files import jsonable
from supancl.weights.run_folder import RunFolder


class MetricsLog:
    """Writes rows to metrics.jsonl and to TensorBoard."""

    def __init__(self, folder: RunFolder, resumed_at: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.folder = folder
        self.file: IO[str] = open(folder.metrics_file, "a")  # noqa: SIM115 - closed by close()
        # TensorBoard forgets this step and those after it; the row of `resumed_at` itself stays
        purge_step = None if resumed_at is None else resumed_at + 1
        self.board = SummaryWriter(str(folder.tensorboard), purge_step=purge_step)

    def write(self, row: dict[str, Any]) -> None:
        try:
            self.file.write(json.dumps(jsonable(row)) + "\n")
            self.file.flush()
            for name, value in row.items():
                if isinstance(value, (int, float)) and name not in ("step", "epoch") and math.isfinite(value):
                    self.board.add_scalar(f"{row['kind']}/{name}", value, row["step"])
        except OSError as error:
            raise BadInput(
                f"{self.folder.metrics_file} cannot be written ({error.strerror}); make room, then continue "
                f"with --resume --out {self.folder.path}"
            ) from None

    def rewind(self, step: int) -> None:
        """Forget the rows after `step`, which will be written again."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self.file.close()
        self.folder.keep_metrics_until(step)
        self.file = open(self.folder.metrics_file, "a")  # noqa: SIM115 - closed by close()
        # what a purge_step writes, in the same file: files of one second are not surely read in their order
        event = Event(step=step + 1, session_log=SessionLog(status=SessionLog.START))
        self.board._get_file_writer().add_event(event)

    def close(self) -> None:
        for close in (self.file.close, self.board.close):
            with contextlib.suppress(OSError):
                close()


class NoLog(MetricsLog):
    """For ranks that do not write."""

    def __init__(self) -> None: ...

    def write(self, row: dict[str, Any]) -> None: ...

    def rewind(self, step: int) -> None: ...

    def close(self) -> None: ...
