"""Files from strangers: opened without hanging, following a link or filling the memory.

What lies inside a run folder or a cache may come from someone else. A file there may be read through a link, but
nothing is written, truncated or created through one; and only regular files are read, as a FIFO would never end.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import stat
import zipfile
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from supancl.config import parse_json
from supancl.errors import BadInput

MAX_TEXT_BYTES = 32 * 2**20  # of a JSON that is read at once: a recipe with a million class names is half as long
MAX_ZIP_LIST_BYTES = 16 * 2**20  # about 100,000 arrays; Python needs ten times as much memory for the list
NOT_REGULAR = "it is a FIFO, a device or a socket, not a regular file"


def check_regular(path: Path | str) -> os.stat_result:
    """The status of a regular file, also behind a link. Anything else raises OSError: opening a FIFO would hang."""
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, NOT_REGULAR, str(path))
    return status


def open_regular(path: Path | str) -> io.BufferedReader:
    """Open a regular file for reading, also behind a link; never waits for a FIFO or device, but raises OSError."""
    check_regular(path)
    # without waiting, and looked at again: the file may have been replaced in between
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, NOT_REGULAR, str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_text(path: Path, encoding: str = "utf-8", errors: str = "strict", limit: int = MAX_TEXT_BYTES) -> str:
    """The text of a regular file; one that is longer than `limit` bytes raises OSError before it is read."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, more than {limit:,}", str(path))
        return file.read(limit).decode(encoding, errors)


def digest(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if the file is missing, damaged or holds something else."""
    try:
        content = parse_json(read_text(path))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def check_zip(file: IO[bytes]) -> None:
    """Refuse a zip (.npz, .pt) whose list of members would fill the memory. Raises ValueError."""
    end = zipfile._EndRecData(file)  # type: ignore[attr-defined]
    if end is not None and end[5] > MAX_ZIP_LIST_BYTES:  # the bytes of the list
        raise ValueError(f"its list of members has {end[5]:,} bytes, it may have {MAX_ZIP_LIST_BYTES:,}")
    file.seek(0)


def check_fits_memory(needed_bytes: int, what: str, way_out: str) -> None:
    """Refuse what is larger than this machine's memory, before it is read."""
    if not hasattr(os, "sysconf"):  # pragma: no cover - Windows
        return
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed_bytes > memory:
        raise BadInput(
            f"{what}: {needed_bytes / 1e9:,.1f} GB are more than this machine's memory of {memory / 1e9:.1f} GB; "
            f"{way_out}"
        )


def check_no_link(path: Path) -> None:
    """Refuse a link inside a run folder or a cache, in the place of a file or folder that is written to."""
    if os.path.islink(path):  # never raises, as for a name that is too long
        raise BadInput(
            f"{path} is a link, and nothing is written through a link in a run folder or cache; remove the link, or "
            f"to use another disk move the whole folder {path.parent} there"
        )


def make_inner_folder(folder: Path) -> None:
    """Make a folder inside a run folder or a cache, and its parents; refuse a link in its place. Raises OSError."""
    check_no_link(folder)
    folder.mkdir(parents=True, exist_ok=True)


def open_no_link(path: Path, flags: int) -> int:
    """A descriptor for writing to a regular file inside a run folder or a cache; refuses links and anything else."""
    check_no_link(path)
    descriptor = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BadInput(f"{path} cannot be written ({NOT_REGULAR}); remove it")
    return descriptor


def open_to_append(path: Path) -> IO[str]:
    """Open a text file inside a run folder to append to it; refuses a link."""
    return os.fdopen(open_no_link(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a", encoding="utf-8")


def did_you_mean_path(missing: Path | str) -> str:
    """'; did you mean X?' if a file with a similar name is next to the missing path, else empty."""
    path = Path(missing)
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except (OSError, ValueError):
        return ""
    close = get_close_matches(path.name, names, n=1, cutoff=0.75)
    return f"; did you mean {str(path.parent / close[0])!r}?" if close else ""


# --- locks ------------------------------------------------------------------------------------------------------------


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
