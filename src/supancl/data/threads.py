"""Threads that read and decode.

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
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Tasks = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]

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
