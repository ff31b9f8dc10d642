"""A training step recorded once as a CUDA graph and replayed: the host hands over one thing a step, not thousands.

And what to do where the compiler, which makes few kernels of many before that, fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from supancl.data.images import Batch


class Replay:
    """Calling it does what `step` did when it was recorded, with the tensors' values of now.

    A batch that comes from outside is copied to where the recorded step reads it, so its shape must not change.
    """

    def __init__(self, step: Callable[[Batch | None], Tensor | None], generator: torch.Generator, batch: Batch | None):
        self.batch = None if batch is None else Batch(*(None if part is None else part.clone() for part in batch))  # type: ignore[arg-type]
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(generator)  # its draws go on from replay to replay, as if made one by one
        with torch.cuda.graph(self.graph):
            self.targets = step(self.batch)

    def __call__(self, batch: Batch | None) -> Tensor | None:
        if self.batch is not None and batch is not None:
            for kept, new in zip(self.batch, batch, strict=True):
                if kept is not None and new is not None:
                    kept.copy_(new, non_blocking=True)
        self.graph.replay()
        return self.targets


@contextmanager
def aside(device: torch.device) -> Iterator[None]:
    """Run on a stream of its own, as what is captured later will: autograd remembers on which stream it accumulates."""
    current = torch.cuda.current_stream(device)
    side = torch.cuda.Stream(device)
    side.wait_stream(current)
    with torch.cuda.stream(side):
        yield
    current.wait_stream(side)


def from_compiler(error: BaseException) -> bool:
    """Whether it was the compiler that failed, not what it compiles; then nothing of that has run."""
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor", "triton"))


def compiled_or_plain(function: Callable[..., None], failed: Callable[[Exception], None]) -> Callable[..., None]:
    """The function compiled, or as it is written where that fails: for what is short, at a moment past repeating.

    `failed` hears of it, once.
    """
    runs = torch.compile(function)

    def run(*args: Any) -> None:
        nonlocal runs
        try:
            runs(*args)
        except Exception as error:
            if runs is function or not from_compiler(error):
                raise
            runs = function
            failed(error)
            function(*args)

    return run
