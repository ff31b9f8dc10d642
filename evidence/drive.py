"""Works through the plan: trains a run, judges it beside the next one, and keeps what came out as one file.

The state is which files are in results/: a run that was not finished when its machine went away is made again, one
that the same machine still has goes on. Several drivers may work in one folder: each claims what it makes.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from evidence.claims import Claims
from evidence.judge import judge
from evidence.plan import START_SECONDS, Plan, Step, kind_of, settings_of, words_of
from evidence.results import (
    Results,
    choose,
    expected_seconds,
    identity_of,
    judging_seconds,
    read_results,
    waiting,
)
from supancl.cli import main
from supancl.errors import BadInput, Collapsed, Interrupted, NonFinite
from supancl.files import write_text
from supancl.sweeps.runs import is_finished
from supancl.training.cuda.reuse import one_step
from supancl.weights.run_folder import RunFolder

TOLD = "evidence.json"  # in the run folder: what judging needs to know of the training
# success, collapse, a loss that is no number: what the settings did; anything else is a fault of ours or of the machine
A_RESULT = (0, Collapsed.exit_code, NonFinite.exit_code)
FEW = 4  # so many next runs of the plan may change places
FAULTS = 2  # in a row, that are not the runs' own, before a driver gives up
PAUSE = 0.5  # seconds between looks at what others do
UNMEASURED: dict[str, Any] = {"images_per_second": None, "last": {}, "curve": []}
Say = Callable[[str], None]


def say(text: str) -> None:
    print(text, flush=True)


class Driver:
    """`work` holds data/ and gets runs/ and claims/; `until` is how many seconds there are, judging included."""

    def __init__(
        self,
        plan: Plan,
        results: Path,
        work: Path,
        until: float | None = None,
        beside: bool = False,
        only: Sequence[str] = (),
        commit: str | None = None,
        shared: bool = False,
        tell: Say = say,
    ) -> None:
        self.plan, self.results, self.work, self.until = plan, results.resolve(), work.resolve(), until
        self.beside, self.only, self.commit, self.tell = beside, tuple(only), commit, tell
        self.shared = shared  # with other work on the same machine, so that speeds are not the run's own
        self.started = time.monotonic()
        self.claims = Claims(self.work / "claims")
        self.claimed: dict[str, str] = {}  # run -> what is claimed for it
        self.tried: set[str] = set()
        self.kinds: list[str] = []  # that were compiled here, the last one last
        self.trained: list[Step] = []  # and not judged yet
        self.judging: tuple[Step, subprocess.Popen[bytes]] | None = None
        self.unjudged: set[str] = set()  # judging has failed once
        self.faults: list[str] = []
        self.in_a_row = 0  # faults

    @property
    def left(self) -> float:
        return float("inf") if self.until is None else self.until - (time.monotonic() - self.started)

    def run(self) -> list[str]:
        """The names of the runs that were made."""
        self.work.mkdir(parents=True, exist_ok=True)
        try:
            with inside(self.work), one_step():  # seeds and alphas of one method share a compiled step
                while self.turn():
                    pass
        except Exception as error:
            if not isinstance(error, Interrupted):  # with the driver its machine may go, and what is being judged on it
                self.wait()
            raise
        finally:
            self.claims.leave()
        if self.faults:
            raise BadInput("; ".join(self.faults))
        return sorted(self.tried)

    def turn(self) -> bool:
        """One run, or waiting for what others or the data bring; False at the end."""
        self.judge_next()
        step = self.next_step()
        if step is not None:
            self.make(step)
        elif self.judging is not None:
            self.wait()  # what is being judged may be the last of the pilots that others wait for
        elif self.worth_waiting():
            time.sleep(PAUSE)
        else:
            self.tell_stuck()
            return False
        return True

    def make(self, step: Step) -> None:
        self.tried.add(step.name)
        self.tell(f"{step.name}: about {self.expected(step, self.known()):.0f} s, {self.left:.0f} s left")
        if self.train(step):
            self.in_a_row = 0
            self.trained.append(step)
            return
        self.claims.release(self.claimed[step.name])
        self.in_a_row += 1
        if self.in_a_row >= FAULTS:
            raise BadInput("; ".join(self.faults))

    def tell_stuck(self) -> None:
        """What was left: runs without their data, and methods of which no pilot could be judged."""
        for step in self.trained:
            self.tell(
                f"{step.name}: trained, not judged for want of {', '.join(self.lacks(step)) or 'time'}; start "
                "again on this machine, with them there"
            )
        known = self.known()
        for method in self.plan.pilots:
            done = all(f"pilot-{method}-{number}" in known for number in range(len(self.plan.pilots[method])))
            if done and choose(self.plan, known, method) is None:
                self.tell(f"{method}: no pilot has a linear accuracy, so nothing that follows them can be started")

    def known(self) -> dict[str, dict[str, Any]]:
        return read_results(self.results, self.plan)

    # --- which run comes next -----------------------------------------------------------------------------------------

    def next_step(self) -> Step | None:
        """The best of those that are wanted, can be started, still fit into the time, and that nobody else makes."""
        known = self.known()
        free = [
            step
            for step in self.possible(known)
            if step.follows is None or choose(self.plan, known, step.follows) is not None
        ]
        if self.judging is not None and self.judging[0].stage == "pilot":  # in seconds it may free what comes earlier
            near = waiting(self.plan, known)[:FEW]
            free = [step for step in free if step in near]
        busy = self.compiled_by_others() - set(self.kinds) if free else set()
        for _, _, step in sorted((self.rank(step, place, busy), place, step) for place, step in enumerate(free)):
            what = self.claim_of(step, known)
            compiles = kind_of(step) not in self.kinds
            if not self.claims.take(what, run=step.name, kind=kind_of(step), compiles=compiles, since=time.time()):
                continue
            if step not in waiting(self.plan, self.known()):  # judged by somebody else since we looked
                self.claims.release(what)
                continue
            self.claimed[step.name] = what
            return step
        return None

    def compiled_by_others(self) -> set[str]:
        """The kinds of which another driver has just begun its first run; later their kernels are in the cache."""
        begin = self.plan.speeds.compile_seconds + START_SECONDS
        return {
            told["kind"] for told in self.claims.others() if told["compiles"] and time.time() - told["since"] < begin
        }

    def possible(self, known: Results) -> list[Step]:
        """Wanted, not tried, and short enough; the pilots of some may not be known yet."""
        owed = sum(judging_seconds(step, self.plan, known) for step in self.trained)
        return [
            step
            for step in waiting(self.plan, known)
            if step.name not in self.tried
            and self.wanted(step)
            and self.has_encoder(step)
            and self.expected(step, known) + owed <= self.left
        ]

    def rank(self, step: Step, place: int, busy: set[str]) -> int:
        """What only lacks its judging, then a pilot whose kernels are at hand, then what nobody else compiles.

        Final runs come as the plan has them: one that waited for its kind would cost more than compiling does.
        """
        if self.is_trained(step):
            return 0
        if self.kinds and kind_of(step) == self.kinds[-1] and place < FEW and step.stage == "pilot":
            return 1
        return 3 if kind_of(step) in busy else 2

    def claim_of(self, step: Step, known: Results) -> str:
        """The same for steps that are the same run under two names."""
        same = None if step.stage == "pilot" else identity_of(step, self.plan, known)
        return step.name if same is None else f"{same} seed={step.seed}"

    def worth_waiting(self) -> bool:
        """For data of a run that is trained, while there is time; for others whose results, or end, free a run."""
        known = self.known()
        if self.trained and self.until is not None and self.left > judging_seconds(self.trained[0], self.plan, known):
            return True
        return bool(self.possible(known)) and bool(self.claims.others())

    def has_encoder(self, step: Step) -> bool:
        """Whether what a detector is trained from lies on this machine; True for runs that train an encoder."""
        return step.needs is None or (
            (self.work / self.plan.scenes).exists() and (self.work / "runs" / step.needs / "evaluate").exists()
        )

    def is_trained(self, step: Step) -> bool:
        return (self.work / "runs" / step.name / TOLD).exists()

    def expected(self, step: Step, known: Results) -> float:
        """Judging included; what was compiled here before is compiled quickly."""
        if self.is_trained(step):
            return judging_seconds(step, self.plan, known)
        measured = {**self.told_by_runs(), **known}
        return expected_seconds(step, self.plan, measured, compiled=kind_of(step) in self.kinds, shared=self.shared)

    def told_by_runs(self) -> dict[str, dict[str, Any]]:
        """What the runs of this machine say of their training, those that are not judged yet among them."""
        return {path.parent.name: json.loads(path.read_text()) for path in (self.work / "runs").glob(f"*/{TOLD}")}

    def wanted(self, step: Step) -> bool:
        return not self.only or any(word in step.name for word in self.only)

    # --- training -----------------------------------------------------------------------------------------------------

    def train(self, step: Step) -> bool:
        """False where it failed for a reason that is not the run's own: nothing of it is kept then."""
        known = self.known()
        chosen = None if step.follows is None else choose(self.plan, known, step.follows)
        settings = settings_of(step, self.plan, chosen)
        words, folder = words_of(step, self.plan, settings), RunFolder(Path("runs") / step.name)
        same = identity_of(step, self.plan, known) or step.name
        if (folder.path / TOLD).exists():  # trained before on this machine, and not judged
            if json.loads((folder.path / TOLD).read_text())["identity"] != same:
                raise BadInput(
                    f"{self.work / folder.path} was trained with other settings than the plan has now; remove it"
                )
            return True
        if step.needs is not None:  # a detector takes a minute: one that was stopped is begun again
            shutil.rmtree(folder.path, ignore_errors=True)
        resumed = folder.holds_run
        self.kinds = [*(kind for kind in self.kinds if kind != kind_of(step)), kind_of(step)]
        code, lines, seconds = called([*words, *["--resume"] * resumed, "--quiet"])
        why = lines[-1] if code and lines else ""
        told = {
            "name": step.name,
            "stage": step.stage,
            "method": step.method,
            "seed": step.seed,
            "epochs": step.epochs,
            "identity": same,
            "settings": settings,
            "command": shlex.join(["supancl", *words]),
            "exit": code,
            "why": why,
            "train_seconds": round(seconds, 1),
            "warnings": [line for line in lines if line.startswith("warning: ")][:8],
            "resumed": resumed,
            "beside": self.judging is not None,
            "shared": self.shared,
            "commit": self.commit,
            **(trained(folder) if step.needs is None else UNMEASURED),
        }
        if code not in A_RESULT:
            self.faults.append(
                f"{step.name}: {why or f'exit {code}'}; nothing of it was kept, mend that and start again"
            )
            self.tell(self.faults[-1])
            tidied()
            return False
        folder.path.mkdir(parents=True, exist_ok=True)
        write_text(folder.path / TOLD, json.dumps(told))
        finished = code == 0 and (step.needs is not None or is_finished(folder, folder.read_recipe()[0]))
        self.tell(f"{step.name}: trained in {seconds:.0f} s" if finished else f"{step.name}: exit {code}: {why}")
        tidied()
        return True

    # --- judging ------------------------------------------------------------------------------------------------------

    def lacks(self, step: Step) -> list[str]:
        """Data that judging it needs and that are not there: they may arrive later than those it is trained on."""
        tasks = self.plan.tasks_of(step.stage, step.method, step.seed)
        return list(dict.fromkeys(name for task in tasks for name in task.lacks()))

    def judge_next(self) -> None:
        """The first trained run whose data are there: in a process of its own where the next run can be trained
        meanwhile; one at a time."""
        step = next((step for step in self.trained if not self.lacks(step)), None)
        if step is None:
            return
        self.wait()
        self.trained.remove(step)
        if not self.beside:
            judge(self.plan, step.name, Path("runs") / step.name, self.results, called)
            self.told(step)
            return
        words = [
            sys.executable,
            "-m",
            "evidence",
            "judge",
            step.name,
            "--plan",
            self.plan.name,
            "--results",
            str(self.results),
            "--work",
            str(self.work),
        ]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        claim = self.claims.mine[self.claimed[step.name]]
        self.judging = step, subprocess.Popen(words, env=environment, pass_fds=(claim,))

    def wait(self) -> None:
        if self.judging is not None:
            (step, process), self.judging = self.judging, None
            process.wait()
            self.told(step)

    def told(self, step: Step) -> None:
        found = self.known().get(step.name)
        if found is None and step.name not in self.unjudged:
            self.unjudged.add(step.name)
            self.trained.append(step)  # a process may die of what is over a minute later
            return
        self.claims.release(self.claimed[step.name])
        if found is None:
            self.tell(f"{step.name}: could not be judged")
            return
        shown = ", ".join(f"{key} {value:.2f}" for key, value in found["values"].items() if "interval" not in key)
        lacking = "".join(f"; {task} failed: {why}" for task, why in found["not_measured"].items())
        self.tell(f"{step.name}: {found['status']}; {shown}; judged in {found['judge_seconds']:.0f} s{lacking}")


def trained(folder: RunFolder) -> dict[str, Any]:
    """Speed and the losses of the last epoch, as the run's own log has them."""
    rows = [row for row in folder.metrics() if row["kind"] == "train"]
    if not rows:
        return dict(UNMEASURED)
    last = [row for row in rows if row["epoch"] == rows[-1]["epoch"]]
    means = {
        key: statistics.fmean(values)
        for key in ("loss", "ssl", "sup", "std")
        if (values := [row[key] for row in last if row[key] is not None])
    }
    checks = [row for row in folder.metrics() if row["kind"] == "monitor"]
    if checks:
        means |= {f"target_{key}": checks[-1][key] for key in ("effective_rank",) if checks[-1].get(key) is not None}
    losses: dict[int, list[float]] = {}
    for row in rows:
        if row["loss"] is not None:
            losses.setdefault(row["epoch"], []).append(row["loss"])
    every = max(1, len(losses) // 20)
    curve = [
        [epoch, round(statistics.fmean(values), 4)]
        for epoch, values in losses.items()
        if epoch % every == 0 or epoch == rows[-1]["epoch"]
    ]
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
