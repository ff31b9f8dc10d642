"""Batches in time: the batch of each step, prefetched by threads where images are not on the device."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from supancl.data.splits import Split
from supancl.data.store.memory import Batch
from supancl.data.threads import ReadingThreads, waiting_for_images

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch


class Feed:
    """The batch of each step, on the device. Threads prefetch batches that are not resident there.

    A batch depends on the step number alone, so steps may be repeated or skipped.
    """

    def __init__(
        self, split: Split, positions: Callable[[int], Tensor], device: torch.device, steps: int, ahead: int = 3
    ) -> None:
        self.split, self.positions, self.device, self.steps, self.ahead = split, positions, device, steps, ahead
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.pending: dict[int, Future[tuple[Batch, Any, Any]]] = {}
        self.executor: ReadingThreads | None = None

    @property
    def is_resident(self) -> bool:
        """Whether a batch needs only indexing on the device, no disk and no copy."""
        return self.split.store.is_resident(self.device)

    @property
    def has_one_shape(self) -> bool:
        """Whether every batch has the same shape, so that the step can be captured and replayed."""
        return self.split.store.has_one_shape(self.device)

    def batch(self, step: int) -> Batch:
        if self.is_resident:
            return self.split.batch(self.positions(step))
        if self.executor is None:
            # two: one copies or decodes while the other's batch is being copied to the device
            self.executor = ReadingThreads(2, "feed")
        for later in range(step, max(step + 1, min(step + self.ahead, self.steps))):
            if later not in self.pending:
                self.pending[later] = self.executor.submit(self._prepare, later)
        for stale in [other for other in self.pending if other < step or other >= step + self.ahead]:
            self.pending.pop(stale).cancel()
        with waiting_for_images():
            batch, event, _ = self.pending[step].result()
        del self.pending[step]
        if event is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(event)
            for tensor in batch:
                if tensor is not None:
                    tensor.record_stream(current)  # keep its memory until this stream has read it
        return batch

    def _prepare(self, step: int) -> tuple[Batch, Any, Any]:
        positions = self.positions(step)
        if self.stream is None:
            return self.split.batch(positions), None, None
        host_batch = self.split.batch_on_canvas(positions)
        with torch.cuda.stream(self.stream):
            pinned = host_batch.pin_memory()
            moved = pinned.to(self.device)
            event = torch.cuda.Event()
            event.record(self.stream)
        return moved, event, pinned

    def close(self) -> None:
        """Stop the threads and drop prefetched batches. Asking for a batch afterwards starts them again."""
        if self.executor is not None:
            self.executor.shutdown(wait=True, cancel_futures=True)
            self.executor, self.pending = None, {}
