"""Work through the cells of a study: each becomes one result file, and several drivers may share a work folder.

The work folder holds data/, and gets runs/, results/STUDY/, logs/ and locks/. A lock ends with its process, so the cell
of a killed driver is free at once. On a machine that is there for a short time, drivers run in sessions of their own:
they outlive the command that started them, and a later command waits for them and packs what came out.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from experiments.evidence.numbers import RESULTS
from supancl.cli import main
from supancl.errors import Interrupted
from supancl.files import write_json
from supancl.runs.provenance import commit

ROOT = Path(__file__).parents[2]
DRIVER = "driver "  # begins the name of a driver's own lock
EXITS = (0, 3, 4)  # success, collapse, a loss that is not finite: results of the settings, not faults


class Failed(Exception):
    """A command ended with an error."""


@dataclass(frozen=True)
class Work:
    """A study on one machine. Commands run in `folder`, so that their paths, and the results, do not depend on it."""

    folder: Path
    study: str
    commit: str | None = None
    earlier: Path = RESULTS  # results of other machines
    quick: bool = False  # sizes that say nothing, to see that everything runs

    @property
    def results(self) -> Path:
        return self.folder / "results" / self.study

    def call(self, words: Sequence[str]) -> tuple[int, list[str], dict[str, Any]]:
        """Run a command in this process: its exit code, the lines of standard error, and the json that it wrote."""
        answer, stderr = self.folder / "runs" / f"{time.time_ns()}.json", io.StringIO()
        with contextlib.redirect_stderr(stderr):
            code = main([*words, "--quiet", "--json", str(answer)])
        lines = [line.removeprefix("supancl: ") for line in stderr.getvalue().splitlines() if line.strip()]
        print(*lines, sep="\n", end="\n" * bool(lines), file=sys.stderr, flush=True)
        if code in (130, 143):
            raise Interrupted(lines[-1] if lines else "stopped", code - 128)
        if code not in EXITS:
            raise Failed(f"exit {code}: {lines[-1] if lines else shlex.join(words)}")
        found = json.loads(answer.read_text()) if answer.exists() else {}
        answer.unlink(missing_ok=True)
        return code, lines, found


class Cell(Protocol):
    """One result of a study."""

    @property
    def name(self) -> str: ...

    def is_ready(self, work: Work) -> bool:
        """Whether its data and the cells that it builds on are there."""

    def measure(self, work: Work) -> dict[str, Any]: ...


# --- locks ------------------------------------------------------------------------------------------------------------


@dataclass
class Locks:
    """The locks that this process holds; all drivers of a work folder share `folder`."""

    folder: Path
    own: dict[str, int] = field(default_factory=dict)  # name -> open file

    def take(self, name: str) -> bool:
        """Lock a name; False if another process holds it."""
        if name not in self.own:
            with self._alone():
                descriptor = os.open(self.folder / name, os.O_RDWR | os.O_CREAT, 0o644)
                if not _try_lock(descriptor):
                    os.close(descriptor)
                    return False
                self.own[name] = descriptor
        return True

    def release(self, name: str) -> None:
        os.close(self.own.pop(name))

    def others(self) -> list[str]:
        """The names that other processes hold."""
        held = []
        with self._alone():
            for path in sorted(self.folder.iterdir()):
                if path.name != ".lock" and path.name not in self.own:
                    descriptor = os.open(path, os.O_RDWR)
                    held += [] if _try_lock(descriptor) else [path.name]
                    os.close(descriptor)
        return held

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One process at a time: looking at a lock takes it for a moment."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / ".lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# --- one driver -------------------------------------------------------------------------------------------------------


def left_of(cells: Sequence[Cell], work: Work, failed: Iterable[str] = ()) -> list[Cell]:
    return [cell for cell in cells if not (work.results / f"{cell.name}.json").exists() and cell.name not in failed]


def run(cells: Sequence[Cell], work: Work, until: float = float("inf")) -> None:
    """Measure the cells that no other driver has; wait for those that others may still build on."""
    for folder in (work.folder / "runs", work.results):
        folder.mkdir(parents=True, exist_ok=True)
    locks, failed, begun, before = Locks(work.folder / "locks"), set[str](), time.monotonic(), Path.cwd()
    os.chdir(work.folder)
    try:
        while (left := left_of(cells, work, failed)) and time.monotonic() - begun < until:
            cell = next((cell for cell in left if cell.is_ready(work) and locks.take(cell.name)), None)
            if cell is None:
                if not any(not name.startswith(DRIVER) for name in locks.others()):
                    return  # what the others need is not here
                time.sleep(1)
                continue
            if left_of([cell], work):  # else another driver has just done it
                failed |= measure(cell, work, len(left) - 1)
            locks.release(cell.name)
    finally:
        os.chdir(before)


def measure(cell: Cell, work: Work, left: int) -> set[str]:
    """Write the cell's result; its name if it failed."""
    since = time.monotonic()
    try:
        row = {"name": cell.name, "study": work.study, **cell.measure(work), "commit": work.commit or commit()}
    except Failed as error:
        print(f"{cell.name}: failed, {error}", flush=True)
        return {cell.name}
    write_json(work.results / f"{cell.name}.json", row)
    print(f"{cell.name}: done in {time.monotonic() - since:.0f} s, {left} left", flush=True)
    return set()


