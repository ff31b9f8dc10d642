"""A rank that is stopped or whose machine is gone: the others end, and say who is missing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest
from torch.distributed import TCPStore

from tests.distributed.worker import ROOT

# a heartbeat every 0.2 s and a limit of 10 s; the first task takes longer than the limit, on a rank that is alive
SCRIPT = """
import os, signal, sys, time
from supancl.distributed import join_ranks
try:
    from supancl.distributed import heartbeat
    heartbeat.BEAT_SECONDS, heartbeat.SILENCE_LIMIT = 0.2, 10.0
except ImportError:
    pass
from supancl.errors import BadInput
task = sys.argv[1]
with join_ranks(cuda=False) as ranks:
    if task == "fail" and ranks.rank == 1:
        raise BadInput("a failure of the first start")
    if task == "silence":
        ranks.on_rank0(lambda: time.sleep(15))
        print("the wait for a busy rank has ended well", flush=True)
        if ranks.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
    print(ranks.all_gather_object(ranks.rank), flush=True)
"""


def start(task: str, rank: int, port: int, **environment: str) -> subprocess.Popen[str]:
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    env = {**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank), **environment}
    return subprocess.Popen([sys.executable, "-c", SCRIPT, task], env=env, cwd=ROOT, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)  # fmt: skip


def outcomes(processes: list[subprocess.Popen[str]], timeout: float = 200) -> list[tuple[int, str]]:
    try:
        said = [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, text) for process, text in zip(processes, said, strict=True)]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_a_rank_that_is_stopped_is_missed_and_one_that_works_for_long_is_not() -> None:
    port = free_port()
    first, second = (start("silence", rank, port) for rank in (0, 1))
    begun = time.monotonic()
    try:
        ((code, said),) = outcomes([first], 120)
    finally:
        second.kill()
        second.communicate()
    print(f"ended {time.monotonic() - begun:.1f} s after the start")
    assert code == 1, said
    assert "the wait for a busy rank has ended well" in said
    (line,) = [line for line in said.splitlines() if line.startswith("supancl:")]
    assert "rank 1 of 2" in line
    assert "--resume" in line


@pytest.mark.parametrize("counts", [("0", "1"), ("0", "0")], ids=["a restart", "a change of machines"])
def test_ranks_started_again_do_not_read_what_the_ones_before_have_left(counts: tuple[str, str]) -> None:
    """torchrun keeps its store; here the test does."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    tasks = [start("fail", rank, store.port, TORCHELASTIC_RESTART_COUNT=counts[0], **environment) for rank in (0, 1)]
    assert [code for code, _ in outcomes(tasks)] == [1, 1]
    tasks = [start("go on", rank, store.port, TORCHELASTIC_RESTART_COUNT=counts[1], **environment) for rank in (0, 1)]
    ended = outcomes(tasks)
    assert [code for code, _ in ended] == [0, 0], ended
    assert all("[0, 1]" in said for _, said in ended)
