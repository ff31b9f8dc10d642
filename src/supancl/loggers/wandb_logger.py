"""Weights & Biases: `supancl pretrain ... --logger wandb`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from supancl.loggers.run_logger import LoggedRun, Numbers, RunLogger, shorten

MAX_TAG_LENGTH = 64


class WandbLogger(RunLogger):
    """Writes to RUN/wandb, or to WANDB_DIR. Nothing is uploaded unless WANDB_MODE=online is set."""

    name = "wandb"
    run: Any = None

    def open(self, run: LoggedRun, run_id: str | None) -> str:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # else wandb reports its errors even when offline
        import wandb

        folder = os.environ.get("WANDB_DIR") or str(run.make_folder("wandb").parent)
        mode: Any = os.environ.get("WANDB_MODE", "offline")
        self.run = wandb.init(
            id=run_id or uuid4().hex[:8],
            resume="allow",
            mode=mode,
            dir=folder,
            project=os.environ.get("WANDB_PROJECT", "supancl"),
            name=os.environ.get("WANDB_NAME", run.name),
            config=run.settings | run.tags | {"run_folder": run.name},
            tags=[shorten(run.tags[key], MAX_TAG_LENGTH) for key in ("recipe", "method")],
            settings=wandb.Settings(console="off", silent=True),
        )
        if self.run.offline:
            files = f"{shlex.quote(os.path.relpath(folder))}/wandb/offline-run-*{self.run.id}"
            self.note(f"wandb: offline run {self.run.id}; upload it with: wandb sync {files}")
        else:
            self.note(f"wandb: {self.run.url}")
        return str(self.run.id)

    def send(self, rows: Sequence[tuple[int, Numbers]]) -> None:
        for step, numbers in rows:
            self.run.log(numbers, step=step)

    def close(self, is_finished: bool) -> None:
        if self.run is not None:
            self.run.finish(exit_code=0 if is_finished else 1)
            self.run = None
