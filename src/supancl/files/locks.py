"""Folders that one process at a time may change."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from supancl.files.opening import open_no_link, read_text


@contextlib.contextmanager
def hold_lock(lock: Path, waiting: Callable[[str], None], every: float = 0.2) -> Iterator[None]:
    """Hold a lock file, waiting until it is free. The lock ends with the process, so a killed one never blocks.

    `waiting` is called once with the owner's process number if the lock is taken. The folder is made if it is missing,
    also after another process has removed it. A file system without locks raises OSError instead of waiting forever.
    """
    held, has_reported = FileLock(lock, fallback_to_soft=False), False
    while not held.is_locked:
        lock.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # the folder was removed just now
            os.close(open_no_link(lock, os.O_WRONLY | os.O_CREAT))
            try:
                held.acquire(timeout=every if has_reported else 0, poll_interval=every)
            except Timeout:
                if not has_reported:
                    waiting(read_text(lock, errors="replace").strip() or "unknown")
                has_reported = True
    try:
        lock.write_text(str(os.getpid()))
        yield
    finally:
        held.release()


def is_locked(lock: Path) -> bool:
    """Whether a process holds this lock now. Nothing is written; a file that is missing or a link is no lock."""
    if lock.is_symlink() or not lock.is_file():
        return False
    try:
        with FileLock(lock, fallback_to_soft=False).acquire(timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # a folder that cannot be written, or a file system without locks
        return False
