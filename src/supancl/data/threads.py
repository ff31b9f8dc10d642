"""Threads that read and decode, and the batch of each step, prefetched by them.

A read that hangs, such as one from a network disk, does not keep the process alive.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from supancl.data.splits import Split
    from supancl.data.store.memory import Batch
else:
    from supancl.lazy import torch

P = ParamSpec("P")
R = TypeVar("R")
Tasks = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]

AHEAD = 3  # batches that a feed prepares, that of the step included
PATIENCE = 0.5  # seconds that `shutdown` waits for threads in the middle of a read


class ReadingThreads(Executor):
    """A thread pool that leaves blocked threads behind: for those of ThreadPoolExecutor Ctrl-C would have to wait."""

    def __init__(self, max_workers: int, thread_name_prefix: str = "read") -> None:
        self._count, self._name = max_workers, thread_name_prefix
        self._tasks: Tasks = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        if self._is_closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[R] = Future()
        self._tasks.put((future, partial(fn, *args, **kwargs)))
        if len(self._threads) < self._count:
            self._threads.append(threading.Thread(target=_work, args=(self._tasks,), name=self._name, daemon=True))
            self._threads[-1].start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more tasks. `wait` waits for those submitted, or with `cancel_futures` briefly for running ones."""
        self._is_closed = True
        while cancel_futures and not self._tasks.empty():
            if task := self._tasks.get():
                task[0].cancel()
        self.__del__()
        deadline = time.monotonic() + PATIENCE
        for thread in self._threads if wait else ():
            thread.join(max(0.0, deadline - time.monotonic()) if cancel_futures else None)

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.shutdown(cancel_futures=error is not None)

    def __del__(self) -> None:
        for _ in self._threads:
            self._tasks.put(None)


def _work(tasks: Tasks) -> None:
    """Do tasks until there is a None. The pool itself is not referenced, so that it can be collected."""
    while (task := tasks.get()) is not None:
        future, call = task
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
        del task, future, call  # or the result would stay in memory until the next task


class WaitStopped(Exception):
    """A signal has come while a step waited for its images; nothing of the step has been done."""


_waiting = set[int]()  # the threads that wait for images


@contextmanager
def waiting_for_images() -> Iterator[None]:
    """While the main thread is in this block, a stopping signal may raise `WaitStopped` in it."""
    _waiting.add(threading.get_ident())
    try:
        yield
    finally:
        _waiting.discard(threading.get_ident())


def is_waiting_for_images() -> bool:
    """Whether this thread is in such a block; handlers of signals run in the main thread."""
    return threading.get_ident() in _waiting


class Feed:
    """The batch of each step, in any order, on the device. Threads prefetch batches that are not resident there."""

    def __init__(self, split: Split, positions: Callable[[int], Tensor], device: torch.device, steps: int) -> None:
        self.split, self.positions, self.device, self.steps = split, positions, device, steps
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.pending: dict[int, Future[tuple[Batch, Any, Any]]] = {}
        self.executor: ReadingThreads | None = None

    @property
    def is_resident(self) -> bool:
        return self.split.store.is_resident(self.device)

    @property
    def has_one_shape(self) -> bool:
        return self.split.store.has_one_shape(self.device)

    def batch(self, step: int) -> Batch:
        if self.is_resident:
            return self.split.batch(self.positions(step))
        if self.executor is None:
            # two: one copies or decodes while the other's batch is being copied to the device
            self.executor = ReadingThreads(2, "feed")
        for later in range(step, max(step + 1, min(step + AHEAD, self.steps))):
            if later not in self.pending:
                self.pending[later] = self.executor.submit(self._prepare, later)
        for stale in [other for other in self.pending if other < step or other >= step + AHEAD]:
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
        """Stop the threads and drop prefetched batches; a batch that is asked for later starts them again."""
        if self.executor is not None:
            self.executor.shutdown(wait=True, cancel_futures=True)
            self.executor, self.pending = None, {}
