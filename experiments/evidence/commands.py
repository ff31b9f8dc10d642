"""A driver that takes commands from a queue, so that one machine works through any experiments.

    python -m experiments.evidence.commands WORK SECONDS

WORK/queue holds files 000.command, 001.command, ... of one command line each; a driver renames the first one and runs
it, so that several drivers share a queue and lines can be added while they run. In a command {data} is the folder of
unpacked data, {results} the one that is collected, and {runs} the one for run folders. Nothing is begun after SECONDS.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

QUEUE = "queue"


def take_command(queue: Path) -> Path | None:
    """The first command of the queue, now named .taken; None if the queue is empty."""
    for path in sorted(queue.glob("*.command")):
        taken = path.with_suffix(".taken")
        try:
            os.rename(path, taken)
        except FileNotFoundError:  # another driver was faster
            continue
        return taken
    return None


def run_command(work: Path, taken: Path) -> int:
    """Run a command with its output in WORK/logs; a failure is said there too, and the next command follows."""
    folders = {name: str(work / name) for name in ("data", "results", "runs")}
    words = [word.format(**folders) for word in shlex.split(taken.read_text())]
    if words[0] == "python":
        words[0] = sys.executable
    started = time.monotonic()
    with open(work / "logs" / f"command-{taken.stem}.log", "wb") as log:
        code = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False).returncode
    print(f"{taken.stem}: exit {code} after {time.monotonic() - started:.0f} s: {shlex.join(words)}", flush=True)
    return code


def main(work: Path, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and (taken := take_command(work / QUEUE)) is not None:
        run_command(work, taken)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
