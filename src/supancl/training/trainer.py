"""A run in memory: the model, the inputs of the step, prefetched batches, and the step in its fastest form."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from supancl.config import FREE_IN_A_SHARED_STEP, fields_marked, flattened
from supancl.data.feed import Feed
from supancl.data.splits import Data
from supancl.distributed import SINGLE_PROCESS, Ranks
from supancl.errors import BadInput
from supancl.files import reason
from supancl.recipes import Recipe
from supancl.recipes.plugins import has_plugin_section
from supancl.recipes.recipe import fixed_settings
from supancl.training.inputs import FiniteCheck, StepInputs, checks_every_step
from supancl.training.model import Model
from supancl.training.monitor import Monitor
from supancl.training.speed import CapturedStep, Compilation, is_compiler_error
from supancl.training.step import Step


class Trainer:
    """`advance()` takes the next step; `state()` and `load()` write and read the content of a checkpoint."""

    def __init__(self, recipe: Recipe, data: Data, device: torch.device, ranks: Ranks = SINGLE_PROCESS) -> None:
        self.recipe, self.device, self.ranks = recipe, device, ranks
        self.inputs = StepInputs(recipe, data, device, ranks)
        labels = data.train.all_labels
        pairs = 0 if labels.has_one_each else labels.classes.shape[1]
        self.model = Model(recipe, len(data.classes), device, ranks, pairs)
        self.feed = Feed(self.inputs.images, self.inputs.local_positions, device, self.inputs.schedule.steps)
        self.finite = FiniteCheck(recipe, self.model, self.inputs)
        may_replay = can_replay(recipe, device, ranks, self.feed)
        self.compilation = Compilation(bool(recipe.train.compile), ranks)
        self.captured = CapturedStep(self._build_step(may_replay), device, may_replay)
        self._start(data)

    def _start(self, data: Data) -> None:
        self.monitor = Monitor(data, self.recipe.loss.supervised)
        self.step = 0
        self.skipped_steps: list[int] = []  # without a finite loss

    def _build_step(self, may_replay: bool) -> Step:
        step = Step(self.recipe, self.model, self.inputs, self.finite, self.ranks, cache_casts=not may_replay)
        return self.compilation.compile(step)

    def restart(self, recipe: Recipe, data: Data) -> None:
        """Begin another run with the same step and tensors (`share_step`)."""
        self.recipe = recipe
        self.model.restart(recipe, len(data.classes), self.ranks)
        self.inputs.restart(recipe, data)
        self.feed = Feed(self.inputs.images, self.inputs.local_positions, self.device, self.inputs.schedule.steps)
        self._start(data)
        self.captured.replace_step(self._build_step(self.captured.may_replay))
        if self.captured.replay is None:
            self.captured.forget()  # try to capture again, and report a failure again

    # --- steps --------------------------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        return self.inputs.schedule.steps

    @property
    def steps_per_epoch(self) -> int:
        return self.inputs.schedule.steps_per_epoch

    def advance(self) -> Tensor | None:
        """Take the next step and return its targets z2; None, without counting the step, if its loss is not finite."""
        self.inputs.move_to(self.step)
        batch = self.next_batch()
        snapshot = self.finite.snapshot_buffers()
        failure = ""
        try:
            targets = self.captured(batch) if self.captured.may_replay else self.captured.step(batch)
        except Exception as error:
            # several ranks have exchanged data by now, so none can repeat the step
            if not self.compilation.enabled or self.ranks.size > 1 or not is_compiler_error(error):
                raise
            failure = reason(error)
        if failure:  # not within `except`: its traceback would hold the tensors of the failed step
            self.finite.restore(snapshot)
            self.fall_back_to_eager(failure)
            targets = self.captured(batch)
        if targets is None:
            self.finite.restore(snapshot)
        else:
            self.step += 1
            self.inputs.mark_step_done()
        return targets

    def next_batch(self) -> Any:
        """The pixels of the next step; None if they are on the device."""
        return None if self.feed.is_resident else self.feed.batch(self.step)

    def fall_back_to_eager(self, failure: str) -> None:
        """Run this step and all following ones uncompiled."""
        self.compilation.disable()
        self.compilation.failures.append(
            f"the step could not be compiled ({failure}); continuing uncompiled, at about 0.6 of the speed"
        )
        self.captured.replace_step(self._build_step(self.captured.may_replay))

    def capture(self) -> None:
        """Record the next step without taking it. Raises the libraries' error if that fails."""
        batch = self.next_batch()
        self.feed.close()  # no other thread may use the GPU while a step is recorded; it reopens automatically
        self.captured.capture(self.model.generator, batch)

    # --- what a checkpoint holds --------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe.name,
            "settings": fixed_settings(self.recipe),
            "step": self.step,
            **self.model.state(),
            "interval": self.inputs.sums,
            "monitor": self.monitor.state(),
            "bad_steps": self.skipped_steps,
        }

    def load(self, state: dict[str, Any]) -> None:
        if state.get("recipe") != self.recipe.name:
            raise BadInput(
                f"the checkpoint is of recipe {state.get('recipe')!r}, this run is {self.recipe.name!r}; "
                "choose another out"
            )
        try:
            self.model.load(state)
            self.step, self.skipped_steps = self._checked_step(state["step"]), list(map(int, state["bad_steps"]))
            self.inputs.sums.copy_(state["interval"])
            self.monitor.load(state["monitor"])
        except (LookupError, RuntimeError, ValueError, AttributeError, TypeError, OverflowError) as error:
            raise BadInput(
                f"the checkpoint does not fit this run ({reason(error)}); was it made with other settings"
                f"{' or another plugin' if has_plugin_section(self.recipe) else ''}?"
            ) from None
        self.inputs.invalidate()
        self.captured.forget()

    def _checked_step(self, step: Any) -> int:
        if not isinstance(step, int) or not 0 <= step <= self.steps:
            raise ValueError(f"step {step!r} of {self.steps}")
        return step


def can_replay(recipe: Recipe, device: torch.device, ranks: Ranks, feed: Feed) -> bool:
    """Whether a step can be recorded: on one GPU, without a check of each loss, with batches of one shape."""
    requested = device.type == "cuda" and bool(recipe.train.replay) and ranks.size == 1
    return requested and not checks_every_step(recipe, device) and feed.has_one_shape


# --- one captured step for several runs -------------------------------------------------------------------------------


class SharedTrainer:
    """The trainer of the previous run, and a key of its data, within `share_step`.

    Compiling and capturing take a minute, and a short run on small images not much more. A run reuses the tensors and
    the step of the previous one if they fit: seeds, alphas and rates are values on the device.
    """

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
    content = None if data.content is None else data.content.digest
    key = (data.summary.get("source"), data.summary.get("fingerprint"), content, data.classes, len(data.train), device)
    trainer = shared.trainer if shared.key == key else None
    if trainer is not None and can_share_step(trainer, recipe):
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
