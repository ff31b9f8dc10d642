"""Atomic writes, places to write, locks, and untrusted files: opened without hanging or filling the memory.

What lies inside a run folder or a cache may come from someone else. A file there may be read through a link, but
nothing is written, truncated or created through one; and only regular files are read, as a FIFO would never end.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import io
import json
import math
import os
import secrets
import shutil
import stat
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from supancl.config import parse_json
from supancl.errors import BadInput, make_visible

MAX_TEXT_BYTES = 32 * 2**20  # of a JSON that is read at once: a recipe with a million class names is half as long
MAX_ZIP_LIST_BYTES = 16 * 2**20  # about 100,000 arrays; Python needs ten times as much memory for the list
LEFT_OVER_AGE = 3600.0  # seconds; no write of a file takes as long
NOT_REGULAR = "it is a FIFO, a device or a socket, not a regular file"
PROCESS_TOKEN = secrets.token_hex(4)  # process numbers are not unique across machines and containers


def check_regular(path: Path | str) -> os.stat_result:
    """The status of a regular file, also behind a link. Anything else raises OSError: opening a FIFO would hang."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        is_folder = stat.S_ISDIR(status.st_mode)
        raise OSError(*((errno.EISDIR, "Is a directory") if is_folder else (errno.EINVAL, NOT_REGULAR)), str(path))
    return status


def open_regular(path: Path | str) -> io.BufferedReader:
    """Open a regular file for reading, also behind a link; never waits for a FIFO or device, but raises OSError."""
    check_regular(path)
    return open(path, "rb")


def read_text(path: Path, encoding: str = "utf-8", errors: str = "strict", limit: int = MAX_TEXT_BYTES) -> str:
    """The text of a regular file; one that is longer than `limit` bytes raises OSError before it is read."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, more than {limit:,}", str(path))
        return file.read(limit).decode(encoding, errors)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if the file is missing, damaged or holds something else."""
    with contextlib.suppress(OSError, ValueError):
        return content if isinstance(content := parse_json(read_text(path)), dict) else {}
    return {}


def digest(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_zip(file: IO[bytes]) -> None:
    """Refuse a zip (.npz, .pt) whose list of members would fill the memory. Raises ValueError."""
    end = zipfile._EndRecData(file)  # type: ignore[attr-defined]
    if end is not None and end[5] > MAX_ZIP_LIST_BYTES:  # the bytes of the list
        raise ValueError(f"its list of members has {end[5]:,} bytes, it may have {MAX_ZIP_LIST_BYTES:,}")
    file.seek(0)


def check_fits_memory(needed_bytes: int, what: str, way_out: str) -> None:
    """Refuse what is larger than this machine's memory, before it is read."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else math.inf
    if needed_bytes > memory:
        raise BadInput(f"{what}: {needed_bytes / 1e9:,.1f} GB, this machine has {memory / 1e9:.1f} GB; {way_out}")


def did_you_mean_path(missing: Path | str) -> str:
    """'; did you mean X?' if a file with a similar name is next to the missing path, else empty."""
    path = Path(missing)
    with contextlib.suppress(OSError, ValueError):
        names = [entry.name for entry in path.parent.iterdir()]
        for close in get_close_matches(path.name, names, n=1, cutoff=0.75):
            return f"; did you mean {str(path.parent / close)!r}?"
    return ""


def reason(error: Exception) -> str:
    """The operating system's message, or else the first sentence of the library's."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__context__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = " ".join(lines[:2] if lines and lines[0].endswith(":") else lines[:1])
    return message.partition(". ")[0].rstrip(".") or type(error).__name__


def check_no_link(path: Path) -> None:
    """Refuse a link inside a run folder or a cache, in the place of a file or folder that is written to."""
    if os.path.islink(path):  # never raises, as for a name that is too long
        raise BadInput(f"{path} is a link, and nothing is written through one; remove it, or move all of {path.parent}")


def make_inner_folder(folder: Path) -> None:
    """Make a folder inside a run folder or a cache, and its parents; refuse a link in its place. Raises OSError."""
    check_no_link(folder)
    folder.mkdir(parents=True, exist_ok=True)


def open_to_append(path: Path) -> IO[str]:
    """Open a text file inside a run folder or a cache to append to it; refuses a link, and what is no regular file."""
    check_no_link(path)
    if path.exists():
        try:
            check_regular(path)
        except OSError:
            raise BadInput(f"{path} cannot be written ({NOT_REGULAR}); remove it") from None
    return open(path, "a", encoding="utf-8")


@contextlib.contextmanager
def hold_lock(lock: Path, waiting: Callable[[str], None], every: float = 0.2) -> Iterator[None]:
    """Hold a lock file, waiting until it is free. The lock ends with the process, so a killed one never blocks.

    `waiting` is called once with the owner's process number if the lock is taken. The folder is made if it is missing.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):  # the folder was removed just now: it is made again below
        open_to_append(lock).close()
    held = FileLock(lock, fallback_to_soft=False)
    try:
        held.acquire(timeout=0)
    except Timeout:
        waiting(read_text(lock, errors="replace").strip() or "unknown")
        held.acquire(poll_interval=every)
    try:
        lock.write_text(str(os.getpid()))
        yield
    finally:
        held.release()


def is_locked(lock: Path) -> bool:
    """Whether a process holds this lock now. Nothing is written; a file that is missing or a link is no lock."""
    try:
        if not lock.is_symlink() and lock.is_file():
            FileLock(lock, fallback_to_soft=False).acquire(timeout=0).lock.release()
    except Timeout:
        return True
    except OSError:  # a folder that cannot be written, or a file system without locks
        pass
    return False


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file next to `path`, then rename it: a reader never sees half a file.

    Permissions follow the umask, even if a library makes files for their owner alone (safetensors does).
    """
    temporary = temporary_path(path)
    try:
        create_new(temporary)
        usual_mode = temporary.stat().st_mode & 0o777
        write(temporary)
        with open(temporary, "rb+") as file:
            with contextlib.suppress(OSError):  # some network mounts refuse it; the file is complete anyway
                temporary.chmod(usual_mode)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, RuntimeError, SafetensorError) as error:  # torch and safetensors have their own for a full disk
        raise BadInput(describe_write_failure(path, reason(error))) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def describe_write_failure(path: Path, why: str) -> str:
    """One line about a file that cannot be written; what was there before is untouched."""
    return f"{path} cannot be written ({why}); make room or check its permissions, then resume, or choose another out"


