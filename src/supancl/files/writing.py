"""Atomic writes: a reader sees the whole file or the one before."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from supancl.errors import BadInput

PROCESS_TOKEN = secrets.token_hex(4)  # process numbers are not unique across machines and containers
MAKE_ROOM = "make room or check its permissions (a run then continues with resume), or choose another out"


def write_atomically(path: Path, write: Callable[[Path], object], way_out: str = MAKE_ROOM) -> None:
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
    except (OSError, RuntimeError, SafetensorError) as error:  # torch and safetensors have their own for a full disk
        raise BadInput(describe_write_failure(path, reason(error), way_out)) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def describe_write_failure(path: Path, why: str, way_out: str = MAKE_ROOM) -> str:
    """One line about a file that cannot be written; what was there before is untouched."""
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
        raise BadInput(f"cannot write in {folder} ({why}); choose another out")


def make_folder(folder: Path, exist_ok: bool = True) -> None:
    """Make a folder and its parents."""
    try:
        folder.mkdir(parents=True, exist_ok=exist_ok)
    except OSError as error:
        raise BadInput(f"cannot write in {folder} ({error.strerror}); choose another out") from None


def write_text(path: Path, text: str, way_out: str = MAKE_ROOM) -> None:
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"), way_out)


def write_bytes(path: Path, content: bytes) -> None:
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON; NaN and infinity become null."""
    write_text(path, json.dumps(jsonable(content), indent=2) + "\n")


def write_sealed_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write indented JSON with a digest of its content, by which readers notice damage."""
    parsed = json.loads(json.dumps(jsonable(dict(content))))
    write_json(path, parsed | {"digest": _json_digest(parsed)})


def is_as_written(content: Mapping[str, Any]) -> bool:
    """Whether JSON agrees with its digest; without one nothing is known, and it counts as written."""
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
    # a compiler's first line names the backend
    message = " ".join(lines[:2] if lines and lines[0].endswith(":") else lines[:1])
    return message.partition(". ")[0].rstrip(".") or type(error).__name__
