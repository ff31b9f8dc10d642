"""Works through the plan: trains a run, judges it beside the next one, and keeps what came out as one file.

The state is which files are in results/: a run that was not finished when its machine went away is made again, one
that the same machine still has goes on.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from evidence.judge import judge
from evidence.plan import Plan, Step, kind_of, settings_of, words_of
from evidence.results import choose, expected_seconds, identity_of, read_results, waiting
from supancl.cli import main
from supancl.errors import BadInput, Collapsed, Interrupted, NonFinite
from supancl.reuse import one_step
from supancl.run import RunFolder
from supancl.studies.many import is_finished

TOLD = "evidence.json"  # in the run folder: what judging needs to know of the training
# success, collapse, a loss that is no number: what the settings did; anything else is a fault of ours or of the machine
A_RESULT = (0, Collapsed.exit_code, NonFinite.exit_code)
Say = Callable[[str], None]


def say(text: str) -> None:
    print(text, flush=True)


class Driver:
    """`work` holds data/ and gets runs/; `until` is how many seconds there are, judging included."""

    def __init__(self, plan: Plan, results: Path, work: Path, until: float | None = None, beside: bool = False,
                 only: Sequence[str] = (), commit: str | None = None, shared: bool = False, tell: Say = say) -> None:
        self.plan, self.results, self.work, self.until = plan, results.resolve(), work.resolve(), until
        self.beside, self.only, self.commit, self.tell = beside, tuple(only), commit, tell
        self.shared = shared  # with other work on the same machine, so that speeds are not the run's own
        self.started = time.monotonic()
        self.judging: tuple[Step, subprocess.Popen[bytes]] | None = None
        self.tried: set[str] = set()

    @property
    def left(self) -> float:
        return float("inf") if self.until is None else self.until - (time.monotonic() - self.started)

    def run(self) -> list[str]:
        """The names of the runs that were made."""
        self.work.mkdir(parents=True, exist_ok=True)
        with inside(self.work), one_step():  # seeds and alphas of one method share a compiled step
            while True:
                step = self.next_step()
                if step is None and self.judging is None:
                    self.tell_stuck()
                    return sorted(self.tried)
                if step is None:
                    self.wait()  # what is being judged may be the last of the pilots that others wait for
                    continue
                self.tried.add(step.name)
                self.tell(f"{step.name}: about {self.expected(step, self.known()):.0f} s, {self.left:.0f} s left")
                self.train(step)
                self.judge(step)

    def tell_stuck(self) -> None:
        """A method of which no pilot could be judged has nothing to follow."""
        known = self.known()
        for method in self.plan.pilots:
            done = all(f"pilot-{method}-{number}" in known for number in range(len(self.plan.pilots[method])))
            if done and choose(self.plan, known, method) is None:
                self.tell(f"{method}: no pilot has a linear accuracy, so nothing that follows them can be started")

    def known(self) -> dict[str, dict[str, Any]]:
        return read_results(self.results, self.plan)

    def next_step(self) -> Step | None:
        """The first that is wanted, can be started, and still fits into the time."""
        known = self.known()
        for step in waiting(self.plan, known):
            fits = self.expected(step, known) <= self.left
            if step.name in self.tried or not self.wanted(step) or not fits:
                continue
            if step.follows is None or choose(self.plan, known, step.follows) is not None:
                return step
        return None

    def expected(self, step: Step, known: dict[str, dict[str, Any]]) -> float:
        """Judging included; what was compiled here before is compiled quickly."""
        here = {kind_of(other) for other in self.plan.steps if other.name in self.tried}
        return expected_seconds(step, self.plan, known, compiled=kind_of(step) in here)

    def wanted(self, step: Step) -> bool:
        return not self.only or any(word in step.name for word in self.only)

    # --- training -----------------------------------------------------------------------------------------------------

    def train(self, step: Step) -> None:
        known = self.known()
        chosen = None if step.follows is None else choose(self.plan, known, step.follows)
        settings = settings_of(step, self.plan, chosen)
        words, folder = words_of(step, self.plan, settings), RunFolder(Path("runs") / step.name)
        same = identity_of(step, self.plan, known) or step.name
        if (folder.path / TOLD).exists():  # trained before on this machine, and not judged
            if json.loads((folder.path / TOLD).read_text())["identity"] != same:
                raise BadInput(f"{self.work / folder.path} was trained with other settings than the plan has now; "
                               "remove it")
            return
        resumed = folder.holds_run
        code, lines, seconds = called([*words, *["--resume"] * resumed, "--quiet"])
        why = lines[-1] if code and lines else ""
        told = {
            "name": step.name, "stage": step.stage, "method": step.method, "seed": step.seed, "epochs": step.epochs,
            "identity": same, "settings": settings,
            "command": shlex.join(["supancl", *words]), "exit": code, "why": why, "train_seconds": round(seconds, 1),
            "warnings": [line for line in lines if line.startswith("warning: ")][:8],
            "resumed": resumed, "beside": self.judging is not None, "shared": self.shared,
            "commit": self.commit, **trained(folder),
        }
        if code not in A_RESULT:
            self.wait()
            raise BadInput(f"{step.name}: {why or f'exit {code}'}; nothing of it was kept, mend that and start again")
        folder.path.mkdir(parents=True, exist_ok=True)
        (folder.path / TOLD).write_text(json.dumps(told))
        finished = code == 0 and is_finished(folder, folder.read_recipe()[0])
        self.tell(f"{step.name}: trained in {seconds:.0f} s" if finished else f"{step.name}: exit {code}: {why}")
        tidied()

    # --- judging ------------------------------------------------------------------------------------------------------

    def judge(self, step: Step) -> None:
        """In a process of its own where the next run can be trained meanwhile; one at a time."""
        self.wait()
        if not self.beside:
            judge(self.plan, step.name, Path("runs") / step.name, self.results, called)
            self.told(step)
            return
        words = [sys.executable, "-m", "evidence", "judge", step.name, "--plan", self.plan.name, "--results",
                 str(self.results), "--work", str(self.work)]
        self.judging = step, subprocess.Popen(words, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})

    def wait(self) -> None:
        if self.judging is not None:
            (step, process), self.judging = self.judging, None
            process.wait()
            self.told(step)

    def told(self, step: Step) -> None:
        found = self.known().get(step.name)
        if found is None:
            self.tell(f"{step.name}: could not be judged")
            return
        shown = ", ".join(f"{key} {value:.2f}" for key, value in found["values"].items() if "interval" not in key)
        self.tell(f"{step.name}: {found['status']}; {shown}; judged in {found['judge_seconds']:.0f} s")


def trained(folder: RunFolder) -> dict[str, Any]:
    """Speed and the losses of the last epoch, as the run's own log has them."""
    rows = [row for row in folder.metrics() if row["kind"] == "train"]
    if not rows:
        return {"images_per_second": None, "last": {}, "curve": []}
    last = [row for row in rows if row["epoch"] == rows[-1]["epoch"]]
    means = {key: statistics.fmean(values) for key in ("loss", "ssl", "sup", "std")
             if (values := [row[key] for row in last if row[key] is not None])}
    checks = [row for row in folder.metrics() if row["kind"] == "monitor"]
    if checks:
        means |= {f"target_{key}": checks[-1][key] for key in ("effective_rank",) if checks[-1].get(key) is not None}
    losses: dict[int, list[float]] = {}
    for row in rows:
        losses.setdefault(row["epoch"], []).append(row["loss"])
    every = max(1, len(losses) // 20)
    curve = [[epoch, round(statistics.fmean(values), 4)] for epoch, values in losses.items()
             if epoch % every == 0 or epoch == rows[-1]["epoch"]]
    speeds = [row["images_per_second"] for row in rows]
    return {"images_per_second": round(statistics.median(speeds), 1), "last": means, "curve": curve}


def called(words: Sequence[str]) -> tuple[int, list[str], float]:
    """The command in this process: its exit status, the lines of its standard error, and the seconds it took."""
    heard, since = io.StringIO(), time.perf_counter()
    with contextlib.redirect_stderr(heard):
        try:
            code = main(list(words))
        except SystemExit as stop:
            code = int(stop.code or 0)
    lines = [line.removeprefix("supancl: ") for line in heard.getvalue().splitlines() if line.strip()]
    for line in lines:
        print(line, file=sys.stderr, flush=True)
    if code in (130, 143):
        raise Interrupted(lines[-1] if lines else "stopped", code - 128)
    return code, lines, time.perf_counter() - since


def tidied() -> None:
    """Memory of the run before the last, which nothing refers to but itself.

    The compiler is left alone: what it compiled belongs to the captured step that the next run may take over.
    """
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Commands name data and runs from there, so that a result says nothing of the machine."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def check_data(plan: Plan, work: Path) -> None:
    if plan.data != "digits" and not (work / plan.data).exists():
        raise BadInput(f"{work / plan.data} is missing; unpack the data sets into {work / 'data'}")
