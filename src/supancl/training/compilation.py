"""The functions of a step, compiled or as written, and what happens where the compiler fails."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from supancl.data.views.specs import draw_and_render
from supancl.distributed import Ranks, RowRange
from supancl.files import reason
from supancl.recipes import Recipe
from supancl.training.across_ranks import TargetExchange
from supancl.training.inputs import StepInputs
from supancl.training.model import Model
from supancl.training.nonfinite import FiniteCheck
from supancl.training.step import StepFunctions

T = TypeVar("T")


def is_compiler_error(error: BaseException) -> bool:
    """Whether it was the compiler that failed, not what it compiles; then nothing of that has run."""
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor", "triton"))


def compile_or_eager(function: Callable[..., T], failed: Callable[[Exception], None]) -> Callable[..., T]:
    """The function compiled; where that fails, from then on as it is written. `failed` hears of it, once.

    For what may not be repeated: ranks that have seen the beginning of a step, or a pool that was filled.
    """
    runs = torch.compile(function)

    def run(*args: Any, **named: Any) -> T:
        nonlocal runs
        try:
            return runs(*args, **named)
        except Exception as error:
            if runs is function or not is_compiler_error(error):
                raise
            runs = function
            failed(error)
            return function(*args, **named)

    return run


class Compilation:
    """Makes a step's functions, and keeps what the compiler could not do until somebody asks (`take_failures`)."""

    def __init__(self, wanted: bool, may_replay: bool, ranks: Ranks) -> None:
        self.enabled, self.may_replay, self.ranks = wanted, may_replay, ranks
        self.failures: list[str] = []

    def give_up(self) -> None:
        """From now on everything as written; this is said by one line, whatever failed before."""
        self.enabled, self.failures = False, []

    def take_failures(self) -> list[str]:
        """What the compiler could not do since this was last asked."""
        failures, self.failures = self.failures, []
        return failures

    def functions(self, recipe: Recipe, model: Model, inputs: StepInputs, is_finite: FiniteCheck) -> StepFunctions:
        """Of several ranks, which exchange within a step, only views, pool and unsynchronised branches compile.

        One rank compiles branches and loss, as one graph; it may take the step again as written where that fails.
        """
        alone, branches = self.ranks.size == 1, model.ddp_branches
        if self.enabled and not alone and not recipe.train.sync_norm:
            branches = self._try("the branches", branches)
        render: Any = draw_and_render
        push: Any = model.push_targets
        if self.enabled and model.device.type == "cuda":  # where these are dozens of kernels, each soon over
            render = self._try("the views", render)
            push = push if model.pool is None else self._try("filling the pool", push)
        compiler: Any = torch.compile if self.enabled and alone else leave_as_written
        exchange = self._exchange(recipe, model, inputs)
        return StepFunctions(render, branches, exchange, compiler, push, is_finite, keeps_casts=not self.may_replay)

    def _exchange(self, recipe: Recipe, model: Model, inputs: StepInputs) -> Any:
        if self.ranks.size > 1:
            return TargetExchange(recipe, model.pool, self.ranks)
        return partial(keep_targets, context={} if inputs.alpha is None else {"alpha": inputs.alpha})

    def _try(self, what: str, function: Any) -> Any:
        def failed(error: Exception) -> None:
            self.failures.append(f"{what} could not be compiled ({reason(error)}); done as written, which is slower")

        return compile_or_eager(function, failed)


def leave_as_written(function: T) -> T:
    return function


def keep_targets(
    targets: Tensor, labels: Tensor, row_range: RowRange, context: dict[str, Any]
) -> tuple[Tensor, dict[str, Any]]:
    """What one process alone exchanges: nothing. Alpha comes from the device where a captured step reads it there."""
    return targets, context
