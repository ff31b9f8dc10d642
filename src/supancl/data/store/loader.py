"""How batches come in time: made ready while the step before is being trained on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from supancl.data.splits import Split
from supancl.data.store.images import ArrayImages, Batch, PackedImages
from supancl.data.store.stream import StreamImages


class Feed:
    """The batch of a step on the device. What is not resident there is made ready ahead, by a thread of its own.

    Which images a batch has depends on the step alone, so a step may be asked for again, or passed over.
    """

    def __init__(
        self, split: Split, positions: Callable[[int], Tensor], device: torch.device, steps: int, ahead: int = 3
    ) -> None:
        self.split, self.positions, self.device, self.steps, self.ahead = split, positions, device, steps, ahead
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.ready: dict[int, Future[tuple[Batch, Any, Any]]] = {}
        self.thread: ThreadPoolExecutor | None = None

    @property
    def resident(self) -> bool:
        """Whether a batch is one indexing away, without disk or bus."""
        store = self.split.store
        if isinstance(store, ArrayImages):
            return store.pixels.device.type == self.device.type
        return isinstance(store, PackedImages) and self.device.type != "cpu" and store.device.type == self.device.type

    @property
    def one_shape(self) -> bool:
        """Whether every batch has the same shape, so that a step that takes it can be captured and replayed."""
        store = self.split.store
        if isinstance(store, PackedImages):
            return store.uniform or (self.device.type != "cpu" and store.one_canvas)
        if isinstance(store, StreamImages):
            return self.device.type != "cpu" and store.canvas is not None
        return isinstance(store, ArrayImages)

    def batch(self, step: int) -> Batch:
        if self.resident:
            return self.split.batch(self.positions(step))
        if self.thread is None:
            # two: one copies or decodes while the other's batch is on its way to the device
            self.thread = ThreadPoolExecutor(max_workers=2, thread_name_prefix="feed")
        for later in range(step, max(step + 1, min(step + self.ahead, self.steps))):
            if later not in self.ready:
                self.ready[later] = self.thread.submit(self._make, later)
        for passed in [other for other in self.ready if other < step or other >= step + self.ahead]:
            self.ready.pop(passed).cancel()
        batch, event, _ = self.ready.pop(step).result()
        if event is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(event)
            for tensor in batch:
                if tensor is not None:
                    tensor.record_stream(current)  # its memory is not to be reused while this stream reads it
        return batch

    def _make(self, step: int) -> tuple[Batch, Any, Any]:
        host = self._on_host(self.positions(step))
        if self.stream is None:
            return host, None, None
        with torch.cuda.stream(self.stream):
            pinned = Batch(*(None if tensor is None else tensor.pin_memory() for tensor in host))  # type: ignore[arg-type]
            moved = pinned.to(self.device)
            event = torch.cuda.Event()
            event.record(self.stream)
        return moved, event, pinned

    def _on_host(self, positions: Tensor) -> Batch:
        """The batch as it goes to the device: where its shape may be one for all, so that a step can be captured."""
        store = self.split.store
        if self.stream is None:
            return self.split.batch(positions)
        if isinstance(store, PackedImages) and store.one_canvas:
            return store.on_canvas(self.split.index[positions], pinned=True)
        if isinstance(store, StreamImages) and store.canvas is not None:
            return _padded_to(store.canvas, self.split.batch(positions))
        return self.split.batch(positions)

    def close(self) -> None:
        """Drop what was made ready; no thread is left at work. Who asks for a batch afterwards gets it all the same."""
        if self.thread is not None:
            self.thread.shutdown(wait=True, cancel_futures=True)
            self.thread, self.ready = None, {}


def _padded_to(canvas: tuple[int, int], batch: Batch) -> Batch:
    """The images on a larger canvas, in memory that is pinned already: one copy less on the way to a GPU."""
    shape, sizes = batch.pixels.shape, batch.sizes
    if sizes is None:
        sizes = torch.tensor([shape[-2:]]).repeat(shape[0], 1)
    pixels = torch.empty(*shape[:2], *canvas, dtype=batch.pixels.dtype, pin_memory=torch.cuda.is_available())
    pixels[..., : shape[-2], : shape[-1]] = batch.pixels
    return Batch(pixels, sizes, batch.labels)
