"""For scaling.py: clocks, tar shards made for the purpose, and what processes of one machine pay for their exchange."""

from __future__ import annotations

import io
import json
import statistics
import tarfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from PIL import Image
from scaling_tables import Row
from step_ours import wait
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from supancl.core.pools import Prototypes
from supancl.distributed import Ranks

BATCH, WIDTH = 256, 256
SHARDED = 100_000  # classes, where ranks share them


def milliseconds(work: Callable[[], object], device: torch.device, repeats: int = 15, calls: int = 4) -> float:
    """Median time of one call; `calls` of them between two looks at the clock."""
    for _ in range(3):
        work()
    found = []
    for _ in range(repeats):
        wait(device)
        since = time.perf_counter()
        for _ in range(calls):
            work()
        wait(device)
        found.append((time.perf_counter() - since) / calls * 1e3)
    return statistics.median(found)


def replayed(work: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """On a GPU the work as a training step has it: recorded once, then replayed without the host."""
    if device.type != "cuda":
        return work
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))  # what it reads is still being written there
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    wait(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def tensor_bytes(value: object) -> int:
    """Bytes of every tensor in nested containers."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(tensor_bytes(item) for item in value.values())
    return sum(tensor_bytes(item) for item in value) if isinstance(value, (list, tuple)) else 0


# --- shards -----------------------------------------------------------------------------------------------------------


def jpeg(seed: int, side: tuple[int, int]) -> bytes:
    """Smooth colours with some noise: near enough to what a photograph costs."""
    random = np.random.default_rng(seed)
    smooth = np.asarray(Image.fromarray(random.integers(0, 256, (6, 8, 3), np.uint8)).resize(side, 3), np.float32)
    noisy = smooth + random.normal(0, 10, smooth.shape)
    content = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(content, "jpeg", quality=90)
    return content.getvalue()


def write_shards(folder: Path, shards: int, each: int, side: tuple[int, int]) -> int:
    """Bytes of one image on average; sixteen different ones."""
    contents = [jpeg(seed, side) for seed in range(16)]
    folder.mkdir()
    for shard in range(shards):
        name = folder / f"{'val' if shard == 0 else 'train'}-{shard:05d}.tar"
        with tarfile.open(name, "w") as tar:
            for i in range(each):
                for row_range, content in (("jpg", contents[i % 16]), ("cls", str(i % 1000).encode())):
                    about = tarfile.TarInfo(f"{shard * each + i:09d}.{row_range}")
                    about.size = len(content)
                    tar.addfile(about, io.BytesIO(content))
    return sum(map(len, contents)) // 16


# --- ranks ------------------------------------------------------------------------------------------------------------


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
    pool, row_range = Prototypes(WIDTH, SHARDED, 0.9, ranks), ranks.row_range(BATCH)
    pool.seen[:-1].fill_(True)
    targets = F.normalize(torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(0)), dim=1)
    labels = torch.arange(BATCH) * 389 % SHARDED
    look_up = partial(pool.class_mean, row_range.select(labels), row_range.select(targets), row_range=row_range)
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
