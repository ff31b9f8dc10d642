"""One captured step for several runs: seeds, alphas and rates are values on the device, not another step.

Compiling and capturing take a minute, a short run on small images not much more. Inside `with one_step():` a run
that fits takes over the tensors of the one before it, and with them its step.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from supancl.config import flattened
from supancl.core.losses import takes_alpha
from supancl.core.methods import assemble
from supancl.data.order import seeded
from supancl.data.splits import Data
from supancl.data.store.memory import Progress
from supancl.distributed import ALONE, Ranks
from supancl.recipes import Recipe
from supancl.training.step import Trainer

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
    trainer = kept.trainer if kept.fingerprint == mark else None
    images = data.train.store
    if trainer is not None and serves(trainer, recipe) and images.has_same_pixels(trainer.train_images.store):
        restart(trainer, recipe, data)
        return trainer
    trainer = kept.trainer = None
    gc.collect()  # a trainer refers to itself: its memory is free before the next one is built
    torch.compiler.reset()  # the compiler gives up on a function that it has seen with eight modules
    kept.trainer, kept.fingerprint = Trainer(recipe, data, device, progress, ranks), mark
    return kept.trainer


def restart(trainer: Trainer, recipe: Recipe, data: Data) -> None:
    """Begin anew in the same tensors, so that a step captured before serves another run."""
    trainer.recipe = recipe
    torch.manual_seed(recipe.train.seed)
    branches, pool = assemble(
        recipe.encoder, recipe.heads, recipe.branches, recipe.pool, recipe.loss, max(len(data.classes), 1)
    )
    trainer.branches.load_state_dict(branches.state_dict())
    trainer.branches.train()
    trainer.arrange()
    if trainer.pool is not None and pool is not None:
        trainer.pool.load_state_dict(pool.state_dict())
    for kept in trainer.optimizer.state.values():
        for value in kept.values():
            if isinstance(value, Tensor):
                value.zero_()
    trainer.generator.manual_seed(seeded(recipe.train.seed, 2))
    trainer.plan(data)
    if trainer.alpha is not None and takes_alpha(recipe.loss):
        trainer.alpha.fill_(recipe.loss.alpha)
    trainer.interval.zero_()
    trainer.first_bad.fill_(-1)
    trainer.epoch, trainer.at_on_host = -1, -1
    if trainer.replay is None:
        trainer.warmed = 0  # what could not be captured is tried again, and said again


def is_kept(trainer: Trainer) -> bool:
    """Whether another run may take over its tensors."""
    kept = _KEPT.get()
    return kept is not None and kept.trainer is trainer


def serves(trainer: Trainer, recipe: Recipe) -> bool:
    """Whether the step of that trainer is also the step of this recipe."""
    alphas = [flattened(each).get("loss.alpha") for each in (trainer.recipe, recipe)]
    if trainer.alpha is None and alphas[0] != alphas[1]:
        return False
    if trainer.compiled != bool(recipe.train.compile):  # the compiler has failed at it
        return False
    return _settled(trainer.recipe) == _settled(recipe)


def _settled(recipe: Recipe) -> dict[str, Any]:
    return {key: value for key, value in flattened(recipe).items() if not key.startswith(OPEN)}
