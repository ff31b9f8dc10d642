"""One captured step for several runs, in which seeds, alphas and rates are values on the device.

Compiling and capturing take a minute, and a short run on small images not much more. Inside `with share_step():` a run
reuses the tensors and the step of the previous run if they fit.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from supancl.config import FREE_IN_A_SHARED_STEP, fields_marked, flattened
from supancl.data.splits import Data
from supancl.distributed import SINGLE_PROCESS, Ranks
from supancl.recipes import Recipe
from supancl.training.trainer import Trainer


class SharedTrainer:
    """The trainer of the previous run, and a key of its data."""

    trainer: Trainer | None = None
    key: object = None


_SHARED: ContextVar[SharedTrainer | None] = ContextVar("shared_trainer", default=None)


@contextmanager
def share_step() -> Iterator[None]:
    """Let the runs in this block share a step if they can; its memory is freed at the end."""
    token = _SHARED.set(SharedTrainer())
    try:
        yield
    finally:
        _SHARED.reset(token)


def trainer_for(recipe: Recipe, data: Data, device: torch.device, ranks: Ranks = SINGLE_PROCESS) -> Trainer:
    """A trainer at step 0: that of the previous run, restarted, if its step fits."""
    shared = _SHARED.get()
    if shared is None or ranks.size > 1:
        return Trainer(recipe, data, device, ranks)
    key = (data.summary.get("source"), data.summary.get("fingerprint"), data.classes, len(data.train), device)
    trainer = shared.trainer if shared.key == key else None
    store = data.train.store
    if trainer is not None and can_share_step(trainer, recipe) and store.has_same_pixels(trainer.inputs.images.store):
        trainer.restart(recipe, data)
        return trainer
    trainer = shared.trainer = None
    gc.collect()  # a trainer has reference cycles; free its memory before the next one is built
    torch.compiler.reset()  # the compiler gives up on a function after eight modules
    shared.trainer, shared.key = Trainer(recipe, data, device, ranks), key
    return shared.trainer


def can_share_step(trainer: Trainer, recipe: Recipe) -> bool:
    """Whether this recipe has the same step as the trainer."""
    alphas = [flattened(spec).get("loss.alpha") for spec in (trainer.recipe, recipe)]
    if trainer.inputs.alpha is None and alphas[0] != alphas[1]:
        return False
    if trainer.compilation.enabled != bool(recipe.train.compile):  # compiling has failed
        return False
    fixed = []
    for spec in (trainer.recipe, recipe):
        free = fields_marked(spec, FREE_IN_A_SHARED_STEP)
        fixed.append({key: value for key, value in flattened(spec).items() if key not in free})
    return fixed[0] == fixed[1]
