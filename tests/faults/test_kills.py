"""Commands killed before each of their file events, and at random moments: run again, they end as if left alone."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import sklearn.datasets
import torch

from supancl.files import read_text
from supancl.runs.folder import RunFolder
from tests.faults.commands import say
from tests.faults.events import kill_before_event
from tests.forked import LIBRARIES
from tests.tiny import assert_same_bits, final_state

assert sklearn.datasets  # imported here, once, rather than by each process

KILLS = 6  # of pretrain: at file events first, then at random moments
PRETRAIN = ("pretrain", "digits.supbyol", "--epochs", "2", "--batch-size", "16", "--checkpoint-every", "2", "--device",
            "cpu", "--set", "data.limit=96", "--set", "encoder.width=8", "--set", "train.log_every=1",
            "--resume", "--out")  # fmt: skip

forks = multiprocessing.get_context("forkserver")
forks.set_forkserver_preload([*LIBRARIES, __name__])


class Killed(NamedTuple):
    code: int | None
    events: int
    seconds: float


def run_and_kill(folder: str, words: Sequence[str], at: int, counter: str) -> None:
    """In a process of its own: run a command; be killed before file event number `at` below `folder`."""
    os.environ["SUPANCL_CACHE"] = f"{folder}/cache"
    torch.set_num_threads(1)
    count = kill_before_event(folder, at)
    code = say(*words).code
    Path(counter).write_text(str(count()))
    os._exit(code)


def run_command(place: Path, words: Sequence[object], at: int = 0, after: float | None = None) -> Killed:
    """A command whose files are in `place`, killed before a file event or after some seconds, or not at all."""
    counter = place.with_suffix(".events")
    counter.unlink(missing_ok=True)
    arguments = (str(place), [str(word) for word in words], at, str(counter))
    process, started = forks.Process(target=run_and_kill, args=arguments), time.monotonic()
    process.start()
    process.join(after)
    if process.is_alive() and after is not None:
        process.kill()
    process.join(120)
    assert process.exitcode is not None, "still running after two minutes"
    events = int(read_text(counter)) if counter.exists() else 0
    return Killed(process.exitcode, events, time.monotonic() - started)


def events_to_try(events: int, most: int, chance: random.Random) -> list[int]:
    """All of them, or as many as allowed."""
    return sorted(chance.sample(range(1, events + 1), min(events, most)))


def steps_of(folder: Path) -> list[tuple[str, int]]:
    rows = RunFolder(folder).metrics()
    return [(row["kind"], row["step"]) for row in rows if row["kind"] in ("step", "epoch")]


def test_pretraining_killed_at_file_events_and_random_moments_ends_with_the_same_bits(tmp_path):
    chance, whole = random.Random(0), tmp_path / "whole"
    run_command(tmp_path / "first", ["recipes"])  # starts the process that is forked
    undisturbed = run_command(whole, [*PRETRAIN, whole])
    assert undisturbed.code == 0
    assert undisturbed.events > 20
    expected, steps = final_state(whole), steps_of(whole)
    kills: list[dict[str, float]] = [{"at": event} for event in events_to_try(undisturbed.events, KILLS - 2, chance)]
    kills += [{"after": chance.uniform(0, undisturbed.seconds)} for _ in range(KILLS - len(kills))]
    killed = 0
    for number, kill in enumerate(kills):
        folder = tmp_path / str(number)
        killed += run_command(folder, [*PRETRAIN, folder], **kill).code == -signal.SIGKILL
        assert run_command(folder, [*PRETRAIN, folder]).code == 0, kill
        assert_same_bits(expected, final_state(folder))
        assert steps_of(folder) == steps, kill
        assert not list(folder.rglob(".*.tmp")), kill
    print(f"{killed} of {KILLS} kills found the run at work; it has {undisturbed.events} file events")
    assert killed >= KILLS * 0.8
