"""What processes of one machine pay for their exchange, for scaling.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from scaling_clocks import milliseconds, tensor_bytes
from scaling_tables import Row
from torch.multiprocessing.spawn import spawn

from supancl.core.pools import ShardedPrototypes
from supancl.distributed import Ranks

BATCH, WIDTH = 256, 256
SHARDED = 100_000  # classes, where ranks share them


def _rank(rank: int, ranks: int, meeting: str, answer: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    cpu = torch.device("cpu")
    own = torch.randn(BATCH // ranks, WIDTH)
    every = [torch.empty_like(own) for _ in range(ranks)]
    row: Row = {"ranks": ranks, "gather_ms": milliseconds(lambda: dist.all_gather(every, own), cpu, 10)}
    for name, numbers in (("norm_ms", 2 * 2048 + 1), ("gradient_1m_ms", 10**6), ("gradient_33m_ms", 33 * 10**6)):
        flat = torch.zeros(numbers)
        row[name] = milliseconds(partial(dist.all_reduce, flat), cpu, 5, 2)
    row |= sharded(Ranks(ranks, rank, rank))
    if rank == 0:
        Path(answer).write_text(json.dumps(row))
    dist.destroy_process_group()


def sharded(ranks: Ranks) -> Row:
    """Prototypes of which each rank holds its share: a look-up asks all of them, a push nobody."""
    pool, part = ShardedPrototypes(WIDTH, SHARDED, 0.9, ranks), ranks.part(BATCH)
    pool.seen[:-1].fill_(True)
    targets = F.normalize(torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(0)), dim=1)
    labels = torch.arange(BATCH) * 389 % SHARDED
    look_up = partial(pool.class_mean, part.of(labels), part.of(targets), part=part)
    cpu = torch.device("cpu")
    return {
        "sharded_class_mean_ms": milliseconds(look_up, cpu, 10),
        "sharded_push_ms": milliseconds(partial(pool.push, targets, labels), cpu, 10),
        "sharded_bytes": tensor_bytes(dict(pool.named_buffers())),
    }


def by_ranks(scratch: Path) -> Iterator[Row]:
    for ranks in (1, 2, 4):
        answer = scratch / f"ranks-{ranks}.json"
        spawn(_rank, (ranks, str(scratch / f"meeting-{ranks}"), str(answer)), nprocs=ranks)
        yield json.loads(answer.read_text())
