"""SIGINT, SIGTERM and SIGHUP are recorded, so that a run can save before it ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from supancl.data.threads import WaitStopped, is_waiting_for_images

SAME_SIGNAL_SECONDS = 0.3  # some terminals and shells deliver one Ctrl-C twice
SAME_FORWARDED_SECONDS = 2.0  # a parent process forwards a signal that this process has also received directly


def signals_that_stop() -> list[signal.Signals]:
    """The signals that stop a run: not SIGHUP if nohup lets this process ignore it. Windows has none."""
    hangup = getattr(signal, "SIGHUP", None)
    heeds_hangup = hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([signal.Signals.SIGHUP] if heeds_hangup else [])]


def same_signal_seconds() -> float:
    """How long after a signal another one counts as the same: longer if torchrun or a sweep started this process."""
    has_forwarding_parent = "LOCAL_RANK" in os.environ or multiprocessing.parent_process() is not None
    return SAME_FORWARDED_SECONDS if has_forwarding_parent else SAME_SIGNAL_SECONDS


@contextmanager
def record_signals(acknowledge: Callable[[str], None], stops_waits: bool = True) -> Iterator[list[int]]:
    """A list that stopping signals are added to. A second one ends the process, unless it is the same one again.

    The first one is acknowledged with a line at once, because the step may take long. If the step still waits for its
    images, which may come from a disk that hangs, `WaitStopped` is raised there (if `stops_waits`).
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received  # signals reach the main thread only
        return
    handlers = {number: signal.getsignal(number) for number in signals_that_stop()}
    first_time, same_seconds = 0.0, same_signal_seconds()

    def record(number: int, frame: Any) -> None:
        nonlocal first_time
        now = time.monotonic()
        if received and now - first_time > same_seconds:
            for handled, handler in handlers.items():
                signal.signal(handled, handler)
            signal.raise_signal(number)
            return
        if not received:
            first_time = now
            line = f"{signal.Signals(number).name}: stopping after this step; a second one ends the process at once"
            # in a thread: this one may hold the console's lock
            threading.Thread(target=acknowledge, args=(line,), daemon=True).start()
        received.append(number)
        if stops_waits and is_waiting_for_images():
            raise WaitStopped

    for number in handlers:
        signal.signal(number, record)
    try:
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