# --- several, in the background ---------------------------------------------------------------------------------------


def start(work: Work, drivers: int, words: Sequence[str]) -> None:
    """Start as many drivers as are missing. They run from a copy of the code, since it may change meanwhile."""
    locks, code = Locks(work.folder / "locks"), work.folder / "snapshot"
    running = [name for name in locks.others() if name.startswith(DRIVER)]
    if not running:
        shutil.rmtree(code, ignore_errors=True)
        for name in ("src", "experiments"):
            shutil.copytree(ROOT / name, code / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    environment, logs = environment_of(work.folder, code, drivers), work.folder / "logs"
    logs.mkdir(exist_ok=True)
    for number in range(drivers - len(running)):
        name = f"{DRIVER}{time.time_ns()}"
        locks.take(name)
        with open(logs / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "experiments.evidence", "run", *words],
                cwd=code,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(locks.own[name],),  # the driver holds its lock until it ends
            )
        process.returncode = 0  # Python would warn that it still runs, which is what it is meant to do
        locks.release(name)
        print(f"driver {len(running) + number + 1} of {drivers} started", flush=True)


def environment_of(folder: Path, code: Path, drivers: int) -> dict[str, str]:
    """Caches in the work folder, and CUDA's multi-process service if it works."""
    variables = {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // max(1, drivers))),
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(code / "src"), str(code), os.environ.get("PYTHONPATH", "")]),
        "PYTHONUNBUFFERED": "1",
        "SUPANCL_CACHE": str(folder / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "kernels" / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "kernels" / "triton"),
    }
    if drivers < 2 or not shutil.which("nvidia-cuda-mps-control"):
        return variables
    pipes = Path("/tmp/evidence-mps")  # short, as a socket must be
    pipes.mkdir(exist_ok=True)
    shared = {**variables, "CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(pipes)}
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    test = "import torch; torch.zeros(1).cuda().sum().item()"
    try:
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env=shared, timeout=20, start_new_session=True, **quiet)
        subprocess.run([sys.executable, "-c", test], env=shared, check=True, timeout=120, **quiet)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"the multi-process service does not work ({error}); the drivers take turns on the GPU", flush=True)
        return variables
    return shared


def wait(work: Work, seconds: float) -> None:
    """Until every driver has ended, or so many seconds have passed; then say how far they are."""
    end, locks = time.monotonic() + seconds, Locks(work.folder / "locks")
    while (running := [name for name in locks.others() if name.startswith(DRIVER)]) and time.monotonic() < end:
        time.sleep(min(1.0, max(0.0, end - time.monotonic())))
    print(f"{len(running)} drivers run; {len(list(work.results.glob('*.json')))} results", flush=True)
    for path in sorted((work.folder / "logs").glob("*.log"))[-8:]:
        print(path.name, *path.read_text(errors="replace").splitlines()[-3:], sep="\n  ", flush=True)


def collect(work: Work, out: Path) -> None:
    """Pack the results, and the logs of the drivers and of runs, into two files."""
    out.mkdir(parents=True, exist_ok=True)
    logs = [*work.folder.glob("logs/*.log"), *work.folder.glob("runs/*/metrics.jsonl")]
    for name, base, paths in (
        ("results", work.folder / "results", work.results.glob("*.json")),
        ("logs", work.folder, logs),
    ):
        with tarfile.open(out / f"{name}.tar.gz", "w:gz") as packed:
            for path in sorted(paths):
                packed.add(path, arcname=str(path.relative_to(base)))


def earlier_results(work: Work) -> None:
    """Rows of earlier machines are not measured again."""
    work.results.mkdir(parents=True, exist_ok=True)
    for path in sorted((work.earlier / work.study).glob("*.json")):
        if not (work.results / path.name).exists():
            shutil.copyfile(path, work.results / path.name)
