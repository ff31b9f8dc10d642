"""Work through the plan: train a run, evaluate it while the next one trains, and write one result file per run.

The files in results/ are the state: an unfinished run continues on the same machine and starts again on another one.
Several drivers may work in one folder; each locks its run.
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

from experiments.evidence.judge import TRAINING_FILE, UNMEASURED, called, inside, judge, measured_by_log
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
from supancl.runs.folder import RunFolder, read_end
from supancl.training.cuda.reuse import share_step

# success, collapse, non-finite loss: results of the settings; any other code is a fault of the code or the machine
RESULT_CODES = (0, Collapsed.exit_code, NonFinite.exit_code)
LOOK_AHEAD = 4  # so many next runs of the plan may be reordered
MAX_FAULTS = 2  # consecutive faults before a driver gives up
POLL_SECONDS = 0.5  # between checks of what other drivers do


def say(text: str) -> None:
    print(text, flush=True)


class RunLocks:
    """The locks of one driver on runs; all drivers of a work folder share `folder`.

    A lock ends with its process, so the run of a killed driver is free at once. The process that evaluates a run
    inherits the lock, so the run stays locked until it ends.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.own_locks: dict[str, int] = {}  # name -> open file

    def take(self, name: str, **content: Any) -> bool:
        """Lock a name; False if another driver has it. The others can read `content`."""
        if name in self.own_locks:
            return True
        with self._exclusive():
            descriptor = os.open(self.folder / name, os.O_RDWR | os.O_CREAT, 0o644)
            if not _try_lock(descriptor):
                os.close(descriptor)
                return False
            self.own_locks[name] = descriptor
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({"pid": os.getpid(), **content}).encode(), 0)
        return True

    def release(self, name: str) -> None:
        descriptor = self.own_locks.pop(name, None)
        if descriptor is not None:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # even if another process inherited it
            os.close(descriptor)

    def leave(self) -> None:
        """Release all locks; those that an evaluating process inherited stay until it ends."""
        for descriptor in self.own_locks.values():
            os.close(descriptor)
        self.own_locks.clear()

    def others(self) -> list[dict[str, Any]]:
        """The contents of the locks of other drivers."""
        contents: list[dict[str, Any]] = []
        with self._exclusive():
            for path in sorted(self.folder.iterdir()):
                if path.name.startswith(".") or path.name in self.own_locks:
                    continue
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    if not _try_lock(descriptor):
                        contents.append(json.loads(path.read_text()))
                finally:
                    os.close(descriptor)  # releases the lock if we got it
        return contents

    def _exclusive(self) -> contextlib.AbstractContextManager[None]:
        """One driver at a time: checking a lock takes it for a moment."""
        return hold_lock(self.folder / ".lock", lambda owner: None, every=0.01)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@dataclass
