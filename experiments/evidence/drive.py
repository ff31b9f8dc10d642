"""Works through the plan: trains a run, judges it beside the next one, and keeps what came out as one file.

The state is which files are in results/: a run that was not finished when its machine went away is made again, one
that the same machine still has goes on. Several drivers may work in one folder: each locks what it makes.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from experiments.evidence.judge import TOLD, UNMEASURED, called, inside, judge, measured_by_log
from experiments.evidence.plan import START_SECONDS, Plan, Step, kind_of, settings_of, words_of
from experiments.evidence.results import (
    Results,
    choose,
    expected_seconds,
    identity_of,
    judging_seconds,
    read_results,
    waiting,
)
from supancl.errors import BadInput, Collapsed, Interrupted, NonFinite
from supancl.files import hold_lock, write_text
from supancl.sweeps.runs import is_finished
from supancl.training.cuda.reuse import share_step
from supancl.weights.run_folder import RunFolder

# success, collapse, a loss that is no number: what the settings did; anything else is a fault of ours or of the machine
A_RESULT = (0, Collapsed.exit_code, NonFinite.exit_code)
FEW = 4  # so many next runs of the plan may change places
FAULTS = 2  # in a row, that are not the runs' own, before a driver gives up
PAUSE = 0.5  # seconds between looks at what others do


def say(text: str) -> None:
    print(text, flush=True)


class RunLocks:
    """Who makes which run: the locks of one driver; all drivers of a work folder have the same `folder`.

    A lock goes with its process, so what a killed driver had begun is free at once; the process that judges a run
    inherits it, so that the run is not free while that one still works.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mine: dict[str, int] = {}  # what is locked -> the open file

    def take(self, what: str, **told: Any) -> bool:
        """False where somebody has it; `told` is for the others to read."""
        if what in self.mine:
            return True
        with self._alone():
            opened = os.open(self.folder / what, os.O_RDWR | os.O_CREAT, 0o644)
            if not _locked(opened):
                os.close(opened)
                return False
            self.mine[what] = opened
            os.ftruncate(opened, 0)
            os.pwrite(opened, json.dumps({"pid": os.getpid(), **told}).encode(), 0)
        return True

    def release(self, what: str) -> None:
        opened = self.mine.pop(what, None)
        if opened is not None:
            fcntl.flock(opened, fcntl.LOCK_UN)  # whoever else may have inherited it
            os.close(opened)

    def leave(self) -> None:
        """Nothing is locked here any more; what a judging process has inherited stays locked until its end."""
        for opened in self.mine.values():
            os.close(opened)
        self.mine.clear()

    def others(self) -> list[dict[str, Any]]:
        """What the others have said of what they hold."""
        found: list[dict[str, Any]] = []
        with self._alone():
            for path in sorted(self.folder.iterdir()):
                if path.name.startswith(".") or path.name in self.mine:
                    continue
                opened = os.open(path, os.O_RDONLY)
                try:
                    if not _locked(opened):
                        found.append(json.loads(path.read_text()))
                finally:
                    os.close(opened)  # and with it the lock, where nobody had it
        return found

    def _alone(self) -> contextlib.AbstractContextManager[None]:
        """One at a time looks at the locks, since looking takes them for a moment."""
        return hold_lock(self.folder / ".lock", lambda owner: None, every=0.01)


