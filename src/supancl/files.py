"""Atomic writes, folders that one process at a time may change, and files from strangers.

What lies inside a run folder or a cache may come from someone else. A file there may be read through a link, but
nothing is written, truncated or created through one; and only regular files are read, as a FIFO would never end.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import math
import os
import secrets
import stat
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError

from supancl.errors import BadInput

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no flock; there a second writer is not noticed
    fcntl = None  # type: ignore[assignment]

PROCESS_TOKEN = secrets.token_hex(4)  # process numbers are not unique across machines and containers
MAX_TEXT_BYTES = 32 * 2**20  # of a JSON that is read at once: a recipe with a million class names is half as long
MAX_ZIP_LIST_BYTES = 16 * 2**20  # about 100,000 arrays; Python needs ten times as much memory for the list
NOT_REGULAR = "it is a FIFO, a device or a socket, not a regular file"
MAKE_ROOM = "Make room (a run then continues with --resume) or choose another --out"


def write_atomically(path: Path, write: Callable[[Path], None], way_out: str = MAKE_ROOM) -> None:
    """Let `write` fill a temporary file next to `path`, then rename it: a reader never sees half a file.

    Permissions follow the umask, even if a library makes files for their owner alone (safetensors does).
    """
    temporary = temporary_path(path)
    try:
        create_new(temporary)
        usual_mode = temporary.stat().st_mode & 0o777
        write(temporary)
        with open(temporary, "rb+") as file:
            if os.fstat(file.fileno()).st_mode & 0o777 != usual_mode:
                with contextlib.suppress(OSError):  # some network mounts refuse it; the file is complete anyway
                    temporary.chmod(usual_mode)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (
        OSError,
        RuntimeError,
        SafetensorError,
    ) as error:  # torch and safetensors have their own errors for a full disk
        way_out = f"what was there before is untouched. {way_out}"
        raise BadInput(describe_write_failure(path, reason(error), way_out)) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def describe_write_failure(path: Path, why: str, way_out: str) -> str:
    """One line about a file that cannot be written; a full disk is the usual reason, for which `way_out` is."""
    if not path.parent.exists():
        return (
            f"{path} cannot be written: the folder {path.parent} was removed in the meantime; restore it and continue, "
            "or start again with another --out"
        )
    if why == os.strerror(errno.EROFS):
        way_out = "make the file system writable, or choose another --out"
    return f"{path} cannot be written ({why}); {way_out}"


LEFT_OVER_AGE = 3600.0  # seconds; no write of a file takes as long


def left_over_files(folder: Path, min_age: float = LEFT_OVER_AGE) -> list[Path]:
    """Temporary files of killed processes. Whoever holds the folder's lock need not wait: min_age=0."""
    left_over = []
    for path in folder.glob(".*.tmp"):
        with contextlib.suppress(OSError):  # another process has just renamed or removed it
            if min_age <= 0 or time.time() - path.stat().st_mtime >= min_age:
                left_over.append(path)
    return left_over


def remove_left_over_files(folder: Path, min_age: float = LEFT_OVER_AGE) -> None:
    for path in left_over_files(folder, min_age):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def create_new(path: Path) -> None:
    """Create an empty file; fail if the name is taken, even by a link that leads nowhere."""
    open(path, "xb").close()


def temporary_path(path: Path) -> Path:
    """The temporary file of this process for `path`."""
    return path.with_name(f".{path.name}.{os.getpid()}-{PROCESS_TOKEN}.tmp")


def why_unwritable(folder: Path) -> str:
    """Why nothing can be written in a folder, which need not exist yet; empty if it can."""
    try:
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not existing.is_dir():
            return os.strerror(errno.ENOTDIR)
        if os.access(existing, os.W_OK):
            return ""
        is_read_only = hasattr(os, "statvfs") and bool(os.statvfs(existing).f_flag & os.ST_RDONLY)
        return os.strerror(errno.EROFS if is_read_only else errno.EACCES)
    except OSError as error:
        return reason(error)


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be written in, before the work and without making anything."""
    if why := why_unwritable(folder):
        raise BadInput(f"cannot write in {folder} ({why}); choose another --out")


def make_folder(folder: Path, exist_ok: bool = True) -> None:
    """Make a folder and its parents."""
    try:
        folder.mkdir(parents=True, exist_ok=exist_ok)
    except OSError as error:
        raise BadInput(f"cannot write in {folder} ({error.strerror}); choose another --out") from None


def write_text(path: Path, text: str, way_out: str = MAKE_ROOM) -> None:
    def write(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8")

    write_atomically(path, write, way_out)


def write_bytes(path: Path, content: bytes, way_out: str = MAKE_ROOM) -> None:
    def write(temporary: Path) -> None:
        temporary.write_bytes(content)

    write_atomically(path, write, way_out)


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON; NaN and infinity become null."""
    write_text(path, json.dumps(jsonable(content), indent=2) + "\n")


def write_sealed_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write indented JSON with a digest of its content, by which readers notice damage."""
    parsed = json.loads(json.dumps(jsonable(dict(content))))
    write_json(path, parsed | {"digest": _json_digest(parsed)})


def is_as_written(content: Mapping[str, Any]) -> bool:
    """Whether JSON agrees with its digest; files of 0.1.0 have none, so nothing is known and they count as such."""
    return content.get("digest") is None or content["digest"] == _json_digest(content)


def _json_digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps({**content, "digest": None}, sort_keys=True).encode()).hexdigest()


def jsonable(value: Any) -> Any:
    """A copy for JSON, with null for NaN and infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    return value


def replace_section(document: Path, name: str, text: str) -> None:
    """Replace the text between the marks `<!-- NAME -->` and `<!-- end NAME -->` of a document."""
    start, end = f"<!-- {name} -->\n", f"<!-- end {name} -->"
    before, has_start, remainder = document.read_text(encoding="utf-8").partition(start)
    _, has_end, after = remainder.partition(end)
    if not has_start or not has_end:
        raise BadInput(f"{document} has no marks {start.strip()} and {end}; put them where the text belongs")
    write_text(document, before + start + text + end + after)


def digest(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Make new names in a folder survive a power cut."""
    if hasattr(os, "O_DIRECTORY"):
        with contextlib.suppress(OSError):  # not every file system can sync a folder
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def reason(error: Exception) -> str:
    """The operating system's message, or else the first sentence of the library's."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__context__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = " ".join(
        lines[:2] if lines and lines[0].endswith(":") else lines[:1]
    )  # a compiler's first line names the backend
    return message.partition(". ")[0].rstrip(".") or type(error).__name__


# --- links, and what is no regular file -------------------------------------------------------------------------------


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


# --- locks ------------------------------------------------------------------------------------------------------------


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


def did_you_mean_path(missing: Path | str) -> str:
    """'; did you mean X?' if a file with a similar name is next to the missing path, else empty."""
    path = Path(missing)
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except (OSError, ValueError):
        return ""
    close = get_close_matches(path.name, names, n=1, cutoff=0.75)
    return f"; did you mean {str(path.parent / close[0])!r}?" if close else ""
