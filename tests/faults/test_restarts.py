"""Ranks killed under torchrun --max-restarts: the run ends as one that was left alone."""

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

from tests.distributed.worker import ROOT
from tests.helpers import assert_same_bits, final_state

LONGEST = 600  # seconds until a killed run must have ended, also on a machine that does much else
TWO_RANKS = ["--standalone", "--nproc-per-node", "2"]
SETTINGS = {
    "data.limit": 256, "train.epochs": 16, "train.checkpoint_every": 3, "train.log_every": 1, "train.device": "cpu",
    "train.monitor_every": 0, "encoder.width": 16,
}  # fmt: skip


def agent(words: list[str], folder: Path, restarts: int, machine: str = "") -> subprocess.Popen[bytes]:
    """torchrun here or in a network namespace: the run in `folder`, begun or continued."""
    command = [*words, "--max-restarts", str(restarts), "-m", "supancl", "pretrain", "digits.supsiam", "--resume"]
    command += ["--out", str(folder), "--quiet"]
    command += [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    within = ["ip", "netns", "exec", machine] if machine else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "cable" if machine else "lo"}
    launch = [*within, sys.executable, "-m", "torch.distributed.run", *command]
    return subprocess.Popen(launch, env=environment, cwd=ROOT)


def ranks_of(process: subprocess.Popen[bytes]) -> list[int]:
    """The ranks that an agent has started."""
    found = []
    with suppress(OSError):  # one has just ended
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            if b"\0RANK=" in Path(f"/proc/{child}/environ").read_bytes():
                found.append(int(child))
    return found


def steps_of(folder: Path) -> int:
    log = folder / "metrics.jsonl"
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_a_run_survives_kills_of_any_rank(tmp_path: Path) -> None:
    chance, alone, folder = random.Random(0), tmp_path / "alone", tmp_path / "killed"
    assert agent(TWO_RANKS, alone, 0).wait(LONGEST) == 0
    process, seen, until = agent(TWO_RANKS, folder, 2), set[int](), time.monotonic() + LONGEST
    try:
        for steps in (0, 10):  # the first while the ranks meet
            while len(ranks := set(ranks_of(process)) - seen) < 2 or steps_of(folder) < steps:
                assert process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.02)
            time.sleep(chance.uniform(0, 0.1 if steps else 3))
            seen |= ranks
            os.kill(chance.choice(sorted(ranks)), signal.SIGKILL)
        assert process.wait(LONGEST) == 0
    finally:
        process.terminate()
    assert_same_bits(final_state(alone), final_state(folder))
