"""One captured step for several runs: seeds, alphas and rates are values on the device, not another step.

Compiling and capturing take a minute, a short run on small images not much more. Inside `with one_step():` a run
that fits takes over the tensors of the one before it, and with them its step.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from supancl.config import FREE_IN_A_SHARED_STEP, fields_marked, flattened
from supancl.data.splits import Data
from supancl.data.store.memory import Progress
from supancl.distributed import ALONE, Ranks
from supancl.recipes import Recipe
from supancl.training.trainer import Trainer


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
    mark = (data.summary.get("source"), data.summary.get("fingerprint"), data.classes, len(data.train), device)
    trainer = kept.trainer if kept.fingerprint == mark else None
    store = data.train.store
    if trainer is not None and serves(trainer, recipe) and store.has_same_pixels(trainer.inputs.images.store):
        trainer.restart(recipe, data)
        return trainer
    trainer = kept.trainer = None
    gc.collect()  # a trainer refers to itself: its memory is free before the next one is built
    torch.compiler.reset()  # the compiler gives up on a function that it has seen with eight modules
    kept.trainer, kept.fingerprint = Trainer(recipe, data, device, progress, ranks), mark
    return kept.trainer


def serves(trainer: Trainer, recipe: Recipe) -> bool:
    """Whether the step of that trainer is also the step of this recipe."""
    alphas = [flattened(each).get("loss.alpha") for each in (trainer.recipe, recipe)]
    if trainer.inputs.alpha is None and alphas[0] != alphas[1]:
        return False
    if trainer.compilation.enabled != bool(recipe.train.compile):  # the compiler has failed at it
        return False
    shared = []
    for each in (trainer.recipe, recipe):
        free = fields_marked(each, FREE_IN_A_SHARED_STEP)
        shared.append({key: value for key, value in flattened(each).items() if key not in free})
    return shared[0] == shared[1]
