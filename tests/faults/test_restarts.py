"""Ranks killed at random moments under torchrun --max-restarts: the run ends as one that was left alone."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch

from tests.distributed.worker import ROOT
from tests.tiny import assert_same_bits, final_state

KILLS = 2
LONGEST = 600  # seconds until a killed run must have ended, also on a machine that does much else
SETTINGS = {
    "data.limit": 256, "train.epochs": 16, "train.checkpoint_every": 3, "train.log_every": 1, "train.device": "cpu",
    "train.monitor_every": 0, "encoder.width": 16,
}  # fmt: skip


def start(folder: Path) -> subprocess.Popen[str]:
    """A run of two ranks under torchrun's own agent; each rank leaves its process number in `folder`.marks."""
    marks = folder.with_suffix(".marks")
    marks.mkdir()
    # what --standalone means
    words = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--rdzv-id", folder.name, "--nnodes", "1"]
    words += ["--nproc-per-node", "2", "--max-restarts", str(KILLS), "-m", "supancl.cli", "pretrain"]
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


def wait_for_moment(agent: subprocess.Popen[str], folder: Path, chance: random.Random) -> None:
    """Wait for up to three seconds, in which the ranks meet, or for some steps of training, however slow they are."""
    log, steps = folder / "metrics.jsonl", 0
    if chance.random() < 0.5:
        steps = (len(log.read_text().splitlines()) if log.exists() else 0) + chance.randint(1, 12)
    while steps and agent.poll() is None and not (log.exists() and len(log.read_text().splitlines()) >= steps):
        time.sleep(0.01)
    time.sleep(chance.uniform(0.0, 0.1 if steps else 3.0))


def run(folder: Path, kills: int, chance: random.Random) -> dict[str, torch.Tensor]:
    """A run of which one rank is killed after each start of all ranks; its state at the end."""
    agent, ranks = start(folder), list[int]()
    try:
        for kill in range(kills):
            ranks = wait_for_ranks(agent, folder, kill) or ranks
            wait_for_moment(agent, folder, chance)
            with suppress(ProcessLookupError):  # the run may have ended
                os.kill(chance.choice(ranks), signal.SIGKILL)
        assert agent.wait(LONGEST) == 0, folder.with_suffix(".txt").read_text()[-3000:]
    finally:
        if agent.poll() is None:
            for process in (agent.pid, *ranks):
                with suppress(OSError):
                    os.kill(process, signal.SIGKILL)
    return final_state(folder)


def test_a_run_survives_kills_of_any_rank_at_any_moment(tmp_path: Path) -> None:
    """Also in the first moments, in which the ranks meet."""
    chance = random.Random(0)
    undisturbed = run(tmp_path / "undisturbed", 0, chance)
    assert_same_bits(undisturbed, run(tmp_path / "killed", KILLS, chance))
    assert (tmp_path / "killed.marks" / "1-0").exists()  # it was restarted
