"""A training step recorded once as a CUDA graph and replayed: the host hands over one thing a step, not thousands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache

import torch
from torch import Tensor

from supancl.data.store.memory import Batch

WARM_UP = 3  # steps before one is captured: libraries choose their kernels and allocate


class CapturedStep:
    """Runs a step as it is, and, once it was captured, by replaying it.

    While it warms up a step runs on a stream of its own, as what is captured later will.
    """

    def __init__(self, step: Callable[[Batch | None], Tensor | None], device: torch.device, may_replay: bool) -> None:
        self.step, self.device, self.may_replay = step, device, may_replay
        self.replay: Replay | None = None
        self.steps_warmed_up = 0

    def __call__(self, batch: Batch | None) -> Tensor | None:
        if self.replay is not None:
            return self.replay(batch)
        if not self.may_replay or self.steps_warmed_up >= WARM_UP:  # beyond, it could not be captured
            return self.step(batch)
        with on_side_stream(self.device):
            targets = self.step(batch)
        self.steps_warmed_up += 1
        return targets

    @property
    def is_due(self) -> bool:
        """Whether the next step is to be captured first."""
        return self.replay is None and self.may_replay and self.steps_warmed_up == WARM_UP

    def capture(self, generator: torch.Generator, batch: Batch | None) -> None:
        """Record the step that comes next; it is not taken. Raises what the libraries raise where they cannot."""
        self.steps_warmed_up = WARM_UP + 1  # it is tried once
        self.replay = Replay(self.step, generator, batch)

    def replace_step(self, step: Callable[[Batch | None], Tensor | None]) -> None:
        """Another form of the step; one that was captured stays."""
        self.step = step

    def forget(self) -> None:
        """The tensors that were captured have been replaced: begin with the warm-up."""
        self.replay, self.steps_warmed_up = None, 0


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
            end_failed_capture(generator, before.device_index, pool)
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


def end_failed_capture(generator: torch.Generator, device: int, pool: tuple[int, int]) -> None:
    """End what torch leaves as if it were still recording where that has failed, so that steps can go on without.

    Its generators would refuse to draw outside of a graph, and memory that streams share would never be free again.
    """
    for each in (generator, torch.cuda.default_generators[device]):
        each.graphsafe_set_state(each.clone_state())
    with suppress(RuntimeError, AttributeError):  # where torch has ended it by itself, or names it otherwise
        torch._C._cuda_endAllocateToPool(device, pool)
        torch._C._cuda_releasePool(device, pool)


@contextmanager
def on_side_stream(device: torch.device) -> Iterator[None]:
    """Run on a stream of its own, as what is captured later will: autograd remembers on which stream it accumulates."""
    current = torch.cuda.current_stream(device)
    side = _side_stream(current.device)
    side.wait_stream(current)
    with torch.cuda.stream(side):
        yield
    current.wait_stream(side)


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all steps: torch keeps the memory of each stream apart, and every further one would take its own."""
    return torch.cuda.Stream(device)
