"""The functions of a step, compiled or as written, and what happens if the compiler fails."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from supancl.core.losses import GlobalBatch
from supancl.core.pools import Pool
from supancl.data.views.specs import draw_and_render
from supancl.distributed import Ranks, RowRange
from supancl.files import reason
from supancl.recipes import Recipe
from supancl.training.inputs import StepInputs
from supancl.training.model import Model
from supancl.training.nonfinite import FiniteCheck
from supancl.training.step import StepFunctions

T = TypeVar("T")


def is_compiler_error(error: BaseException) -> bool:
    """Whether the compiler failed, and not the compiled code: then nothing of it has run."""
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor", "triton"))


def compile_or_eager(function: Callable[..., T], on_failure: Callable[[Exception], None]) -> Callable[..., T]:
    """The compiled function. If compiling fails, it calls `on_failure` once and runs uncompiled from then on.

    For work that cannot be repeated: several ranks in the middle of a step, or filling a pool.
    """
    current = torch.compile(function)

    def run(*args: Any, **kwargs: Any) -> T:
        nonlocal current
        try:
            return current(*args, **kwargs)
        except Exception as error:
            if current is function or not is_compiler_error(error):
                raise
            current = function
            on_failure(error)
            return function(*args, **kwargs)

    return run


class Compilation:
    """Makes a step's functions and collects failures of the compiler (`take_failures`)."""

    def __init__(self, enabled: bool, may_replay: bool, ranks: Ranks) -> None:
        self.enabled, self.may_replay, self.ranks = enabled, may_replay, ranks
        self.failures: list[str] = []

    def disable(self) -> None:
        """Compile nothing from now on, and drop earlier failures: one message replaces them."""
        self.enabled, self.failures = False, []

    def take_failures(self) -> list[str]:
        """Return and clear the failures since the last call."""
        failures, self.failures = self.failures, []
        return failures

    def functions(self, recipe: Recipe, model: Model, inputs: StepInputs, is_finite: FiniteCheck) -> StepFunctions:
        """One process compiles branches and loss as one graph, and repeats the step uncompiled if that fails.

        Several ranks exchange data within a step: they compile only views, pool and unsynchronised branches.
        """
        single_process, branches = self.ranks.size == 1, model.ddp_branches
        if self.enabled and not single_process and not recipe.train.sync_norm:
            branches = self._compile_or_eager("the branches", branches)
        render: Any = draw_and_render
        push: Any = model.push_targets
        if self.enabled and model.device.type == "cuda":  # where these are dozens of short kernels
            render = self._compile_or_eager("the views", render)
            push = push if model.pool is None else self._compile_or_eager("filling the pool", push)
        compiler: Any = torch.compile if self.enabled and single_process else do_not_compile
        exchange = self._exchange(recipe, model, inputs)
        return StepFunctions(render, branches, exchange, compiler, push, is_finite, cache_casts=not self.may_replay)

    def _exchange(self, recipe: Recipe, model: Model, inputs: StepInputs) -> Any:
        if self.ranks.size > 1:
            return TargetExchange(recipe, model.pool, self.ranks)
        return partial(keep_targets, context={} if inputs.alpha is None else {"alpha": inputs.alpha})

    def _compile_or_eager(self, name: str, function: Any) -> Any:
        def on_failure(error: Exception) -> None:
            self.failures.append(f"{name} could not be compiled ({reason(error)}); running uncompiled, which is slower")

        return compile_or_eager(function, on_failure)


def do_not_compile(function: T) -> T:
    return function


def keep_targets(
    targets: Tensor, labels: Tensor, row_range: RowRange, context: dict[str, Any]
) -> tuple[Tensor, dict[str, Any]]:
    """The exchange of a single process: none. `context` has alpha if a captured step reads it on the device."""
    return targets, context


# --- compiling across ranks -------------------------------------------------------------------------------------------


class TargetExchange:
    """(local targets, labels of the batch, local rows) -> targets of all rows, and keyword arguments of the loss."""

    def __init__(self, recipe: Recipe, pool: Pool | None, ranks: Ranks) -> None:
        self.ranks, self.sees_batch = ranks, recipe.loss.sees_batch(pool)
        self.first_view = 0 if recipe.compat == "released-code" else 1  # z1 is gathered only if it is pushed

    def __call__(self, targets: Tensor, labels: Tensor, row_range: RowRange) -> tuple[Tensor, dict[str, Any]]:
        """Gather all targets with gradients for a loss that compares samples; otherwise only z2, for the pool."""
        if self.sees_batch:
            all_targets = self.ranks.gather(targets, row_range.total, 1)
            return all_targets, {"global_batch": GlobalBatch(all_targets, labels, row_range)}
        all_targets = self.ranks.gather(targets.detach()[self.first_view :], row_range.total, 1)
        return all_targets, {"global_batch": GlobalBatch(targets, labels, row_range)}
