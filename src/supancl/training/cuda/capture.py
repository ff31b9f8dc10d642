"""A training step recorded once as a CUDA graph and replayed: the host hands over one thing a step, not thousands.

And what to do where the compiler, which makes few kernels of many before that, fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from supancl.data.store.memory import Batch

T = TypeVar("T")


class Replay:
    """Calling it does what `step` did when it was recorded, with the tensors' values of now.

    A batch that comes from outside is copied to where the recorded step reads it, so its shape must not change.
    """

    def __init__(self, step: Callable[[Batch | None], Tensor | None], generator: torch.Generator, batch: Batch | None):
        self.batch = None if batch is None else Batch(*(None if part is None else part.clone() for part in batch))  # type: ignore[arg-type]
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(generator)  # its draws go on from replay to replay, as if made one by one
        pool, before = torch.cuda.graph_pool_handle(), torch.cuda.current_stream()
        try:
            with torch.cuda.stream(before), torch.cuda.graph(self.graph, pool=pool):  # back to it, should this fail too
                self.targets = step(self.batch)
        except BaseException:
            let_go(generator, before.device_index, pool)
            raise

    def __call__(self, batch: Batch | None) -> Tensor | None:
        self.take(batch)
        self.graph.replay()
        return self.targets

    def take(self, batch: Batch | None) -> None:
        """Put the batch where the recorded step reads it; another shape would be stretched to fit without a word."""
        shapes = [
            None if each is None else [None if part is None else part.shape for part in each]
            for each in (self.batch, batch)
        ]
        if shapes[0] != shapes[1]:
            raise ValueError(f"the recorded step takes batches of {shapes[0]}, got {shapes[1]}")
        for kept, new in zip(self.batch or (), batch or (), strict=True):
            if kept is not None and new is not None:
                kept.copy_(new, non_blocking=True)


def let_go(generator: torch.Generator, device: int, pool: tuple[int, int]) -> None:
    """End what torch leaves as if it were still recording where that has failed, so that steps can go on without.

    Its generators would refuse to draw outside of a graph, and memory that streams share would never be free again.
    """
    for each in (generator, torch.cuda.default_generators[device]):
        each.graphsafe_set_state(each.clone_state())
    with suppress(RuntimeError, AttributeError):  # where torch has ended it by itself, or names it otherwise
        torch._C._cuda_endAllocateToPool(device, pool)
        torch._C._cuda_releasePool(device, pool)


@contextmanager
def aside(device: torch.device) -> Iterator[None]:
    """Run on a stream of its own, as what is captured later will: autograd remembers on which stream it accumulates."""
    current = torch.cuda.current_stream(device)
    side = _side(current.device)
    side.wait_stream(current)
    with torch.cuda.stream(side):
        yield
    current.wait_stream(side)


@cache
def _side(device: torch.device) -> torch.cuda.Stream:
    """One for all steps: torch keeps the memory of each stream apart, and every further one would take its own."""
    return torch.cuda.Stream(device)


def from_compiler(error: BaseException) -> bool:
    """Whether it was the compiler that failed, not what it compiles; then nothing of that has run."""
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor", "triton"))


def compiled_or_plain(function: Callable[..., T], failed: Callable[[Exception], None]) -> Callable[..., T]:
    """The function compiled, or as it is written where that fails: for what comes at a moment past repeating.

    `failed` hears of it, once.
    """
    runs = torch.compile(function)

    def run(*args: Any, **named: Any) -> T:
        nonlocal runs
        try:
            return runs(*args, **named)
        except Exception as error:
            if runs is function or not from_compiler(error):
                raise
            runs = function
            failed(error)
            return function(*args, **named)

    return run
