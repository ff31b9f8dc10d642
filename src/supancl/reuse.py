"""One captured step for several runs: seeds, alphas and rates are values on the device, not another step.

Compiling and capturing take a minute, a short run on small images not much more. Inside `with one_step():` a run
that fits takes over the tensors of the one before it, and with them its step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from supancl.config import flattened
from supancl.data.sources import Data, Progress
from supancl.distributed import ALONE, Ranks
from supancl.recipes import Recipe
from supancl.trainer import Trainer

# what may differ between two runs of one step, besides the names: read from the device, or by the host alone
OPEN = (
    "name", "method", "paper", "sources", "train.seed", "loss.alpha", "optimizer.lr", "optimizer.reference_batch",
    "branches.momentum", "branches.momentum_end", "schedule.", "train.log_every", "train.checkpoint_every",
    "train.monitor_every", "train.on_collapse", "train.device",
)  # fmt: skip


class Kept:
    """The trainer of the run before, and the data it was made for."""

    trainer: Trainer | None = None
    fingerprint: object = None


_KEPT: ContextVar[Kept | None] = ContextVar("kept", default=None)


@contextmanager
def one_step() -> Iterator[None]:
    """Let the runs in this block share a step where they can; what is kept for it is let go at its end."""
    token = _KEPT.set(Kept())
    try:
        yield
    finally:
        _KEPT.reset(token)


def trainer_for(
    recipe: Recipe, data: Data, device: torch.device, progress: Progress | None = None, ranks: Ranks = ALONE
) -> Trainer:
    """A trainer at step 0: that of the run before, begun anew, where there is one and its step fits."""
    kept = _KEPT.get()
    if kept is None or ranks.size > 1:
        return Trainer(recipe, data, device, progress, ranks)
    mark = (data.described.get("source"), data.described.get("fingerprint"), data.classes, len(data.train), device)
    if kept.trainer is not None and kept.fingerprint == mark and serves(kept.trainer, recipe):
        kept.trainer.restart(recipe, data)
    else:
        kept.trainer, kept.fingerprint = None, None  # its memory is free before the next one is built
        torch.compiler.reset()  # the compiler gives up on a function that it has seen with eight modules
        kept.trainer, kept.fingerprint = Trainer(recipe, data, device, progress, ranks), mark
    return kept.trainer


def is_kept(trainer: Trainer) -> bool:
    """Whether another run may take over its tensors."""
    kept = _KEPT.get()
    return kept is not None and kept.trainer is trainer


def serves(trainer: Trainer, recipe: Recipe) -> bool:
    """Whether the step of that trainer is also the step of this recipe."""
    if trainer.alpha is None and _fixed(recipe, ("loss.alpha",)) != _fixed(trainer.recipe, ("loss.alpha",)):
        return False
    return _settled(trainer.recipe) == _settled(recipe)


def _settled(recipe: Recipe) -> dict[str, Any]:
    return {key: value for key, value in flattened(recipe).items() if not key.startswith(OPEN)}


def _fixed(recipe: Recipe, keys: tuple[str, ...]) -> list[Any]:
    values = flattened(recipe)
    return [values.get(key) for key in keys]