class Driver:
    """`work` holds data/ and gets runs/ and locks/; `until` is the time limit in seconds, evaluations included."""

    plan: Plan
    results: Path
    work: Path
    until: float | None = None
    beside: bool = False  # evaluate a run in another process while the next one trains
    only: Sequence[str] = ()
    commit: str | None = None
    shared: bool = False  # other work is on the machine, so speeds are not comparable
    tell: Callable[[str], None] = say
    started: float = field(default_factory=time.monotonic)
    locked: dict[str, str] = field(default_factory=dict)  # run -> name of its lock
    tried: set[str] = field(default_factory=set)
    kinds: list[str] = field(default_factory=list)  # kinds compiled here, the last one last
    trained: list[Step] = field(default_factory=list)  # and not evaluated yet
    judging: tuple[Step, subprocess.Popen[bytes]] | None = None
    unjudged: set[str] = field(default_factory=set)  # the evaluation has failed once
    faults: list[str] = field(default_factory=list)
    in_a_row: int = 0  # faults

    def __post_init__(self) -> None:
        self.results, self.work = self.results.resolve(), self.work.resolve()
        self.locks = RunLocks(self.work / "locks")

    @property
    def left(self) -> float:
        return float("inf") if self.until is None else self.until - (time.monotonic() - self.started)

    def run(self) -> list[str]:
        """Work through the plan; returns the names of the runs that were started."""
        self.work.mkdir(parents=True, exist_ok=True)
        try:
            with inside(self.work), share_step():  # seeds and alphas of one method share a compiled step
                while self.turn():
                    pass
        except Exception as error:
            if not isinstance(error, Interrupted):  # the machine may end with the driver, so finish the evaluation
                self.wait()
            raise
        finally:
            self.locks.leave()
        if self.faults:
            raise BadInput("; ".join(self.faults))
        return sorted(self.tried)

    def turn(self) -> bool:
        """Make one run, or wait for other drivers or data; False when nothing is left."""
        self.judge_next()
        step = self.next_step()
        if step is not None:
            self.make(step)
        elif self.judging is not None:
            self.wait()  # it may be the last pilot that other runs wait for
        elif self.worth_waiting():
            time.sleep(POLL_SECONDS)
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
        if self.in_a_row >= MAX_FAULTS:
            raise BadInput("; ".join(self.faults))

    def tell_stuck(self) -> None:
        """Report what is left: runs without evaluation data, and methods without an evaluated pilot."""
        for step in self.trained:
            self.tell(
                f"{step.name}: trained but not evaluated, missing: {', '.join(self.lacks(step)) or 'time'}; start "
                "again on this machine when it is there"
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
        """The best run that is selected, can start, fits into the time, and is not locked by another driver."""
        known = self.known()
        free = [
            step
            for step in self.possible(known)
            if step.follows is None or choose(self.plan, known, step.follows) is not None
        ]
        if self.judging is not None and self.judging[0].stage == "pilot":  # may soon free earlier runs
            next_steps = waiting(self.plan, known)[:LOOK_AHEAD]
            free = [step for step in free if step in next_steps]
        busy = self.compiled_by_others() - set(self.kinds) if free else set()
        for _, _, step in sorted(
            (self.rank(step, position, busy), position, step) for position, step in enumerate(free)
        ):
            lock = self.lock_of(step, known)
            compiles = kind_of(step) not in self.kinds
            if not self.locks.take(lock, run=step.name, kind=kind_of(step), compiles=compiles, since=time.time()):
                continue
            if step not in waiting(self.plan, self.known()):  # done by another driver meanwhile
                self.locks.release(lock)
                continue
            self.locked[step.name] = lock
            return step
        return None

    def compiled_by_others(self) -> set[str]:
        """The kinds that another driver is compiling now; later their kernels are in the cache."""
        begin = self.plan.speeds.compile_seconds + START_SECONDS
        return {
            content["kind"]
            for content in self.locks.others()
            if content["compiles"] and time.time() - content["since"] < begin
        }

    def possible(self, known: Results) -> list[Step]:
        """Runs that are selected, not tried and short enough; pilots of some may not be done yet."""
        owed = sum(judging_seconds(step, self.plan, known) for step in self.trained)
        return [
            step
            for step in waiting(self.plan, known)
            if step.name not in self.tried
            and self.is_selected(step)
            and self.has_encoder(step)
            and self.expected(step, known) + owed <= self.left
        ]

    def rank(self, step: Step, position: int, busy: set[str]) -> int:
        """Trained runs first, then a pilot whose kernels are compiled, then what no other driver is compiling.

        Final runs keep the plan's order: waiting for their kernels would cost more than compiling.
        """
        if self.is_trained(step):
            return 0
        if self.kinds and kind_of(step) == self.kinds[-1] and position < LOOK_AHEAD and step.stage == "pilot":
            return 1
        return 3 if kind_of(step) in busy else 2

    def lock_of(self, step: Step, known: Results) -> str:
        """The lock's name; steps that are the same run share it."""
        same = None if step.stage == "pilot" else identity_of(step, self.plan, known)
        return step.name if same is None else f"{same} seed={step.seed}"

    def worth_waiting(self) -> bool:
        """Whether evaluation data may still arrive in time, or another driver may free a run."""
        known = self.known()
        if self.trained and self.until is not None and self.left > judging_seconds(self.trained[0], self.plan, known):
            return True
        return bool(self.possible(known)) and bool(self.locks.others())

    def has_encoder(self, step: Step) -> bool:
        """Whether a detector's encoder and data are on this machine; True for runs that train an encoder."""
        return step.needs is None or (
            (self.work / self.plan.scenes).exists() and (self.work / "runs" / step.needs / "evaluate").exists()
        )

    def is_trained(self, step: Step) -> bool:
        return (self.work / "runs" / step.name / TRAINING_FILE).exists()

    def expected(self, step: Step, known: Results) -> float:
        """Expected seconds, evaluation included; kinds that were compiled here before compile quickly."""
        if self.is_trained(step):
            return judging_seconds(step, self.plan, known)
        measured = {**self.training_files(), **known}
        return expected_seconds(step, self.plan, measured, compiled=kind_of(step) in self.kinds, shared=self.shared)

    def training_files(self) -> dict[str, dict[str, Any]]:
        """The training files of all runs on this machine, also of those not evaluated yet."""
        return {
            path.parent.name: json.loads(path.read_text()) for path in (self.work / "runs").glob(f"*/{TRAINING_FILE}")
        }

    def is_selected(self, step: Step) -> bool:
        return not self.only or any(word in step.name for word in self.only)

    # --- training -----------------------------------------------------------------------------------------------------

    def train(self, step: Step) -> bool:
        """Train a run; False if it failed for a reason outside the run, and then nothing is kept."""
        known = self.known()
        setting = None if step.follows is None else choose(self.plan, known, step.follows)
        settings = settings_of(step, self.plan, setting)
        words, folder = words_of(step, self.plan, settings), RunFolder(Path("runs") / step.name)
        same = identity_of(step, self.plan, known) or step.name
        if (folder.path / TRAINING_FILE).exists():  # trained before on this machine, not evaluated
            if json.loads((folder.path / TRAINING_FILE).read_text())["identity"] != same:
                raise BadInput(
                    f"{self.work / folder.path} was trained with other settings than the plan has now; remove it"
                )
            return True
        if step.needs is not None:  # a detector takes a minute: start a stopped one again
            shutil.rmtree(folder.path, ignore_errors=True)
        resumed = folder.has_run
        self.kinds = [*(kind for kind in self.kinds if kind != kind_of(step)), kind_of(step)]
        code, lines, seconds = called([*words, *["--resume"] * resumed, "--quiet"])
        why = lines[-1] if code and lines else ""
        training = {
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
        if code not in RESULT_CODES:
            self.faults.append(
                f"{step.name}: {why or f'exit {code}'}; nothing of it was kept, mend that and start again"
            )
            self.tell(self.faults[-1])
            free_memory()
            return False
        folder.path.mkdir(parents=True, exist_ok=True)
        write_text(folder.path / TRAINING_FILE, json.dumps(training))
        finished = code == 0 and (step.needs is not None or read_end(folder) is not None)
        self.tell(f"{step.name}: trained in {seconds:.0f} s" if finished else f"{step.name}: exit {code}: {why}")
        free_memory()
        return True

    # --- judging ------------------------------------------------------------------------------------------------------

    def lacks(self, step: Step) -> list[str]:
        """Data that the evaluation needs and that are missing; they may arrive after the training data."""
        tasks = self.plan.tasks_of(step.stage, step.method, step.seed)
        return list(dict.fromkeys(name for task in tasks for name in task.lacks()))

    def judge_next(self) -> None:
        """Evaluate the first trained run whose data are there, one at a time; with `beside` in another process."""
        step = next((step for step in self.trained if not self.lacks(step)), None)
        if step is None:
            return
        self.wait()
        self.trained.remove(step)
        if not self.beside:
            judge(self.plan, step.name, Path("runs") / step.name, self.results, called)
            self.report_result(step)
            return
        words = [sys.executable, "-m", "experiments.evidence", "judge", step.name, "--plan", self.plan.name]
        words += ["--results", str(self.results), "--work", str(self.work)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        lock = self.locks.own_locks[self.locked[step.name]]
        self.judging = step, subprocess.Popen(words, env=environment, pass_fds=(lock,))

    def wait(self) -> None:
        if self.judging is not None:
            (step, process), self.judging = self.judging, None
            process.wait()
            self.report_result(step)

    def report_result(self, step: Step) -> None:
        result = self.known().get(step.name)
        if result is None and step.name not in self.unjudged:
            self.unjudged.add(step.name)
            self.trained.append(step)  # try once more: the cause may be temporary
            return
        self.locks.release(self.locked[step.name])
        if result is None:
            self.tell(f"{step.name}: could not be evaluated")
            return
        values_text = ", ".join(
            f"{key} {value:.2f}" for key, value in result["values"].items() if "interval" not in key
        )
        failures = "".join(f"; {task} failed: {why}" for task, why in result["not_measured"].items())
        self.tell(
            f"{step.name}: {result['status']}; {values_text}; evaluated in {result['judge_seconds']:.0f} s{failures}"
        )


def free_memory() -> None:
    """Free the memory of finished runs; the compiler's cache stays, as the next run may reuse the captured step."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def check_data(plan: Plan, work: Path) -> None:
    if plan.data != "digits" and not (work / plan.data).exists():
        raise BadInput(f"{work / plan.data} is missing; unpack the data sets into {work / 'data'}")
