"""For step.py and scaling.py: our training step as a contender, its data, and how contenders take turns."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from supancl import recipe
from supancl.data.splits import Data, full_split
from supancl.data.store.memory import ArrayImages
from supancl.recipes import Recipe
from supancl.training.speed import WARM_UP_STEPS
from supancl.training.trainer import Trainer

# sizes that a CPU gets through in seconds, to see that everything runs; their times mean nothing
TINY_CNN = {"encoder.name": "cnn", "encoder.width": 16, "views.size": 16, "train.batch_size": 8}
TINY_VIT = {"views.size": 32, "train.batch_size": 4}
TINY_HEADS = {"heads.projector.hidden": [16], "heads.projector.out": 16}


@dataclass
class Contender:
    """Something that takes training steps, one a call, and what was seen when it was made."""

    name: str
    batch: int
    step: Callable[[], Any]
    before: Callable[[], Any] = lambda: None  # what must happen untimed before each of its turns
    multiple: int = 1  # of how many steps a turn must be: workers that start together deliver together
    facts: dict[str, Any] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)  # seconds a step, one entry a round
    trainer: Trainer | None = None

    @property
    def rate(self) -> float:
        return self.batch / statistics.median(self.times)

    def record(self) -> dict[str, Any]:
        spread = [self.batch / slow for slow in (max(self.times), min(self.times))]
        return {
            "name": self.name,
            "rate": self.rate,
            "spread": spread,
            "ms": 1e3 * statistics.median(self.times),
            **self.facts,
        }


def synthetic(images: int, size: tuple[int, int], classes: int, channels: int = 3) -> Data:
    """Random pixels with random labels: what a step costs does not hang on what the images show."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (images, channels, *size), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, classes, (images,), generator=generator)
    train = full_split(ArrayImages(pixels), labels, [str(number) for number in range(images)])
    return Data(
        train,
        train.take(torch.arange(min(64, images))),
        tuple(map(str, range(classes))),
        summary={"source": "synthetic"},
    )


def settled(name: str, device: torch.device, settings: dict[str, Any], compiled: bool = True) -> Recipe:
    """The recipe as a long run on this device would have it."""
    cuda = device.type == "cuda"
    fast = {
        "train.device": device.type,
        "train.precision": "bf16" if cuda else "fp32",
        "train.compile": cuda and compiled,
        "train.replay": cuda,
        "train.epochs": 200,
    }
    return recipe(name).with_set({**fast, **settings})


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def ours(chosen: Recipe, data: Data, device: torch.device, name: str = "ours") -> Contender:
    """A trainer, warmed up and captured as `supancl pretrain` does it, with the time and memory that took."""
    torch._dynamo.reset()  # what was captured needs its compiled code no more, and the compiler counts instances
    gc.collect()
    peak = Peak(device)
    begin = time.perf_counter()
    trainer = Trainer(chosen, data, device)
    trainer.advance()
    wait(device)
    first = time.perf_counter() - begin
    for _ in range(WARM_UP_STEPS - 1):
        trainer.advance()
    if trainer.captured.is_due:
        trainer.capture()
    for _ in range(2):
        trainer.advance()
    wait(device)
    facts = {"how": how(trainer), "first_s": first, "ready_s": time.perf_counter() - begin, "peak_gb": peak.gb()}
    return Contender(name, chosen.train.batch_size, lambda: _within(trainer), facts=facts, trainer=trainer)


def _within(trainer: Trainer) -> None:
    if trainer.step >= trainer.steps:  # beyond them the schedule has no values, which on a GPU ends everything
        raise RuntimeError(f"{trainer.recipe.name}: more than its {trainer.steps} steps; ask for fewer --rounds")
    trainer.advance()


def how(trainer: Trainer) -> str:
    parts = [trainer.recipe.train.precision, "compiled" if trainer.recipe.train.compile else "as written"]
    return ", ".join([*parts, "replayed"] if trainer.captured.replay is not None else parts)


class Peak:
    """GPU memory that was taken at most since this was made, beyond what was taken before."""

    def __init__(self, device: torch.device) -> None:
        self.cuda, self.start = device.type == "cuda", 0
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            self.start = torch.cuda.memory_allocated()

    def gb(self) -> float | None:
        return (torch.cuda.max_memory_allocated() - self.start) / 1e9 if self.cuda else None


# --- taking turns -----------------------------------------------------------------------------------------------------


def seconds_a_step(contender: Contender, steps: int, device: torch.device) -> float:
    contender.before()
    wait(device)
    begin = time.perf_counter()
    for _ in range(steps):
        contender.step()
    wait(device)
    return (time.perf_counter() - begin) / steps


def in_turns(contenders: Sequence[Contender], device: torch.device, rounds: int, seconds: float) -> None:
    """Each contender in each round for about so many seconds, so that whatever else happens meets all of them."""
    turns = []
    for contender in contenders:
        for _ in range(2):  # kernels are chosen, memory is taken
            contender.step()
        about = seconds / seconds_a_step(contender, max(3, contender.multiple), device)
        turns.append((contender, max(2, contender.multiple * math.ceil(about / contender.multiple))))
        contender.times.clear()
    for number in range(rounds):
        for contender, steps in turns if number % 2 == 0 else reversed(turns):
            contender.times.append(seconds_a_step(contender, steps, device))


def paired(one: Contender, other: Contender, device: torch.device, rounds: int, seconds: float) -> dict[str, Any]:
    """How many times as fast `one` is as `other`, round by round: the median and the middle half."""
    in_turns([one, other], device, rounds, seconds)
    ratios = [theirs / own for own, theirs in zip(one.times, other.times, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return {"ratio": middle, "middle_half": [low, high], "rounds": rounds}
