"""What a part costs as it grows: `python experiments/benchmarks/scaling.py [--device cpu|cuda] [--parts NAMES]`.

Pools as classes and slots grow, the index of tar shards, the gathers and the gradient over ranks, and a ResNet-50 step
with and without a million prototypes. Times are medians over repeats after warming up, the device waited for; bytes are
those of the tensors themselves. What would take more than --most-gib is left out.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import os
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import Record, about, keep, show
from jpegs import photograph
from step_ours import synthetic, wait
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from supancl.core.pools import ClassQueues, Pool, Prototypes, Queue
from supancl.data.opening import open_data
from supancl.data.sources.tars import index_tars
from supancl.data.spec import DataSpec
from supancl.distributed import Ranks
from supancl.recipes import recipe
from supancl.training.speed import WARM_UP_STEPS, with_speed
from supancl.training.trainer import Trainer

BATCH, WIDTH = 256, 256
CLASSES = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
SLOTS = (1_000, 10_000, 100_000, 1_000_000)
PER_CLASS = 4  # slots of a class queue
SHARDED = 100_000  # classes, where ranks share them
GIB = 2**30


# --- clocks and sizes -------------------------------------------------------------------------------------------------


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


# --- pools ------------------------------------------------------------------------------------------------------------


def fill(pool: Pool, slots: int, classes: int, device: torch.device) -> None:
    """As it is after a while of training: nothing is empty."""
    if isinstance(pool, Prototypes):
        pool.prototypes.normal_()
        pool.seen[:-1].fill_(True)
        return
    chunk = min(slots, 2**16)
    targets = F.normalize(torch.randn(chunk, WIDTH, device=device), dim=1)
    for first in range(0, slots, chunk):
        pool.push(targets, torch.arange(first, first + chunk, device=device) % classes)


def pool_row(build: Callable[[], Pool], slots: int, classes: int, device: torch.device) -> Record:
    """push and class_mean for batches that change: rows of large tables are not in a cache."""
    with device:
        pool = build()
    fill(pool, slots, classes, device)
    generator = torch.Generator(device).manual_seed(0)
    targets = F.normalize(torch.randn(BATCH, WIDTH, device=device, generator=generator), dim=1)
    labels = torch.randint(classes, (BATCH,), device=device, generator=generator)

    def push() -> None:
        labels.add_(7919).remainder_(classes)
        pool.push(targets, labels)

    def mean() -> None:
        labels.add_(7919).remainder_(classes)
        pool.class_mean(labels, targets)

    return {
        "push_ms": milliseconds(replayed(push, device), device),
        "class_mean_ms": milliseconds(replayed(mean, device), device),
        "bytes": tensor_bytes(pool.state_dict()),
    }


def pools_by_classes(device: torch.device, most: float) -> Iterator[Record]:
    kinds: dict[str, tuple[Callable[[int], Pool], int]] = {
        "prototypes": (lambda classes: Prototypes(WIDTH, classes), 4 * WIDTH + 9),
        "class-queues": (
            lambda classes: ClassQueues(PER_CLASS, WIDTH, classes),
            PER_CLASS * (4 * WIDTH + 16) + 8 * WIDTH + 16,
        ),
    }
    for kind, (build, each) in kinds.items():
        for classes in CLASSES:
            row: Record = {"pool": kind, "classes": classes}
            if classes * each > most * GIB:
                yield row | {"bytes": classes * each}
                continue
            yield row | pool_row(partial(build, classes), classes * PER_CLASS, classes, device)


def queue_by_slots(device: torch.device, most: float) -> Iterator[Record]:
    for slots in SLOTS:
        row: Record = {"pool": "queue", "slots": slots}
        if slots * (4 * WIDTH + 16) <= most * GIB:
            yield row | pool_row(partial(Queue, slots, WIDTH, 1000), slots, 1000, device)


# --- the index of shards --------------------------------------------------------------------------------------------


def write_shards(folder: Path, shards: int, each: int, side: tuple[int, int]) -> None:
    """Shards of sixteen different images."""
    contents = []
    for seed in range(16):
        buffer = io.BytesIO()
        photograph(seed, *side).save(buffer, "jpeg", quality=90)
        contents.append(buffer.getvalue())
    folder.mkdir()
    for shard in range(shards):
        with tarfile.open(folder / f"{'train' if shard else 'val'}-{shard:05d}.tar", "w") as tar:
            for i in range(each):
                for suffix, content in (("jpg", contents[i % 16]), ("cls", str(i % 1000).encode())):
                    member = tarfile.TarInfo(f"{shard * each + i:09d}.{suffix}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))


def streams(scratch: Path) -> Iterator[Record]:
    """Indexing shards of small images, and opening them again."""
    os.environ["SUPANCL_CACHE"] = str(scratch / "cache")
    write_shards(scratch / "small", 9, 2000, (16, 16))
    spec = DataSpec(source=str(scratch / "small"), stream=True, short_side=256)
    found = []
    for _ in range(2):
        since = time.perf_counter()
        open_data(spec, 3)
        found.append(time.perf_counter() - since)
    files = sorted((scratch / "small").iterdir())
    images = sum(map(len, index_tars(files)))
    kept = sum(path.stat().st_size for path in (scratch / "cache").rglob("*.zip"))
    yield {
        "what": "index",
        "images": images,
        "index_us": found[0] / images * 1e6,
        "open_us": found[1] / images * 1e6,
        "open_ms_per_shard": found[1] / 9 * 1e3,
        "disk_bytes_per_image": kept / images,
    }


# --- ranks ------------------------------------------------------------------------------------------------------------


def _rank(rank: int, ranks: int, meeting: str, answer: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    cpu = torch.device("cpu")
    own = torch.randn(BATCH // ranks, WIDTH)
    every = [torch.empty_like(own) for _ in range(ranks)]
    row: Record = {"ranks": ranks, "gather_ms": milliseconds(lambda: dist.all_gather(every, own), cpu, 10)}
    for name, numbers in (("norm_ms", 2 * 2048 + 1), ("gradient_1m_ms", 10**6), ("gradient_33m_ms", 33 * 10**6)):
        flat = torch.zeros(numbers)
        row[name] = milliseconds(partial(dist.all_reduce, flat), cpu, 5, 2)
    row |= sharded(Ranks(ranks, rank, rank))
    if rank == 0:
        Path(answer).write_text(json.dumps(row))
    dist.destroy_process_group()


def sharded(ranks: Ranks) -> Record:
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


def by_ranks(scratch: Path) -> Iterator[Record]:
    for ranks in (1, 2, 4):
        answer = scratch / f"ranks-{ranks}.json"
        spawn(_rank, (ranks, str(scratch / f"meeting-{ranks}"), str(answer)), nprocs=ranks)
        yield json.loads(answer.read_text())


# --- a step beside a million prototypes -------------------------------------------------------------------------------

PROTOTYPES: dict[str, object] = {"pool.kind": "prototypes"}
VARIANTS: dict[str, tuple[str, dict[str, object], int]] = {
    "simsiam: no labels, no pool": ("imagenet100.simsiam", {}, 100),
    "supsiam: queue of 8,192": ("imagenet100.supsiam", {}, 100),
    "supsiam: prototypes, 100 classes": ("imagenet100.supsiam", PROTOTYPES, 100),
    "supsiam: prototypes, 1,000,000 classes": ("imagenet100.supsiam", PROTOTYPES, 1_000_000),
    # a step that waits for other ranks is not captured
    "the same, step not captured": ("imagenet100.supsiam", {**PROTOTYPES, "train.replay": False}, 1_000_000),
}


def steps(device: torch.device) -> Iterator[Record]:
    """ResNet-50 at 224 px, batch 128, augmentation included, images resident; on a CPU only what is kept is counted."""
    narrow = {"heads.projector.out": WIDTH, "heads.predictor.out": WIDTH, "train.epochs": 200, "train.compile": False}
    for variant, (name, settings, classes) in VARIANTS.items():
        data = synthetic(2048 if device.type == "cuda" else 256, (256, 256), classes)
        base = recipe(name).with_set({**narrow, "data.source": "synthetic", **settings})
        trainer = Trainer(with_speed(base, device, len(data.train)), data, device)
        parameters = sum(p.numel() for p in trainer.model.branches.parameters())
        row: Record = {"variant": variant, "parameters": parameters}
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            for _ in range(WARM_UP_STEPS):
                trainer.advance()
            if trainer.captured.may_replay:
                trainer.capture()
            row["step_ms"] = milliseconds(trainer.advance, device, repeats=7, calls=10)
            row["images_per_second"] = trainer.recipe.train.batch_size / row["step_ms"] * 1e3
            row["peak_bytes"] = torch.cuda.max_memory_allocated(device)
        state = trainer.state()
        momentum = 0 if state["optimizer"]["state"] else 4 * parameters  # there once a step has been taken
        yield row | {"pool_bytes": tensor_bytes(state["pool"]), "checkpoint_bytes": tensor_bytes(state) + momentum}
        trainer.feed.close()
        del trainer, state
        gc.collect()  # a trainer and its feed know each other
        if device.type == "cuda":
            torch.cuda.empty_cache()


# --- all of it --------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parts = ("classes", "slots", "stream", "step", "ranks")
    parser.add_argument("--parts", nargs="+", default=parts[:-1], choices=parts, help="which tables")
    parser.add_argument("--most-gib", type=float, help="leave out what takes more (24; on a CPU 4)")
    parser.add_argument("--commit", default="", help="where there is no git to ask")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    device = torch.device(args.device)
    most = args.most_gib or (24.0 if device.type == "cuda" else 4.0)
    result = {**about(device, given=args.commit), "batch": BATCH, "width": WIDTH, "parts": dict[str, list[Record]]()}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        ways: dict[str, Callable[[], Iterator[Record]]] = {
            "classes": lambda: pools_by_classes(device, most),
            "slots": lambda: queue_by_slots(device, most),
            "stream": lambda: streams(scratch),
            "step": lambda: steps(device),
            "ranks": lambda: by_ranks(scratch),
        }
        for name in args.parts:
            since = time.perf_counter()
            result["parts"][name] = list(ways[name]())
            print(f"{name}: {time.perf_counter() - since:.1f} s", file=sys.stderr, flush=True)
            show(result["parts"][name])
            keep(args.json, result)


if __name__ == "__main__":
    main()
