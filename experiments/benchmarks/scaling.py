"""What a part costs as it grows: `python experiments/benchmarks/scaling.py [--device cpu|cuda] [--ranks] [--json F]`.

Pools as classes and slots grow, the order of an epoch as images grow, the index and the reading of tar shards, the
gathers and the gradient over ranks, and a ResNet-50 step with and without a million prototypes. Times are medians over
repeats after warming up, the device waited for; bytes are those of the tensors themselves. What would take more than
--most-gib is left out. `--into docs/scaling.md` puts the tables, and the model made from them, between that page's
marks; `--from FILE` takes them from a run kept earlier with `--json`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from scaling_parts import BATCH, WIDTH, by_ranks, milliseconds, replayed, tensor_bytes, write_shards
from scaling_tables import Row, put_into, tables
from step_ours import synthetic
from step_report import commit_here, processor

from supancl.core.pools import ClassQueues, Pool, Prototypes, Queue
from supancl.core.schedules import ema_momentum, learning_rate
from supancl.data.decode import decode_threads
from supancl.data.opening import open_data
from supancl.data.order import Order, epoch_order
from supancl.data.sources.tars import index_tars
from supancl.data.splits import Data, DataSpec
from supancl.recipes import recipe
from supancl.training.speed import WARM_UP_STEPS
from supancl.training.start import with_speed
from supancl.training.trainer import Trainer

CLASSES = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
SLOTS = (1_000, 10_000, 100_000, 1_000_000)
PER_CLASS = 4  # slots of a class queue
IMAGES = (10**6, 10**7, 10**8, 10**9)
PER_SHARD, WINDOW = 10_000, 16
GIB = 2**30
NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d)


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


def pool_row(build: Callable[[], Pool], slots: int, classes: int, device: torch.device) -> Row:
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


def pools_by_classes(device: torch.device, most: float) -> Iterator[Row]:
    kinds: dict[str, tuple[Callable[[int], Pool], int]] = {
        "prototypes": (lambda classes: Prototypes(WIDTH, classes), 4 * WIDTH + 9),
        "class-queues": (
            lambda classes: ClassQueues(PER_CLASS, WIDTH, classes),
            PER_CLASS * (4 * WIDTH + 16) + 8 * WIDTH + 16,
        ),
    }
    for kind, (build, each) in kinds.items():
        for classes in CLASSES:
            row: Row = {"pool": kind, "classes": classes}
            if classes * each > most * GIB:
                yield row | {"bytes": classes * each}
                continue
            yield row | pool_row(partial(build, classes), classes * PER_CLASS, classes, device)


def queue_by_slots(device: torch.device, most: float) -> Iterator[Row]:
    for slots in SLOTS:
        row: Row = {"pool": "queue", "slots": slots}
        if slots * (4 * WIDTH + 16) <= most * GIB:
            yield row | pool_row(partial(Queue, slots, WIDTH, 1000), slots, 1000, device)


# --- order, index, reading --------------------------------------------------------------------------------------------


def orders(most: float) -> Iterator[Row]:
    """The order of an epoch, which a resumed run waits for, and what is held meanwhile."""
    for images in IMAGES:
        row: Row = {"images": images, "whole_bytes": 8 * images}
        if images <= 10**8 and 24 * images <= most * GIB:
            since = time.perf_counter()
            epoch_order(images, 0, 0)
            row["whole_first_ms"] = (time.perf_counter() - since) * 1e3
            epoch_order.cache_clear()
        yield row


def schedules() -> Iterator[Row]:
    """Learning rates and momentum of every step of an epoch, worked out when it begins: as Trainer has them."""
    chosen = recipe("imagenet100.supbyol")
    epochs = chosen.train.epochs
    for steps in (100_000, 1_000_000):
        since = time.perf_counter()
        rates = [
            learning_rate(chosen.schedule, chosen.learning_rate, epochs, steps, predictor)
            for predictor in (False, True)
        ]
        momentum = ema_momentum(chosen.branches.momentum, chosen.branches.momentum_end, epochs * steps)
        made = torch.tensor([[of(step) for step in range(steps)] for of in (*rates, momentum)], dtype=torch.float64)
        each = (time.perf_counter() - since) / steps
        yield {"steps": steps, "us_per_step": each * 1e6, "seconds": each * steps, "bytes": tensor_bytes(made)}


def streams(scratch: Path, device: torch.device) -> Iterator[Row]:
    """Indexing shards of small images, opening them again, and decoding photographs as training would."""
    os.environ["SUPANCL_CACHE"] = str(scratch / "cache")
    write_shards(scratch / "small", 9, 2000, (16, 16))
    spec = DataSpec(source=str(scratch / "small"), stream=True, short_side=256)
    found = []
    for _ in range(2):
        since = time.perf_counter()
        data = open_data(spec, 3)
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
    each = write_shards(scratch / "photographs", 3, 600, (500, 375))
    data = open_data(replace(spec, source=str(scratch / "photographs")), 3)
    order = Order(torch.zeros(1200), 0, 128, counts=torch.tensor([600, 600]), window=WINDOW)
    data.train.batch(order.positions(0))
    rates = []
    for step in range(1, 9):
        since = time.perf_counter()
        data.train.batch(order.positions(step))
        rates.append(128 / (time.perf_counter() - since))
    yield {
        "what": "decode",
        "threads": decode_threads(),
        "file_bytes": each,
        "pixels": "500 x 375 to 341 x 256",
        "images_per_second": statistics.median(rates),
        "per_thread": statistics.median(rates) / decode_threads(),
    }
    if device.type == "cuda":
        yield {"what": "train"} | streamed_step(data, device)


def streamed_step(data: Data, device: torch.device) -> Row:
    """The captured ResNet-50 step, fed from shards: as fast as the slower of decoding and training."""
    chosen = recipe("imagenet100.supsiam").with_set({"train.epochs": 200, "train.compile": False})
    trainer = Trainer(with_speed(chosen, device, len(data.train)), data, device)
    for _ in range(WARM_UP_STEPS):
        trainer.advance()
    trainer.capture()
    each = milliseconds(trainer.advance, device, repeats=5, calls=6)
    trainer.feed.close()
    return {"streamed_step_ms": each, "images_per_second": trainer.recipe.train.batch_size / each * 1e3}


# --- a step beside a million prototypes -------------------------------------------------------------------------------


def step_trainer(name: str, settings: dict[str, object], classes: int, device: torch.device, compiled: bool) -> Trainer:
    base = recipe(name).with_set(
        {
            "heads.projector.out": WIDTH,
            "heads.predictor.out": WIDTH,
            "train.epochs": 200,
            "train.compile": compiled,
            "data.source": "synthetic",
            **settings,
        }
    )
    data = synthetic(2048 if device.type == "cuda" else 256, (256, 256), classes)
    return Trainer(with_speed(base, device, len(data.train)), data, device)


VARIANTS: dict[str, tuple[str, dict[str, object], int]] = {
    "simsiam: no labels, no pool": ("imagenet100.simsiam", {}, 100),
    "supsiam: queue of 8,192": ("imagenet100.supsiam", {}, 100),
    "supsiam: prototypes, 100 classes": ("imagenet100.supsiam", {"pool.kind": "prototypes"}, 100),
    "supsiam: prototypes, 1,000,000 classes": ("imagenet100.supsiam", {"pool.kind": "prototypes"}, 1_000_000),
    # a step that waits for other ranks is not captured
    "the same, step not captured": (
        "imagenet100.supsiam",
        {"pool.kind": "prototypes", "train.replay": False},
        1_000_000,
    ),
}


def steps(device: torch.device, compiled: bool) -> Iterator[Row]:
    """ResNet-50 at 224 px, batch 128, augmentation included, images resident; on a CPU only what is kept is counted."""
    for variant, (name, settings, classes) in VARIANTS.items():
        trainer = step_trainer(name, settings, classes, device, compiled)
        parameters = sum(p.numel() for p in trainer.model.branches.parameters())
        norms = [part.num_features for part in trainer.model.branches.modules() if isinstance(part, NORMS)]
        row: Row = {"variant": variant, "parameters": parameters, "norms": len(norms), "norm_channels": sum(norms)}
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
        row |= {"pool_bytes": tensor_bytes(state["pool"]), "checkpoint_bytes": tensor_bytes(state) + momentum}
        yield row
        trainer.feed.close()
        del trainer, state
        gc.collect()  # a trainer and its feed know each other
        if device.type == "cuda":
            torch.cuda.empty_cache()


# --- all of it --------------------------------------------------------------------------------------------------------


def about(device: torch.device) -> str:
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{decode_threads()} cores, {processor()}"
    return (
        f"{where}, {torch.get_num_threads()} torch threads, Python {platform.python_version()}, "
        f"torch {torch.__version__}, batch {BATCH}, width {WIDTH}"
    )


def measured(device: torch.device, parts: Sequence[str], most: float, compiled: bool, commit: str) -> Row:
    stamp = f"measured {datetime.now(UTC):%Y-%m-%d} at commit {commit}"
    result: Row = {"about": about(device), "measured": stamp, "device": device.type, "parts": {}}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        ways: dict[str, Callable[[], Iterator[Row]]] = {
            "classes": lambda: pools_by_classes(device, most),
            "slots": lambda: queue_by_slots(device, most),
            "order": lambda: orders(most),
            "schedule": schedules,
            "stream": lambda: streams(scratch, device),
            "step": lambda: steps(device, compiled),
            "ranks": lambda: by_ranks(scratch),
        }
        for name in parts:
            since = time.perf_counter()
            result["parts"][name] = list(ways[name]())
            print(f"{name}: {time.perf_counter() - since:.1f} s", file=sys.stderr, flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--parts", default="classes,slots,order,schedule,stream,step", help="which tables")
    parser.add_argument("--ranks", action="store_true", help="also gathers and gradients over 1, 2 and 4 processes")
    parser.add_argument("--compile", action="store_true", help="compile the step (a minute or two more)")
    parser.add_argument("--most-gib", type=float, default=None, help="leave out what takes more (24; on a CPU 4)")
    parser.add_argument("--commit", default="", help="where there is no git to ask")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--from", dest="kept", type=Path, help="show a result kept with --json; measure nothing")
    parser.add_argument("--into", type=Path, help="also put the tables between the marks of this page")
    given = parser.parse_args()
    device = torch.device(given.device)
    most = given.most_gib or (24.0 if device.type == "cuda" else 4.0)
    parts = [*given.parts.split(","), *(["ranks"] if given.ranks else [])]
    result = (
        json.loads(given.kept.read_text())
        if given.kept
        else measured(device, parts, most, given.compile, given.commit or commit_here())
    )
    if given.json:
        given.json.write_text(json.dumps(result, indent=1))
    if given.into:
        put_into(given.into, result)
    print(tables(result))


if __name__ == "__main__":
    main()
