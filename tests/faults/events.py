"""Kill this process before one of its file events."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "os.utime")


def kill_before_event(folder: str, at: int) -> Callable[[], int]:
    """Kill this process before it creates, opens to write, renames or removes something below `folder` for the `at`-th
    time; never if that is 0. Returns what counts the events so far."""
    events = 0

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal events
        if event == "open":
            flags = arguments[2] if isinstance(arguments[2], int) else 0
            is_change = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        else:
            is_change = event in CHANGES
        if is_change and str(arguments[0]).startswith(folder):
            events += 1
            if events == at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    return lambda: events
