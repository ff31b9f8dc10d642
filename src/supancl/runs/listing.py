"""Which runs are below a folder, and how large they are."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

INNER_FOLDERS = ("checkpoints", "tensorboard", "evaluate", "loggers", "wandb", "mlruns")  # of a run


def find_runs(folder: Path) -> Iterator[Path]:
    """Every run folder below this one, and the folder itself if it is a run; links and hidden folders are left out."""
    for path, folders, files in os.walk(folder):
        has_remains = "metrics.jsonl" in files or any((Path(path) / "checkpoints").glob("step-*.pt"))
        if "recipe.json" in files or "detect.json" in files or has_remains:
            yield Path(path)
            folders[:] = [name for name in folders if name not in INNER_FOLDERS]
        folders[:] = sorted(name for name in folders if not name.startswith("."))


def folder_bytes(folder: Path) -> int:
    """The bytes of all files below a folder; of a link only its own."""
    total = 0
    for path, _, files in os.walk(folder):
        for name in files:
            with suppress(OSError):  # removed in the meantime
                total += os.lstat(os.path.join(path, name)).st_size
    return total


def last_written(*paths: Path) -> float:
    """When the first of these files that is there was written, in seconds since 1970; NaN without one."""
    for path in paths:
        with suppress(OSError):
            return path.stat().st_mtime
    return math.nan
