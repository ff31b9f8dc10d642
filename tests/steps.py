"""Two trainers that take the same steps from the same state, so that rounding has no time to grow.

Left alone they part: weights moved by a millionth change losses by 0.02 within 50 steps (docs/log.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from supancl.training.trainer import Trainer


@contextmanager
def without_tf32() -> Iterator[None]:
    """Products and convolutions of float32 keep its 24 bits on a GPU too.

    By hand: what pytest's monkeypatch sets there it takes for new, and fails to delete afterwards.
    """
    settings = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [each.allow_tf32 for each in settings]
    try:
        for each in settings:
            each.allow_tf32 = False
        yield
    finally:
        for each, value in zip(settings, before, strict=True):
            each.allow_tf32 = value


def advance(trainer: Trainer) -> float:
    """The loss of the next step, captured after the warm-up where the recipe asks for it."""
    if trainer.captured.is_due:
        trainer.capture()
    trainer.advance()
    return trainer.inputs.drain_log(torch.empty(0)).loss


def side_by_side(one: Trainer, other: Trainer, steps: int) -> tuple[list[float], list[float], dict[str, list[float]]]:
    """The losses of both, and per step how far apart their changes are, as a share of the first's.

    Compared are the weights and, each by its name, the norms' statistics and what the pool holds. After each step the
    other gets all these and the optimizer's state from the first; step numbers, rates, momentum and draws are its own.
    """
    ours, theirs, apart = [], [], {}
    for _ in range(steps):
        before = {name: [value.clone() for value in values] for name, values in compared(one).items()}
        ours.append(advance(one))
        theirs.append(advance(other))
        seconds = compared(other)
        for name, firsts in compared(one).items():
            moved = sum(distance(first, old) for first, old in zip(firsts, before[name], strict=True))
            missed = sum(distance(first, second) for first, second in zip(firsts, seconds[name], strict=True))
            share = (missed / moved) ** 0.5 if moved else math.inf if missed else 0.0
            apart.setdefault(name, []).append(share)
        with torch.no_grad():
            for source, target in zip(changing(one), changing(other), strict=True):
                target.copy_(source)
    return ours, theirs, apart


def distance(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).square().sum())


def compared(trainer: Trainer) -> dict[str, list[Tensor]]:
    """What a step changes, the pool's spare slot left out: rows that are not stored are written there, and any wins."""
    found = {"weights": [weights.detach() for weights in trainer.model.branches.parameters()]}
    for name, value in trainer.model.branches.named_buffers():
        found.setdefault(name.rpartition(".")[2], []).append(value)
    for name, value in trainer.model.pool.state_dict().items() if trainer.model.pool is not None else ():
        spare = name in ("targets", "labels", "weights", "born")
        found[name] = [value[: len(trainer.model.pool.stored().valid)] if spare else value]
    return found


def changing(trainer: Trainer) -> Iterator[Tensor]:
    """What a step leaves for the next one, but for what follows from its number and the seed."""
    for module in (trainer.model.branches, trainer.model.pool):
        if module is not None:
            yield from module.state_dict().values()
    for weights in trainer.model.branches.parameters():
        for value in trainer.model.optimizer.state.get(weights, {}).values():
            if isinstance(value, Tensor):
                yield value
