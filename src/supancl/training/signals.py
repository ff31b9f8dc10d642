"""Signals that end a run: noted, so that whoever works can save first."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

AT_ONCE = 2.0  # seconds: torchrun passes on what a scheduler has sent to every process, its ranks among them


@contextmanager
def signals_noted() -> Iterator[list[int]]:
    """The list fills with SIGINT or SIGTERM; one that comes later than at once after the first ends the process."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received  # signals reach the main thread only
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    since = 0.0

    def note(number: int, frame: Any) -> None:
        nonlocal since
        now = time.monotonic()
        if received and now - since > AT_ONCE:
            for each, handler in before.items():
                signal.signal(each, handler)
            signal.raise_signal(number)
            return
        since = since if received else now
        received.append(number)

    for number in before:
        signal.signal(number, note)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
