"""Two trainers that take the same steps from the same state, so that rounding has no time to grow.

Left alone they part: weights moved by a millionth change losses by 0.02 within 50 steps (docs/log.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from supancl.trainer import WARM_UP, Trainer


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
    if trainer.may_replay and trainer.warmed == WARM_UP and trainer.replay is None:
        trainer.capture()
    trainer.advance()
    return trainer.mean_since()[0]


def side_by_side(one: Trainer, other: Trainer, steps: int) -> tuple[list[float], list[float], list[float]]:
    """The losses of both, and per step how far apart their updates of the weights are, as a share of the first's.

    After each step the other gets the first's weights, statistics, optimizer and pool; step numbers, rates, momentum
    and draws are its own.
    """
    ours, theirs, apart = [], [], []
    for _ in range(steps):
        before = [weights.detach().clone() for weights in one.branches.parameters()]
        ours.append(advance(one))
        theirs.append(advance(other))
        with torch.no_grad():
            moved, missed = 0.0, 0.0
            for old, first, second in zip(before, one.branches.parameters(), other.branches.parameters(), strict=True):
                moved += float((first - old).double().square().sum())
                missed += float((first - second).double().square().sum())
            apart.append((missed / moved) ** 0.5)
            for source, target in zip(changing(one), changing(other), strict=True):
                target.copy_(source)
    return ours, theirs, apart


def changing(trainer: Trainer) -> Iterator[Tensor]:
    """What a step leaves for the next one, but for what follows from its number and the seed."""
    for module in (trainer.branches, trainer.pool):
        if module is not None:
            yield from module.state_dict().values()
    for weights in trainer.branches.parameters():
        for value in trainer.optimizer.state.get(weights, {}).values():
            if isinstance(value, Tensor):
                yield value
