"""An hour of work in two processes, whose memory and handles must stay flat.

    python -m tests.long.soak [--minutes 60]

One process calls commands again and again: it trains, resumes, evaluates, writes features, looks at images and is given
bad input. The other is a single training that decodes its images anew in every epoch. Memory, open files and threads
are written down every half minute; the first quarter is warm-up. Growth over the rest, by a line through all points,
may not exceed LIMITS.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from supancl.runs.folder import RunFolder
from tests.faults.commands import say
from tests.files import TINY, class_folders

EVERY = 30.0  # seconds
LIMITS = {"memory": 20.0, "files": 1.0, "threads": 1.0}  # growth per hour; memory in MB


class Point(NamedTuple):
    seconds: float
    memory: float  # MB resident
    files: int
    threads: int


def look(process: int, started: float) -> Point:
    folder = Path(f"/proc/{process}")
    pages = int((folder / "statm").read_text().split()[1])
    return Point(
        time.monotonic() - started,
        pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
        len(os.listdir(folder / "fd")),
        len(os.listdir(folder / "task")),
    )


def growth(points: list[Point]) -> dict[str, float]:
    """Per hour, after the first quarter."""
    kept = np.array(points[len(points) // 4 :])
    hours = kept[:, 0] / 3600
    return {name: float(np.polyfit(hours, kept[:, column], 1)[0]) for column, name in enumerate(LIMITS, 1)}


def start_training(place: Path) -> subprocess.Popen[bytes]:
    """A training without an end on images that are decoded each time."""
    words = [
        "pretrain",
        "digits.supsiam",
        *TINY,
        "--data",
        place / "data",
        "--epochs",
        "1000000",
        "--out",
        place / "long",
    ]
    words += ["--set", "data.cache=never", "--set", "data.memory_gb=1e-6", "--checkpoint-every", "500", "--quiet"]
    return subprocess.Popen([sys.executable, "-m", "supancl.cli", *map(str, words)], stdout=subprocess.DEVNULL)


def work(place: Path, number: int) -> None:
    """One round of commands; its folder is removed again."""
    run, data = place / "run", place / "data"
    train = ("pretrain", "digits.supbyol", *TINY, "--set", "data.limit=64", "--out", run)
    for words in (
        train,
        (*train, "--epochs", "2", "--resume"),  # refused: a finished run has its number of epochs
        ("evaluate", "knn", run),
        ("evaluate", "linear", run),
        ("embed", run, "--data", data, "--out", place / "features.npz"),
        ("data", "show", data, "--out", place / "sheet.png"),
        ("evaluate", "knn", place / "missing"),
        ("recipes", "digits.byol"),
    ):
        assert say(*words).code in (0, 2), words
    assert RunFolder(run).metrics()
    for path in (run, place / "features.npz", place / "sheet.png"):
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)


def soak(minutes: float) -> dict[str, list[Point]]:
    torch.set_num_threads(1)
    points: dict[str, list[Point]] = {"commands": [], "training": []}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        place = Path(name)
        os.environ["SUPANCL_CACHE"] = str(place / "cache")
        class_folders(place / "data", each=40)
        training = start_training(place)
        stack.callback(training.kill)
        started = last = time.monotonic()
        for number in itertools.count():
            work(place, number)
            assert training.poll() is None, f"the training ended with {training.returncode}"
            if time.monotonic() - last >= EVERY:
                last = time.monotonic()
                gc.collect()
                points["commands"].append(look(os.getpid(), started))
                points["training"].append(look(training.pid, started))
                print(f"{number:6} rounds  {points['commands'][-1]}  {points['training'][-1]}", flush=True)
            if time.monotonic() - started >= minutes * 60:
                break
        training.send_signal(signal.SIGTERM)
        assert training.wait(120) == 143
        steps = RunFolder(place / "long").metrics()[-1]["step"]
        print(f"{number + 1:,} rounds of commands; the training took {steps:,} steps")
    return points


def report(points: dict[str, list[Point]]) -> int:
    """Print growth per hour; 1 if it exceeds a limit."""
    code = 0
    for name, taken in points.items():
        per_hour = growth(taken)
        text = ", ".join(f"{what} {value:+.2f}" for what, value in per_hour.items())
        print(f"{name}: {len(taken)} points, {taken[-1].memory:.0f} MB at the end; growth per hour: {text}")
        code |= any(value > LIMITS[what] for what, value in per_hour.items())
    return code


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    sys.exit(report(soak(parser.parse_args().minutes)))
