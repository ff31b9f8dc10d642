"""Folders that one process at a time may change."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from supancl.files.opening import open_no_link

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no flock; there a second writer is not noticed
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def hold_lock(lock: Path, waiting: Callable[[str], None], every: float = 0.2) -> Iterator[None]:
    """Hold a lock file, waiting until it is free. The lock ends with the process, so a killed one never blocks.

    `waiting` is called once with the owner's process number if the lock is taken. The folder is made if it is missing,
    also after another process has removed it. A file system without locks raises OSError instead of waiting forever.
    """
    has_reported = False
    while True:
        lock.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(open_no_link(lock, os.O_RDWR | os.O_CREAT | os.O_APPEND), "a+") as file:
            while fcntl is not None:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not has_reported:
                        file.seek(0)
                        waiting(file.read(100).strip() or "unknown")
                        has_reported = True
                    time.sleep(every)
                except OSError as error:  # with the name of the file
                    raise OSError(error.errno, error.strerror, str(lock)) from None
            if not _is_same_file(lock, file.fileno()):
                continue
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield
            return


def is_locked(lock: Path) -> bool:
    """Whether a process holds this lock now. Nothing is written; a file that is missing or a link is no lock."""
    if fcntl is None:
        return False
    try:
        descriptor = os.open(lock, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(descriptor)
    return False


def _is_same_file(path: Path, descriptor: int) -> bool:
    """Whether the path is still the open file; its last owner may have removed or replaced it."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False
