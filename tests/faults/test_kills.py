"""Commands killed before file events or at random moments, or on a full disk: repeated, they end as if left alone.

A limit for the size of each file stands for a full disk.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import sklearn.datasets
import torch

from supancl.runs.folder import RunFolder
from tests.faults.commands import say
from tests.forked import LIBRARIES
from tests.helpers import assert_same_bits, final_state

assert sklearn.datasets  # imported here, once, rather than by each process

KILLS = 6  # of pretrain: at file events first, then at random moments
LIMITS = 6  # of the size of its files
PRETRAIN = ("pretrain", "digits.supbyol", "--epochs", "2", "--batch-size", "16", "--checkpoint-every", "2", "--device",
            "cpu", "--set", "data.limit=96", "--set", "encoder.width=8", "--set", "train.log_every=1",
            "--resume", "--out")  # fmt: skip

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "os.utime")
forks = multiprocessing.get_context("forkserver")
forks.set_forkserver_preload([*LIBRARIES, __name__])


class Ended(NamedTuple):
    code: int | None
    events: int
    seconds: float
    errors: str


def kill_before_event(folder: str, at: int) -> Callable[[], int]:
    """Kill this process before it creates, opens to write, renames or removes something below `folder` for the `at`-th
    time; never if that is 0. Returns what counts the events so far."""
    events = 0

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal events
        if event == "open":
            flags = arguments[2] if isinstance(arguments[2], int) else 0
            is_change = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        else:
            is_change = event in CHANGES
        if is_change and str(arguments[0]).startswith(folder):
            events += 1
            if events == at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    return lambda: events


def run_and_kill(folder: str, words: Sequence[str], at: int, limit: int, told: str) -> None:
    """In a process of its own: run a command; be killed before file event number `at` below `folder`."""
    os.environ["SUPANCL_CACHE"] = f"{folder}/cache"
    torch.set_num_threads(1)
    count = kill_before_event(folder, at)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    said = say(*words)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    Path(told).write_text(json.dumps([count(), said.err]))
    os._exit(said.code)


def run_command(
    place: Path, words: Sequence[object], at: int = 0, after: float | None = None, limit: int = resource.RLIM_INFINITY
) -> Ended:
    """A command whose files are in `place`, killed before a file event or after some seconds, or not at all."""
    told = place.with_suffix(".told")
    told.unlink(missing_ok=True)
    arguments = (str(place), [str(word) for word in words], at, limit, str(told))
    process, started = forks.Process(target=run_and_kill, args=arguments), time.monotonic()
    process.start()
    process.join(after)
    if process.is_alive() and after is not None:
        process.kill()
    process.join(120)
    assert process.exitcode is not None, "still running after two minutes"
    events, errors = json.loads(told.read_text()) if told.exists() else (0, "")
    return Ended(process.exitcode, events, time.monotonic() - started, errors)


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
    kills: list[dict[str, float]] = [{"at": at} for at in chance.sample(range(1, undisturbed.events + 1), KILLS - 2)]
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


def test_a_run_on_a_full_disk_says_so_and_ends_with_the_same_bits_once_there_is_room(tmp_path):
    chance, whole, full = random.Random(0), tmp_path / "whole", 0
    assert run_command(whole, [*PRETRAIN, whole]).code == 0
    expected = final_state(whole)
    largest = max(path.stat().st_size for path in whole.rglob("*") if path.is_file() and path.parent.name != "cache")
    for number in range(LIMITS):  # from nearly nothing to nearly enough
        folder = tmp_path / str(number)
        ended = run_command(
            folder, [*PRETRAIN, folder], limit=2000 + int((number + chance.random()) / LIMITS * largest)
        )
        assert ended.code in (0, 2), ended
        if ended.code == 2:
            full += 1
            assert "File too large" in ended.errors.strip().splitlines()[-1], ended
            assert "Traceback" not in ended.errors
        again = run_command(folder, [*PRETRAIN, folder])
        assert (again.code, again.errors) == (0, ""), ended
        assert_same_bits(expected, final_state(folder))
    assert full > LIMITS / 2
