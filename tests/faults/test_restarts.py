"""Ranks killed at random moments under torchrun --max-restarts: the run ends as one that was left alone."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.distributed.worker import ROOT
from tests.tiny import assert_same_bits, final_state

KILLS = 2
RESTARTS = 3  # as many kills as one run survives
LONGEST = 600  # seconds until a killed run must have ended, also on a machine that does much else
Order = tuple[int, int] | None  # rank and file event; None: any rank at a random moment
EVENTS = {0: 60, 1: 4}  # rank -> about how many of the run's first file events may be chosen; rank 1 has few
SETTINGS = {
    "data.limit": 256, "train.epochs": 16, "train.checkpoint_every": 3, "train.log_every": 1, "train.device": "cpu",
    "train.monitor_every": 0, "encoder.width": 16,
}  # fmt: skip


def start(folder: Path, orders: Sequence[Order] = ()) -> subprocess.Popen[str]:
    """A run of two ranks under torchrun's own agent; each rank leaves its process number in `folder`.marks.

    Orders say which rank is killed before which of its file events, for each start of the ranks.
    """
    marks = folder.with_suffix(".marks")
    marks.mkdir()
    for restart, order in enumerate(orders):
        if order is not None:
            (marks / f"{restart}-{order[0]}.kill").write_text(str(order[1]))
    # what --standalone means
    words = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--rdzv-id", folder.name, "--nnodes", "1"]
    words += ["--nproc-per-node", "2", "--max-restarts", str(RESTARTS), "-m", "supancl.cli", "pretrain"]
    words += ["digits.supsiam", "--resume", "--out", str(folder)]
    words += [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    command = [sys.executable, "-m", "tests.faults.agent", str(marks), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with open(folder.with_suffix(".txt"), "w") as log:  # a pipe that nobody reads would fill up
        return subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, text=True)


def wait_for_ranks(agent: subprocess.Popen[str], folder: Path, restart: int) -> list[int]:
    """The processes of the two ranks started after this many restarts; none if the run has ended instead."""
    marks, until = [folder.with_suffix(".marks") / f"{restart}-{rank}" for rank in (0, 1)], time.monotonic() + LONGEST
    while agent.poll() is None:
        assert time.monotonic() < until, f"no restart {restart} within {LONGEST} s"
        if all(mark.exists() for mark in marks):
            return [int(mark.read_text()) for mark in marks]
        time.sleep(0.01)
    return []


def wait_for_end(process: int) -> None:
    until = time.monotonic() + LONGEST
    with suppress(OSError):  # Z: its agent has not waited for it yet
        while "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2]:
            assert time.monotonic() < until, f"rank {process} runs after {LONGEST} s"
            time.sleep(0.01)


def end_rank(process: int) -> None:
    """Kill a rank whose agent is gone, if it still runs and its number is not another process's by now."""
    with suppress(OSError):
        if b"tests.faults.agent" in Path(f"/proc/{process}/cmdline").read_bytes():
            os.kill(process, signal.SIGKILL)


class Outcome(NamedTuple):
    kills: int
    code: int | None  # None: still running after LONGEST seconds


def wait_for_moment(agent: subprocess.Popen[str], folder: Path, chance: random.Random) -> None:
    """Wait for up to three seconds, in which the ranks meet, or for some steps of training, however slow they are."""
    log, steps = folder / "metrics.jsonl", 0
    if chance.random() < 0.5:
        steps = (len(log.read_text().splitlines()) if log.exists() else 0) + chance.randint(1, 12)
    while steps and agent.poll() is None and not (log.exists() and len(log.read_text().splitlines()) >= steps):
        time.sleep(0.01)
    time.sleep(chance.uniform(0.0, 0.1 if steps else 3.0))


def run_with_kills(folder: Path, kills: int, chance: random.Random) -> Outcome:
    """Start a run, kill one rank after each start of all ranks, and wait for the end of the run."""
    orders = [chance.choice([None, (rank := chance.choice((0, 0, 1)), chance.randint(1, EVENTS[rank]))])
              for _ in range(kills)]  # fmt: skip
    agent, done = start(folder, orders), 0
    try:
        while done < kills and (ranks := wait_for_ranks(agent, folder, done)):
            if (order := orders[done]) is not None:
                wait_for_end(ranks[order[0]])
                if not wait_for_ranks(agent, folder, done + 1):
                    break  # the run has fewer events
            else:
                wait_for_moment(agent, folder, chance)
                try:
                    os.kill(chance.choice(ranks), signal.SIGKILL)
                except ProcessLookupError:
                    break  # the run has finished
            done += 1
        code: int | None = agent.wait(LONGEST)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        if agent.poll() is None:
            agent.kill()
            agent.wait()
            for mark in folder.with_suffix(".marks").glob("*-?"):
                end_rank(int(mark.read_text()))
    return Outcome(done, code)


def test_a_run_survives_kills_of_any_rank_at_any_moment(tmp_path: Path) -> None:
    """Also in the first moments, in which the ranks meet."""
    chance, killed, undisturbed = random.Random(0), 0, tmp_path / "undisturbed"
    assert run_with_kills(undisturbed, 0, chance).code == 0, undisturbed.with_suffix(".txt").read_text()
    for number in range(2 * KILLS):
        folder = tmp_path / f"run{number}"
        outcome = run_with_kills(folder, min(KILLS - killed, RESTARTS), chance)
        killed += outcome.kills
        assert outcome.code == 0, f"{outcome}: {folder.with_suffix('.txt').read_text()[-3000:]}"
        assert_same_bits(final_state(undisturbed), final_state(folder))
        if killed >= KILLS:
            return
    raise AssertionError(f"{killed} kills of {KILLS}")
