"""Files that are never seen half written, and folders that one process at a time may change."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import secrets
import time
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from supancl.errors import BadInput

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no flock; there a second writer is not noticed
    fcntl = None  # type: ignore[assignment]

OWN = secrets.token_hex(4)  # of this process, and of no other that has its number elsewhere
AFTER_MAKING_ROOM = "Make room (a run then continues with --resume) or choose another --out"


def write_atomically(path: Path, write: Callable[[Path], None], way_out: str = AFTER_MAKING_ROOM) -> None:
    """`write` fills a temporary file beside `path`, which then takes its name: a reader never sees half a file.

    Who may read it is what the umask says, also where a library makes files for their owner alone (safetensors does).
    """
    temporary = temporary_of(path)
    try:
        temporary.touch()
        usual = temporary.stat().st_mode & 0o777
        write(temporary)
        with open(temporary, "rb+") as file:
            if os.fstat(file.fileno()).st_mode & 0o777 != usual:
                with contextlib.suppress(OSError):  # some network mounts refuse it; the file is whole all the same
                    temporary.chmod(usual)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, RuntimeError, SafetensorError) as error:  # torch and safetensors word a full disk their own way
        raise BadInput(
            f"{path} cannot be written ({reason(error)}); what was there before is untouched. {way_out}"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def temporary_of(path: Path) -> Path:
    """Where this process writes it first; in containers that share a folder, several processes have one number."""
    return path.with_name(f".{path.name}.{os.getpid()}-{OWN}.tmp")


def unwritable(folder: Path) -> str:
    """Why nothing can be written in a folder, which may be one still to be made; empty where it can."""
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not there.is_dir():
            return os.strerror(errno.ENOTDIR)
        return "" if os.access(there, os.W_OK) else os.strerror(errno.EACCES)
    except OSError as error:
        return reason(error)


def check_place(folder: Path) -> None:
    """Refuse a place that cannot be written in, without making anything: before the work, not after it."""
    if why := unwritable(folder):
        raise BadInput(f"cannot write in {folder} ({why}); choose another --out")


def make_folder(folder: Path, exist_ok: bool = True) -> None:
    """Make a folder with those above it."""
    try:
        folder.mkdir(parents=True, exist_ok=exist_ok)
    except OSError as error:
        raise BadInput(f"cannot write in {folder} ({error.strerror}); choose another --out") from None


def write_text(path: Path, text: str, way_out: str = AFTER_MAKING_ROOM) -> None:
    def write(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8")

    write_atomically(path, write, way_out)


def write_json(path: Path, content: Any) -> None:
    """Indented JSON, as people read it; see `jsonable` for what is no number."""
    write_text(path, json.dumps(jsonable(content), indent=2) + "\n")


def jsonable(value: Any) -> Any:
    """JSON has no NaN: what is not a number becomes null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    return value


def put_between(document: Path, name: str, text: str) -> None:
    """The text between the marks `<!-- NAME -->` and `<!-- end NAME -->` of a document; the rest of it stays."""
    start, end = f"<!-- {name} -->\n", f"<!-- end {name} -->"
    before, begun, rest = document.read_text(encoding="utf-8").partition(start)
    _, ended, after = rest.partition(end)
    if not begun or not ended:
        raise BadInput(f"{document} has no marks {start.strip()} and {end}; put them where the text belongs")
    write_text(document, before + start + text + end + after)


def digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """A new name in a folder must survive a power cut as well as the file does."""
    if hasattr(os, "O_DIRECTORY"):
        with contextlib.suppress(OSError):  # not every file system can sync a folder
            opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)


def reason(error: Exception) -> str:
    """What the system says went wrong, else the first sentence of what a library says."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__context__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = " ".join(lines[:2] if lines and lines[0].endswith(":") else lines[:1])  # a compiler names the backend first
    return said.partition(". ")[0].rstrip(".") or type(error).__name__


@contextlib.contextmanager
def held(lock: Path, waiting: Callable[[str], None], every: float = 0.2) -> Iterator[None]:
    """Hold a lock file, waiting for whoever has it; the lock goes with the process, so a killed one never blocks.

    `waiting` is told the owner's process number once, if there is somebody to wait for. The folder is made, and made
    again where the one waited for has removed it. A file system without locks is an OSError, never an endless wait.
    """
    told = False
    while True:
        lock.parent.mkdir(parents=True, exist_ok=True)
        with open(lock, "a+") as file:
            while fcntl is not None:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not told:
                        file.seek(0)
                        waiting(file.read().strip() or "unknown")
                        told = True
                    time.sleep(every)
                except OSError as error:  # says which file it is about
                    raise OSError(error.errno, error.strerror, str(lock)) from None
            if not _still_there(lock, file.fileno()):
                continue
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield
            return


def _still_there(path: Path, opened: int) -> bool:
    """Whether the name still leads to the open file: who held the lock may have removed it, or made another."""
    try:
        return os.path.samestat(path.stat(), os.fstat(opened))
    except OSError:
        return False


def beside(missing: Path | str) -> str:
    """'; did you mean X?' where something of nearly that name lies beside a path that is not there; else empty."""
    path = Path(missing)
    try:
        names = [each.name for each in path.parent.iterdir()]
    except (OSError, ValueError):
        return ""
    close = get_close_matches(path.name, names, n=1, cutoff=0.75)
    return f"; did you mean {str(path.parent / close[0])!r}?" if close else ""