def _locked(opened: int) -> bool:
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@dataclass
class Driver:
    """`work` holds data/ and gets runs/ and locks/; `until` is how many seconds there are, judging included."""

    plan: Plan
    results: Path
    work: Path
    until: float | None = None
    beside: bool = False  # judge a run in a process of its own while the next one trains
    only: Sequence[str] = ()
    commit: str | None = None
    shared: bool = False  # with other work on the same machine, so that speeds are not the run's own
    tell: Callable[[str], None] = say
    started: float = field(default_factory=time.monotonic)
    locked: dict[str, str] = field(default_factory=dict)  # run -> what is locked for it
    tried: set[str] = field(default_factory=set)
    kinds: list[str] = field(default_factory=list)  # that were compiled here, the last one last
    trained: list[Step] = field(default_factory=list)  # and not judged yet
    judging: tuple[Step, subprocess.Popen[bytes]] | None = None
    unjudged: set[str] = field(default_factory=set)  # judging has failed once
    faults: list[str] = field(default_factory=list)
    in_a_row: int = 0  # faults

    def __post_init__(self) -> None:
        self.results, self.work = self.results.resolve(), self.work.resolve()
        self.locks = RunLocks(self.work / "locks")

    @property
    def left(self) -> float:
        return float("inf") if self.until is None else self.until - (time.monotonic() - self.started)

    def run(self) -> list[str]:
        """The names of the runs that were made."""
        self.work.mkdir(parents=True, exist_ok=True)
        try:
            with inside(self.work), share_step():  # seeds and alphas of one method share a compiled step
                while self.turn():
                    pass
        except Exception as error:
            if not isinstance(error, Interrupted):  # with the driver its machine may go, and what is being judged on it
                self.wait()
            raise
        finally:
            self.locks.leave()
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
        self.locks.release(self.locked[step.name])
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
            what = self.lock_of(step, known)
            compiles = kind_of(step) not in self.kinds
            if not self.locks.take(what, run=step.name, kind=kind_of(step), compiles=compiles, since=time.time()):
                continue
            if step not in waiting(self.plan, self.known()):  # judged by somebody else since we looked
                self.locks.release(what)
                continue
            self.locked[step.name] = what
            return step
        return None

    def compiled_by_others(self) -> set[str]:
        """The kinds of which another driver has just begun its first run; later their kernels are in the cache."""
        begin = self.plan.speeds.compile_seconds + START_SECONDS
        return {
            told["kind"] for told in self.locks.others() if told["compiles"] and time.time() - told["since"] < begin
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

    def lock_of(self, step: Step, known: Results) -> str:
        """The same for steps that are the same run under two names."""
        same = None if step.stage == "pilot" else identity_of(step, self.plan, known)
        return step.name if same is None else f"{same} seed={step.seed}"

    def worth_waiting(self) -> bool:
        """For data of a run that is trained, while there is time; for others whose results, or end, free a run."""
        known = self.known()
        if self.trained and self.until is not None and self.left > judging_seconds(self.trained[0], self.plan, known):
            return True
        return bool(self.possible(known)) and bool(self.locks.others())

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
            **(measured_by_log(folder) if step.needs is None else UNMEASURED),
        }
        if code not in A_RESULT:
            self.faults.append(
                f"{step.name}: {why or f'exit {code}'}; nothing of it was kept, mend that and start again"
            )
            self.tell(self.faults[-1])
            free_memory()
            return False
        folder.path.mkdir(parents=True, exist_ok=True)
        write_text(folder.path / TOLD, json.dumps(told))
        finished = code == 0 and (step.needs is not None or is_finished(folder, folder.read_recipe()[0]))
        self.tell(f"{step.name}: trained in {seconds:.0f} s" if finished else f"{step.name}: exit {code}: {why}")
        free_memory()
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
        words = [sys.executable, "-m", "experiments.evidence", "judge", step.name, "--plan", self.plan.name]
        words += ["--results", str(self.results), "--work", str(self.work)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        lock = self.locks.mine[self.locked[step.name]]
        self.judging = step, subprocess.Popen(words, env=environment, pass_fds=(lock,))

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
        self.locks.release(self.locked[step.name])
        if found is None:
            self.tell(f"{step.name}: could not be judged")
            return
        shown = ", ".join(f"{key} {value:.2f}" for key, value in found["values"].items() if "interval" not in key)
        lacking = "".join(f"; {task} failed: {why}" for task, why in found["not_measured"].items())
        self.tell(f"{step.name}: {found['status']}; {shown}; judged in {found['judge_seconds']:.0f} s{lacking}")


def free_memory() -> None:
    """Memory of the run before the last, which nothing refers to but itself.

    The compiler is left alone: what it compiled belongs to the captured step that the next run may take over.
    """
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def check_data(plan: Plan, work: Path) -> None:
    if plan.data != "digits" and not (work / plan.data).exists():
        raise BadInput(f"{work / plan.data} is missing; unpack the data sets into {work / 'data'}")
