"""Run the tests on every mutant, each in a forked process that has torch and the like imported already.

    make mutants        or: python -m tests.mutants [MODULE ...]

Only the module with the mutant differs, by an import hook: no file is changed. Tests that start other processes would
see the unchanged module, so groups do not name them. A mutant is killed if a test fails or runs out of time.
"""

from __future__ import annotations

import gc
import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, NoReturn

from tests.mutants.mutant import Group, Mutant

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = (
    "hypothesis", "matplotlib.figure", "numpy", "rich.table", "safetensors.torch", "scipy.optimize", "scipy.stats",
    "sklearn.datasets", "sklearn.linear_model", "sklearn.pipeline", "timm", "torch", "torch.testing", "torchvision",
)  # fmt: skip
CPU_SECONDS = 60
WALL_SECONDS = 300
IGNORED_WARNING = "ignore::pytest.PytestAssertRewriteWarning"  # hypothesis is imported before pytest begins
PASSED, FAILED = 0, 1  # exit codes of pytest
TIMED_OUT = (-signal.SIGXCPU, -signal.SIGKILL, -signal.SIGALRM)


@dataclass
class Trial:
    """The tests of a group on one mutant, or on the module as it is (None)."""

    group: Group
    mutant: Mutant | None
    code: int | None = None
    output: str = ""

    @property
    def verdict(self) -> str:
        if self.code == PASSED:
            return "survived"
        if self.code == FAILED:
            return "killed"
        return "timed out" if self.code in TIMED_OUT else f"error {self.code}"

    @property
    def complaint(self) -> str:
        """What is wrong with this outcome; empty if nothing is."""
        if self.verdict.startswith("error"):
            return f"pytest ended with {self.code}"
        if self.mutant is None:
            return "" if self.verdict == "survived" else f"the tests fail without a mutant ({self.verdict})"
        if self.verdict == "survived":
            return "" if self.mutant.equal else "survived"
        return f"marked as equal ({self.mutant.equal}), but {self.verdict}" if self.mutant.equal else ""


class MutantFinder(importlib.abc.MetaPathFinder, importlib.machinery.SourceFileLoader):
    """Finds one module, and loads it from other text."""

    def __init__(self, name: str, path: Path, text: str) -> None:
        super().__init__(name, str(path))
        self.text = text

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> Any:
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self)

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.text, self.path, "exec")


def in_child(trial: Trial, root: Path, log: int) -> NoReturn:
    """Runs the tests and ends with pytest's exit code."""
    code = 70
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        signal.alarm(WALL_SECONDS)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
        os.chdir(root)
        if trial.mutant is not None:
            name = ".".join(("supancl", *Path(trial.group.module).with_suffix("").parts))
            text = trial.group.mutate(root, trial.mutant)
            sys.meta_path.insert(0, MutantFinder(name, trial.group.path(root), text))
        import pytest

        options = ["-x", "-q", "-p", "no:cacheprovider", "--tb=short", "-W", IGNORED_WARNING]
        code = int(pytest.main([*options, *trial.group.tests]))
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_trials(trials: Iterable[Trial], root: Path, jobs: int) -> Iterator[Trial]:
    """Runs them, `jobs` at a time; yields each as it ends."""
    waiting, running = list(trials), {}
    while waiting or running:
        while waiting and len(running) < jobs:
            trial, log = waiting.pop(0), tempfile.TemporaryFile()  # noqa: SIM115 - closed when the child has ended
            child = os.fork()
            if child == 0:
                in_child(trial, root, log.fileno())
            running[child] = trial, log
        child, status = os.wait()
        trial, log = running.pop(child)
        trial.code = os.waitstatus_to_exitcode(status)
        with log:
            log.seek(0)
            trial.output = log.read().decode(errors="replace")
        yield trial


def summarize(group: Group, trials: Sequence[Trial], seconds: float) -> str:
    """One line: the outcome of a group's mutants."""
    verdicts = [trial.verdict for trial in trials if trial.mutant is not None and not trial.mutant.equal]
    equal = len(trials) - len(verdicts) - 1
    counts = [f"{verdicts.count(verdict)} {verdict}" for verdict in ("killed", "timed out", "survived")]
    errors = sum(verdict.startswith("error") for verdict in verdicts)
    return (
        f"{group.module}: {', '.join(counts)}, {errors} errors, {equal} equal in meaning; {seconds:.0f} s of CPU time"
    )


def run(groups: Sequence[Group], root: Path = ROOT, libraries: Sequence[str] = LIBRARIES, jobs: int = 2) -> int:
    """Try every mutant; 0 if those that should be killed were, and no other."""
    if wrong := [line for group in groups for line in group.misfits(root)]:
        print(*wrong, sep="\n", file=sys.stderr)
        return 2
    sys.path[:0] = [str(root), str(root / "src")]
    for name in ("pytest", *libraries):
        __import__(name)
    if "hypothesis" in libraries:
        import hypothesis

        # the same examples in every run, and none of a mutant's kept for the usual tests
        hypothesis.settings.register_profile("mutants", derandomize=True, database=None)
        hypothesis.settings.load_profile("mutants")
    assert not [name for name in sys.modules if name.partition(".")[0] == "supancl"]
    gc.collect()
    gc.freeze()  # or a collection in a child would copy all that it shares with this process
    complaints = 0
    for group in groups:
        began = resource.getrusage(resource.RUSAGE_CHILDREN)
        trials = list(run_trials([Trial(group, None)], root, jobs))
        if not trials[0].complaint:
            trials += run_trials([Trial(group, mutant) for mutant in group.mutants], root, jobs)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime
        print(summarize(group, trials, seconds), flush=True)
        for trial in trials:
            if trial.complaint:
                complaints += 1
                what = trial.mutant.title() if trial.mutant else " ".join(trial.group.tests)
                print(f"  {what}\n    {trial.complaint}")
                if trial.verdict != "survived":
                    print(trial.output[-2000:])
    gc.unfreeze()
    print(f"{complaints} of {sum(len(group.mutants) for group in groups)} mutants to look at")
    return 1 if complaints else 0


def main() -> int:
    from tests.mutants.lists import GROUPS

    names = sys.argv[1:]
    groups = [group for group in GROUPS if not names or any(name in group.module for name in names)]
    began = time.monotonic()
    code = run(groups)
    print(f"{time.monotonic() - began:.0f} s")
    return code