def remove_left_over_files(folder: Path, min_age: float = LEFT_OVER_AGE, of: str = "") -> None:
    """Remove what killed processes left half-written in a folder, or only `of` this file or folder.

    Whoever holds the folder's lock need not wait: min_age=0.
    """
    for path in folder.glob(f".{glob.escape(of)}*.tmp"):
        with contextlib.suppress(OSError):  # another process has just renamed or removed it
            if time.time() - path.lstat().st_mtime >= min_age:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def create_new(path: Path) -> None:
    """Create an empty file; fail if the name is taken, even by a link that leads nowhere."""
    open(path, "xb").close()


def temporary_path(path: Path) -> Path:
    """The temporary file of this process for `path`."""
    return path.with_name(f".{path.name}.{os.getpid()}-{PROCESS_TOKEN}.tmp")


def write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON; NaN and infinity become null."""
    write_text(path, json.dumps(jsonable(content), indent=2) + "\n")


def write_sealed_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write indented JSON with a digest of its content, by which readers notice damage."""
    parsed = json.loads(json.dumps(jsonable(dict(content))))
    write_json(path, parsed | {"digest": _json_digest(parsed)})


def read_sealed_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, compared with its digest. Raises OSError or ValueError."""
    content = parse_json(read_text(path))
    if not isinstance(content, dict) or not is_as_written(content):
        raise ValueError("it differs from its digest")
    return content


def is_as_written(content: Mapping[str, Any]) -> bool:
    """Whether JSON agrees with its digest; without one nothing is known, and it counts as written."""
    return content.get("digest") in (None, _json_digest(content))


def _json_digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps({**content, "digest": None}, sort_keys=True).encode()).hexdigest()


def jsonable(value: Any) -> Any:
    """A copy for JSON, with null for NaN and infinity."""
    if isinstance(value, dict):
        return {key: jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def sync_folder(folder: Path) -> None:
    """Make new names in a folder survive a power cut."""
    with contextlib.suppress(OSError, AttributeError):  # not every file system can sync a folder
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def why_unwritable(folder: Path) -> str:
    """Why nothing can be written in a folder, which need not exist yet; empty if it can."""
    try:
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not existing.is_dir():
            return os.strerror(errno.ENOTDIR)
        return "" if os.access(existing, os.W_OK) else os.strerror(errno.EACCES)
    except OSError as error:
        return reason(error)


def make_folder(folder: Path, exist_ok: bool = True) -> None:
    """Make a folder and its parents."""
    try:
        folder.mkdir(parents=True, exist_ok=exist_ok)
    except OSError as error:
        raise BadInput(f"cannot write in {folder} ({error.strerror}); choose another out") from None


@dataclass(frozen=True)
class Output:
    """A file that ends in one of `suffixes`, or without suffixes a folder, that a command writes.

    What exists stays, unless `replaces` recognises an earlier output of the command. Files and new folders get their
    name when they are complete, so that a killed command can be repeated.

    `setting` is what the user named it with, for messages.
    """

    path: Path
    suffixes: tuple[str, ...] = ()
    setting: str = "out"
    replaces: Callable[[Path], bool] = lambda path: False

    def check(self) -> Output:
        """Refuse what may not be written. Nothing is made."""
        name = f"{self.setting} {self.path}"
        if self.suffixes and self.path.suffix.lower() not in self.suffixes:
            raise BadInput(f"{name}: must end in {', '.join(self.suffixes)}")
        if self.path.is_dir() if self.suffixes else self.path.is_file():
            raise BadInput(f"{name}: must be a {'file' if self.suffixes else 'folder'}")
        if why := why_unwritable(self.path.parent if self.suffixes else self.path):
            raise BadInput(f"{name}: cannot be written there ({why}); choose another {self.setting}")
        if os.path.lexists(self.path) and not self.replaces(self.path):
            raise BadInput(f"{name}: exists; remove it, or choose another {self.setting}")
        return self

    def write(self, write: Callable[[Path], object]) -> None:
        """Let `write` fill the file."""
        make_folder(self.path.parent)
        self.check()  # another command may have made it in the meantime
        write_atomically(self.path, write)

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """A new folder that takes its name at the end; after an error nothing is left of it."""
        new_parents = [path for path in self.path.absolute().parents if not path.exists()]
        make_folder(self.path.parent)
        remove_left_over_files(self.path.parent, of=f"{self.path.name}.")
        temporary = temporary_path(self.path)
        make_folder(temporary, exist_ok=False)
        try:
            yield temporary
            self.check()
            os.rename(temporary, self.path)
            sync_folder(self.path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            with contextlib.suppress(OSError):  # folders that hold something are kept
                for path in new_parents:
                    path.rmdir()


def is_formula(text: str) -> bool:
    """Whether a spreadsheet takes the text for a formula; -0.5 is a number."""
    if not text.lstrip().startswith(("=", "+", "-", "@")):
        return False
    try:
        float(text)
    except ValueError:
        return True
    return False


def escape_formula(text: str) -> str:
    """The text of a cell of a .csv, with an apostrophe in front if a spreadsheet would compute it.

    >>> escape_formula("=A1"), escape_formula("-0.5"), escape_formula("cat")
    ("'=A1", '-0.5', 'cat')
    """
    return f"'{text}" if is_formula(text) else text


def unescape_formula(text: str) -> str:
    """The text without the apostrophe that `escape_formula` put in front."""
    return text[1:] if text.startswith("'") and is_formula(text[1:]) else text


_real_folder = lru_cache(maxsize=1024)(os.path.realpath)  # without links; a folder has many images


def absolute_path(path: str) -> str:
    """The path of an image from the root, which is the same wherever a table of images lies."""
    return os.path.join(_real_folder(os.path.join(os.getcwd(), os.path.dirname(path))), os.path.basename(path))


def path_in_table(path: str, folder: str) -> str:
    """The path of an image: relative if it is below the table's folder, which ends in a slash; else absolute.

    >>> path_in_table("/data/photos/=1.png", "/data/photos/"), path_in_table("/data/cat.png", "/data/photos/")
    ('./=1.png', '/data/cat.png')
    """
    absolute = absolute_path(path)
    if not absolute.startswith(folder):
        return absolute
    relative = absolute.removeprefix(folder)
    return f"./{relative}" if is_formula(relative) or relative != relative.lstrip() else relative


def make_writable(text: str) -> str:
    """The text without what a table in UTF-8 cannot hold: line ends, and bytes of other encodings."""
    has_surrogate = any("\ud800" <= character <= "\udfff" for character in text)
    return make_visible(text) if has_surrogate or {*"\n\r\0"} & {*text} else text
