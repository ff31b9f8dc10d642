"""SIGINT and SIGTERM are recorded, so that a run can save before it ends."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SAME_SIGNAL_SECONDS = 2.0  # torchrun forwards a signal that its ranks have also received directly


@contextmanager
def record_signals() -> Iterator[list[int]]:
    """A list that SIGINT and SIGTERM are added to. A second signal, unless it follows at once, ends the process."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received  # signals reach the main thread only
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    first_time = 0.0

    def record(number: int, frame: Any) -> None:
        nonlocal first_time
        now = time.monotonic()
        if received and now - first_time > SAME_SIGNAL_SECONDS:
            for handled, handler in handlers.items():
                signal.signal(handled, handler)
            signal.raise_signal(number)
            return
        first_time = first_time if received else now
        received.append(number)

    for number in handlers:
        signal.signal(number, record)
    try:
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
