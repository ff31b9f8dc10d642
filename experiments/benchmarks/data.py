"""Decoding, the packed cache and memory, side by side with a plain DataLoader: `python experiments/benchmarks/data.py`.

JPEGs are made for the purpose. Ours: threads that decode, the cache being built, the cache being read. The peer: a
torch DataLoader whose workers open images with Pillow and bring them down with torchvision's Resize. All of them in
every round, one after another, on the same files; median and spread over the rounds. Memory is measured in child
processes, one for each number of images: RssAnon, which leaves out what is only mapped from disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from before import FLAG, compare
from common import about, keep, show
from jpegs import write_jpegs
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from supancl.data.decode import decode, decode_threads, map_in_order
from supancl.data.store.cache import Cache
from supancl.data.store.memory import PackedImages

BATCH, WIDTH, HEIGHT, SHORT = 128, 500, 375, 256


# --- contenders -------------------------------------------------------------------------------------------------------


class PillowImages(Dataset[torch.Tensor]):
    """The plain way: open, convert, Resize, to a tensor."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths, self.resize = paths, v2.Resize(SHORT)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with Image.open(self.paths[index]) as image:
            return v2.functional.pil_to_tensor(self.resize(image.convert("RGB")))


def contenders(paths: list[Path], scratch: Path, cores: int) -> dict[str, Callable[[], None]]:
    loader = DataLoader(PillowImages(paths), BATCH, shuffle=True, num_workers=cores, persistent_workers=True)
    kept: dict[str, PackedImages] = {}

    def our_threads() -> None:
        for _ in map_in_order(lambda path: decode(path, 3, SHORT), paths):
            pass

    def plain_loader() -> None:
        for _ in loader:
            pass

    def build() -> None:
        shutil.rmtree(scratch, ignore_errors=True)
        kept["cache"] = Cache("benchmark", 3, SHORT).build(paths)[0]

    def read() -> None:
        for indices in torch.randperm(len(paths)).split(BATCH):
            kept["cache"].batch(indices)

    return {
        "decoding: DataLoader with Pillow": plain_loader,
        "decoding: ours, threads": our_threads,
        "cache: build": build,
        "cache: read": read,
    }


def rates(paths: list[Path], scratch: Path, rounds: int, cores: int) -> dict[str, list[float]]:
    """Images a second, by contender and round."""
    ways = contenders(paths, scratch, cores)
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, work in ways.items():
            times = 10 if name == "cache: read" else 1  # it is over before the clock has ticked much
            since = time.perf_counter()
            for _ in range(times):
                work()
            found[name].append(times * len(paths) / (time.perf_counter() - since))
    return found


# --- memory -----------------------------------------------------------------------------------------------------------


def anonymous_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    raise SystemExit("no RssAnon in /proc/self/status: this part needs Linux")


def peak_of(work: Callable[[], Any]) -> tuple[float, Any]:
    """The highest RssAnon while `work` runs, looked at every 2 ms, and what it gives."""
    highest, over = [anonymous_mb()], threading.Event()

    def watch() -> None:
        while not over.wait(0.002):
            highest[0] = max(highest[0], anonymous_mb())

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        result = work()
    finally:
        over.set()
        watching.join()
    return max(highest[0], anonymous_mb()), result


def memory_child(folder: Path) -> None:
    """In a process of its own: the growth over a first small cache, while all is built, and while all is read."""
    paths = sorted(folder.glob("*/*.jpg"))

    def read(images: PackedImages) -> None:
        for _ in range(-(-4096 // len(images))):  # few images more often: batches leave their mark on the allocator
            for indices in torch.randperm(len(images)).split(BATCH):
                images.batch(indices)

    read(Cache("warm", 3, None).build(paths[:200])[0])
    before = anonymous_mb()
    built, images = peak_of(lambda: Cache("all", 3, None).build(paths)[0])
    read_peak, _ = peak_of(lambda: read(images))
    print(
        json.dumps(
            {
                "images": len(paths),
                "pixels_mb": images.nbytes / 2**20,
                "before_mb": before,
                "build_mb": built - before,
                "read_mb": read_peak - before,
            }
        )
    )


def memory(root: Path, counts: Sequence[int]) -> list[dict[str, float]]:
    rows = []
    for count in counts:
        write_jpegs(root / f"small{count}", [(120, 160)], count, 85)
        command = [sys.executable, __file__, "--child", str(root / f"small{count}")]
        # a freed batch goes back to the system at once, so that what is measured is held by us, not by the allocator
        own = {f"MALLOC_{name}_THRESHOLD_": "65536" for name in ("MMAP", "TRIM")} | {"MALLOC_ARENA_MAX": "1"}
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | own)
        rows.append(json.loads(done.stdout))
    return rows


# --- the whole --------------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=640, help=f"JPEGs of {WIDTH} x {HEIGHT}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", type=int, nargs="*", default=[200, 2000, 20000], help="numbers of small images")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--before", **FLAG)
    args = parser.parse_args(argv)
    if args.before:
        sys.exit(compare("data", args.before))
    if args.child:
        memory_child(args.child)
        return
    torch.set_num_threads(1)
    cores = decode_threads()
    with tempfile.TemporaryDirectory() as folder:
        root, os.environ["SUPANCL_CACHE"] = Path(folder), f"{folder}/scratch"
        paths = write_jpegs(root / "photos", [(HEIGHT, WIDTH)], args.images)
        speed = rates(paths, root / "scratch", args.rounds, cores)
        grown = memory(root, args.memory)
    base = statistics.median(speed["decoding: DataLoader with Pillow"])
    rows = [
        {"images a second": name, "median": middle, "spread": [min(found), max(found)], "ratio": middle / base}
        for name, found in speed.items()
        for middle in [statistics.median(found)]
    ]
    print(f"{args.images} JPEGs of {WIDTH} x {HEIGHT} to short side {SHORT}, {args.rounds} rounds, {cores} cores")
    show(rows)
    show(grown)
    where = about(torch.device("cpu"), "torchvision", "pillow")
    keep(args.json, {**where, "cores": cores, "images_per_second": speed, "memory": grown})


if __name__ == "__main__":
    main()
