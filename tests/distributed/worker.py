"""One rank of several: trains every case and keeps what came out. `of_ranks` starts them all."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch._dynamo.utils import counters

from supancl.distributed import Ranks, join_ranks
from supancl.training.trainer import Trainer
from tests.distributed.cases import CASES, CPU, ON_FOUR, TWICE, data_of, outcome, trained
from tests.helpers import flat, tiny_data, tiny_recipe

ROOT = Path(__file__).parents[2]
RESUMED = (
    "supbyol", "supmoco, half labelled", "few of the positives", "sharded prototypes", "fed",
)  # fmt: skip
TIMEOUT = 500  # seconds, for all of it
FIRST, SECOND, LAST = 3, 3, 3  # steps on one rank, on two, on four


def fingerprint(kept: dict[str, Any]) -> str:
    """The same on two ranks only where every bit is."""
    content = hashlib.sha256()
    for name, value in sorted(flat(kept).items()):
        content.update(name.encode())
        content.update(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return content.hexdigest()


def halved(ranks: Ranks) -> dict[str, Any]:
    """Gradients that travel as bf16, in single precision: how far one step is from that of those that did not."""
    ends = []
    for gradients in ("fp32", "bf16"):
        trainer = Trainer(tiny_recipe("supsiam", train__gradients=gradients), tiny_data(64), CPU, ranks=ranks)
        before = torch.cat([p.detach().flatten() for p in trainer.model.branches.parameters()])
        trainer.advance()
        ends.append(torch.cat([p.detach().flatten() for p in trainer.model.branches.parameters()]) - before)
    return {"moved": ends[0].norm(), "apart": (ends[0] - ends[1]).norm()}


def compiled(ranks: Ranks) -> dict[str, Any]:
    """Branches whose norms are each rank's own, batches fed and accumulated, as written and compiled: losses, and how
    many graphs each rank made of them."""
    made: dict[str, Any] = {}
    data, plain, compile_ = data_of(CASES["fed"]), torch.compile, partial(torch.compile, backend="aot_eager")
    for way in ("as written", "compiled"):
        torch._dynamo.reset()  # or graphs of the run before would do
        torch.compile = compile_
        settings = {"train__sync_norm": False, "train__compile": way != "as written", **TWICE, "train__batch_size": 14}
        trainer = Trainer(tiny_recipe("supbyol", **settings), data, CPU, ranks=ranks)
        losses, before = [], counters["stats"]["unique_graphs"]
        for _ in range(4):
            trainer.advance()
            losses.append(trainer.inputs.drain_log(torch.empty(0)).loss)
        trainer.feed.close()
        graphs = counters["stats"]["unique_graphs"] - before
        made[way] = {"losses": losses, "graphs": ranks.all_gather_object(graphs)}
    torch.compile = plain
    return made


def work(ranks: Ranks, folder: Path, before: Path | None) -> None:
    made: dict[str, Any] = {"halved": halved(ranks)}
    if ranks.size == 2:
        made["compiled"] = compiled(ranks)
    for name in CASES if ranks.size == 2 else ON_FOUR:
        kept = outcome(trained(CASES[name], ranks))
        told: list[Any] = [None] * ranks.size
        torch.distributed.all_gather_object(told, fingerprint(kept))
        made[name] = {**kept, "fingerprints": told}
    if before is not None:
        states = torch.load(before, weights_only=False)
        steps = SECOND if ranks.size == 2 else LAST
        for name in RESUMED:
            trainer = trained(CASES[name], ranks, steps, states[name])
            made[f"resumed {name}"] = outcome(trainer)
            states[name] = trainer.state()
        if ranks.is_rank0:
            torch.save(states, folder / "states.pt")
    if ranks.is_rank0:
        torch.save(made, folder / "made.pt")


def of_ranks(command: list[str], size: int, out: Path, folders: list[Path] | None = None) -> list[tuple[int, str]]:
    """`command` once for each rank, as torchrun would start it: how each ended, and what it said."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    started, files = [], []
    for rank in range(size):
        env = {**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *sys.path])
        files.append(open(out / f"rank-{rank}.txt", "w+"))  # noqa: SIM115 - closed below
        where = ROOT if folders is None else folders[rank]
        started.append(subprocess.Popen(command, env=env, cwd=where, stdout=files[-1], stderr=subprocess.STDOUT))
    until = time.monotonic() + TIMEOUT
    try:
        codes = [process.wait(max(until - time.monotonic(), 1)) for process in started]
    finally:
        for process, file in zip(started, files, strict=True):
            process.kill()
            file.close()
    return [(code, (out / f"rank-{rank}.txt").read_text()) for rank, code in enumerate(codes)]


def stay_on_a_core(rank: int, size: int) -> None:
    """Where ranks outnumber the cores an exchange takes half as long if they do not wander."""
    here = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []
    if 0 < len(here) < size:
        os.sched_setaffinity(0, {here[rank % len(here)]})


if __name__ == "__main__":
    torch.set_num_threads(1)
    stay_on_a_core(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    with join_ranks(cuda=False) as joined:
        work(joined, Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
