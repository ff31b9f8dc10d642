"""Threads that read: like ThreadPoolExecutor's, but none that is blocked is waited for."""

from __future__ import annotations

from concurrent.futures import CancelledError
from threading import Event

import pytest

from supancl.data import threads
from supancl.data.threads import ReadingThreads


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "PATIENCE", 0.01)


def test_results_come_in_order_and_errors_where_they_are_asked_for() -> None:
    with ReadingThreads(3) as pool:
        assert list(pool.map(lambda number: number * 2, range(50))) == [number * 2 for number in range(50)]
        with pytest.raises(ZeroDivisionError):
            pool.submit(lambda: 1 // 0).result()
        assert pool.submit(max, [1, 5, 2], default=0).result() == 5
    with pytest.raises(RuntimeError, match="shutdown"):
        pool.submit(max, [1])


def test_an_interrupt_does_not_wait_for_a_thread_that_is_blocked() -> None:
    """A test that waited would never end."""
    disk, blocked = Event(), Event()

    def read() -> bool:
        blocked.set()
        return disk.wait()

    pool = ReadingThreads(1)
    first, second = pool.submit(read), pool.submit(read)
    blocked.wait()
    pool.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)  # as `with` calls it
    assert all(thread.daemon for thread in pool._threads)  # Python joins others when it exits
    with pytest.raises(CancelledError):
        second.result()
    disk.set()
    assert first.result()
