"""An hour of work in two processes, whose memory and handles must stay flat: python -m tests.long.soak [MINUTES]

One process calls commands again and again: it trains, resumes, evaluates, writes features, looks at images and is given
bad input. The other is a single training that decodes its images anew in every epoch. Memory, open files and threads
are written down every half minute; the first quarter is warm-up. Growth over the rest, by a line through all points,
may not exceed LIMITS.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from tests.faults.commands import say
from tests.helpers import TINY, class_folders

EVERY = 30.0  # seconds
LIMITS = {"memory": 20.0, "files": 1.0, "threads": 1.0}  # growth per hour; memory in MB
Point = tuple[float, float, int, int]  # seconds, MB resident, open files, threads


def look(process: int) -> Point:
    folder = Path(f"/proc/{process}")
    megabytes = int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    return time.monotonic(), megabytes, len(os.listdir(folder / "fd")), len(os.listdir(folder / "task"))


def start_training(place: Path) -> subprocess.Popen[bytes]:
    """A training without an end on images that are decoded each time."""
    words = ["pretrain", "digits.supsiam", *TINY, "--data", place / "data", "--out", place / "long", "--quiet"]
    words += ["--epochs", "1000000", "--checkpoint-every", "500", "--set", "data.cache=never"]
    words += ["--set", "data.memory_gb=1e-6"]
    return subprocess.Popen([sys.executable, "-m", "supancl", *map(str, words)], stdout=subprocess.DEVNULL)


def work(place: Path) -> None:
    """One round of commands; its folder is removed again."""
    out, data = place / "round", place / "data"
    train = ("pretrain", "digits.supbyol", *TINY, "--set", "data.limit=64", "--out", out / "run")
    for words in (
        train,
        (*train, "--epochs", "2", "--resume"),  # refused: a finished run has its number of epochs
        ("evaluate", out / "run"),
        ("embed", out / "run", "--data", data, "--out", out / "features.npz"),
        ("data", "show", data, "--out", out / "sheet.png"),
        ("evaluate", "knn", out / "missing"),
        ("recipes", "digits.byol"),
    ):
        assert say(*words).code in (0, 2), words
    assert (out / "run" / "metrics.jsonl").stat().st_size
    shutil.rmtree(out)


def soak(place: Path, minutes: float) -> dict[str, list[Point]]:
    points: dict[str, list[Point]] = {"commands": [], "training": []}
    os.environ["SUPANCL_CACHE"] = str(place / "cache")
    class_folders(place / "data", each=40)
    training = start_training(place)
    try:
        until, last = time.monotonic() + minutes * 60, time.monotonic()
        while time.monotonic() < until:
            work(place)
            assert training.poll() is None, f"the training ended with {training.returncode}"
            if time.monotonic() - last >= EVERY:
                last = time.monotonic()
                gc.collect()
                for name, process in (("commands", os.getpid()), ("training", training.pid)):
                    points[name].append(look(process))
        training.send_signal(signal.SIGTERM)
        assert training.wait(120) == 143
    finally:
        training.kill()
    return points


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        taken = soak(Path(folder), float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)
    failed = False
    for name, points in taken.items():
        kept = np.array(points[len(points) // 4 :])
        growth = {what: float(np.polyfit(kept[:, 0] / 3600, kept[:, 1 + i], 1)[0]) for i, what in enumerate(LIMITS)}
        print(f"{name}: {len(points)} points, growth per hour: {growth}")
        failed |= any(value > LIMITS[what] for what, value in growth.items())
    sys.exit(failed)
