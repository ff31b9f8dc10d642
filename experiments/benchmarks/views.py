"""Two augmented views of every image: ours, torchvision per image and per batch, lightly and kornia, in one run.

    python experiments/benchmarks/views.py [--device cpu|cuda|all] [--rounds 7] [--only 224] [--json FILE]

Every contender makes two views (crop, flip, jitter, grey, blur, normalise) of the same uint8 images, which lie in
memory, on the GPU where the contender works there. In each round the contenders take turns, so that whatever else
the machine does meets all of them; the median over the rounds and the middle half are given. What works image by
image on the CPU is given one process per core, each with one thread; the others get as many threads.
torchvision's batched form makes one draw for the whole batch: no alternative, but a bound.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

import torch
import torchvision.transforms.v2 as T
from before import FLAG, compare
from common import about, keep, show
from torch import Tensor

from supancl.data.store.memory import Batch
from supancl.data.views.augment import kernel_size
from supancl.data.views.render import render
from supancl.data.views.specs import Crops

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SCALE, RATIO, SIGMA, COLOUR = (0.2, 1.0), (3 / 4, 4 / 3), (0.1, 2.0), (0.4, 0.4, 0.4, 0.1)
Work = Callable[[], Any]


@dataclass(frozen=True)
class Setting:
    """Images of one size, and the views that are made of them."""

    height: int
    width: int
    size: int
    batch: int
    blur: float

    def __str__(self) -> str:
        return (
            f"{self.height}x{self.width} -> {self.size}, batch {self.batch}, "
            f"{'jitter, grey, blur' if self.blur else 'jitter, grey'}"
        )


SETTINGS = (Setting(32, 32, 32, 256, 0.0), Setting(96, 96, 64, 128, 0.5), Setting(256, 320, 224, 64, 0.5))
ON_A_GPU = {32: 1024, 64: 512, 224: 128}  # batches large enough to fill it


@cache
def pixels(setting: Setting) -> Tensor:
    shape = setting.batch, 3, setting.height, setting.width
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


# --- the contenders ------------------------------------------------------------------------------------------------


def ours(setting: Setting, device: torch.device) -> Work:
    crops, batch = Crops(size=setting.size, blur=setting.blur), Batch(pixels(setting).to(device))
    return lambda: crops(batch, MEAN, STD)


def ours_captured(setting: Setting, device: torch.device) -> Work:
    work = ours(setting, device)
    aside = torch.cuda.Stream()
    with torch.cuda.stream(aside):
        work()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def ours_compiled(setting: Setting, device: torch.device) -> Work:
    crops, images = Crops(size=setting.size, blur=setting.blur), pixels(setting).to(device)
    sizes = torch.tensor([[setting.height, setting.width]], device=device).expand(2 * setting.batch, 2)
    fast = torch.compile(render, dynamic=False)
    return lambda: fast(
        crops, images, crops.draws_from(crops.draw_uniforms(2 * setting.batch, sizes.device), sizes, 2), MEAN, STD
    )


def torchvision_transform(setting: Setting, from_pil: bool) -> Any:
    steps: list[Any] = [T.PILToTensor()] if from_pil else []
    colour: list[Any] = [
        T.RandomResizedCrop(setting.size, SCALE, RATIO, antialias=True), T.RandomHorizontalFlip(),
        T.RandomApply([T.ColorJitter(*COLOUR)], 0.8), T.RandomGrayscale(0.2),
    ]  # fmt: skip
    if setting.blur:
        colour.append(T.RandomApply([T.GaussianBlur(kernel_size(setting.size), SIGMA)], setting.blur))
    return T.Compose([*colour, *steps, T.ToDtype(torch.float32, scale=True), T.Normalize(MEAN, STD)])


def lightly_transform(setting: Setting) -> Any:
    from lightly.transforms.simsiam_transform import SimSiamViewTransform

    return SimSiamViewTransform(input_size=setting.size, gaussian_blur=setting.blur)  # its defaults are these settings


def per_image_on_device(setting: Setting, device: torch.device) -> Work:
    transform, images = torchvision_transform(setting, from_pil=False), pixels(setting).to(device)
    return lambda: torch.stack([transform(image) for _ in range(2) for image in images])


def torchvision_batched(setting: Setting, device: torch.device) -> Work:
    transform, images = torchvision_transform(setting, from_pil=False), pixels(setting).to(device)
    return lambda: torch.stack([transform(images), transform(images)])


def kornia_batched(setting: Setting, device: torch.device) -> Work:
    import kornia.augmentation as K

    side = setting.size, setting.size
    steps: list[Any] = [
        K.RandomResizedCrop(side, SCALE, RATIO, p=1.0), K.RandomHorizontalFlip(p=0.5), K.ColorJiggle(*COLOUR, p=0.8),
        K.RandomGrayscale(p=0.2),
    ]  # fmt: skip
    if setting.blur:
        kernel = kernel_size(setting.size)
        steps.append(K.RandomGaussianBlur((kernel, kernel), SIGMA, p=setting.blur))
    mean, std = torch.tensor(MEAN), torch.tensor(STD)
    transform = K.AugmentationSequential(*steps, K.Normalize(mean, std), data_keys=["input"]).to(device)
    images = pixels(setting).to(device)

    def work() -> Tensor:
        with torch.inference_mode():
            floats = images.float() / 255
            return torch.stack([transform(floats), transform(floats)])

    return work


# --- one process per core, for what works image by image -----------------------------------------------------------


@cache
def image_by_image(name: str, setting: Setting) -> tuple[Any, list[Any]]:
    """In a worker: the transform and the images as it wants them."""
    images: list[Any] = list(pixels(setting))
    if name != "torchvision":
        images = [T.functional.to_pil_image(image) for image in images]
    if name == "lightly":
        return lightly_transform(setting), images
    return torchvision_transform(setting, from_pil=name != "torchvision"), images


def some_views(name: str, setting: Setting, rows: range) -> Tensor:
    transform, images = image_by_image(name, setting)
    return torch.stack([transform(images[row]) for _ in range(2) for row in rows])


def in_processes(name: str, workers: Pool, count: int, setting: Setting, device: torch.device) -> Work:
    if name == "lightly":
        lightly_transform(setting)  # where it is missing, say so here
    ends = [setting.batch * k // count for k in range(count + 1)]
    parts = [(name, setting, range(*pair)) for pair in pairwise(ends)]

    def work() -> Tensor:
        made = workers.starmap(some_views, parts, chunksize=1)
        return torch.cat([part.view(2, -1, *part.shape[1:]) for part in made], dim=1).to(device)

    return work


def contenders(device: torch.device, workers: Pool, cores: int) -> dict[str, Callable[[Setting, torch.device], Work]]:
    pool = f", {cores} processes"
    found: dict[str, Callable[[Setting, torch.device], Work]] = {"ours": ours}
    if device.type == "cuda":
        found |= {
            "ours, in a CUDA graph": ours_captured,
            "ours, compiled": ours_compiled,
            "torchvision v2 per image, on the GPU": per_image_on_device,
        }
    found |= {
        f"torchvision v2 per image, tensors{pool}": partial(in_processes, "torchvision", workers, cores),
        f"torchvision v2 per image, PIL{pool}": partial(in_processes, "pil", workers, cores),
        f"lightly SimSiam, PIL{pool}": partial(in_processes, "lightly", workers, cores),
        "kornia, batched, not antialiased": kornia_batched,
        "torchvision v2 batched, one draw a batch (bound)": torchvision_batched,
    }
    return found


# --- measuring -----------------------------------------------------------------------------------------------------


def seconds(work: Work, device: torch.device, least: float) -> float:
    """Per call, over as many calls as fill the least time."""
    calls, begin = 0, time.perf_counter()
    while True:
        work()
        calls += 1
        if device.type == "cuda" and calls % 10 == 0:
            torch.cuda.synchronize()
        if time.perf_counter() - begin >= least:
            if device.type == "cuda":
                torch.cuda.synchronize()
            return (time.perf_counter() - begin) / calls


def measure(setting: Setting, device: torch.device, workers: Pool, cores: int, rounds: int, least: float) -> list[Any]:
    ready: dict[str, Work] = {}
    rows: list[Any] = []
    for name, build in contenders(device, workers, cores).items():
        try:
            work = build(setting, device)
            for _ in range(2):
                work()
            ready[name] = work
        except ImportError as error:
            rows.append({"name": name, "note": f"not installed ({error.name})"})
        except Exception as error:  # one contender that fails must not hide the others
            rows.append({"name": name, "note": f"failed: {type(error).__name__}: {str(error).splitlines()[0][:120]}"})
    times: dict[str, list[float]] = {name: [] for name in ready}
    for _ in range(rounds):
        for name, work in ready.items():
            times[name].append(seconds(work, device, least))
    for name, taken in times.items():
        low, middle, high = statistics.quantiles(taken, n=4) if len(taken) > 1 else taken * 3
        rows.append(
            {
                "name": name,
                "seconds": middle,
                "rate": setting.batch / middle,
                "middle_half": [setting.batch / high, setting.batch / low],
            }
        )
    base = statistics.median(times["ours"]) if "ours" in times else float("nan")
    order = list(contenders(device, workers, cores))
    for row in rows:
        row |= {"device": device.type, "setting": str(setting)}
        if "seconds" in row:
            row["times_slower_than_ours"] = row["seconds"] / base
    return sorted(rows, key=lambda row: order.index(row["name"]))


def alone(core_threads: int = 1) -> None:
    torch.set_num_threads(core_threads)


def main(argv: Sequence[str] | None = None) -> list[Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda", "all"), default="all", help="all: CPU, and GPU if any")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="least time of one measurement")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)), help="threads, and processes")
    parser.add_argument("--only", type=int, choices=[s.size for s in SETTINGS], help="one setting, by its size")
    parser.add_argument("--json", type=Path, help="write the rows here too")
    parser.add_argument("--before", **FLAG)
    args = parser.parse_args(argv)
    if args.before:
        raise SystemExit(compare("views", args.before))
    rows: list[Any] = []
    # forked before torch has threads or a GPU, which a fork would not survive
    with get_context("fork").Pool(args.cores, alone) as workers:
        torch.set_num_threads(args.cores)
        asked = ("cpu", "cuda") if args.device == "all" else (args.device,)
        devices = [torch.device(name) for name in asked if name == "cpu" or torch.cuda.is_available()]
        print(
            f"two views of every image, images per second; median of {args.rounds} rounds in turns; {args.cores} cores"
        )
        for device in devices:
            for setting in (s for s in SETTINGS if args.only in (None, s.size)):
                batch = ON_A_GPU[setting.size] if device.type == "cuda" else setting.batch
                made = measure(replace(setting, batch=batch), device, workers, args.cores, args.rounds, args.seconds)
                show(made)
                rows += made
    where = about(devices[-1], "lightly", "kornia") if devices else {}
    keep(args.json, {**where, "rounds": args.rounds, "rows": rows})
    return rows


if __name__ == "__main__":
    failed = [row for row in main() if str(row.get("note", "")).startswith("failed")]
    raise SystemExit(1 if failed else 0)
