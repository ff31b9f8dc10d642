"""Checkpoints: the whole state of a run, from which it can resume.

A checkpoint is written to a temporary file, synced, renamed and given a checksum; the previous one is kept.
Files are read with weights_only=True: nothing in them is executed.
"""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from supancl.errors import BadInput
from supancl.files import digest, reason, write_atomically, write_text

SCHEMA_VERSION = 1
MAX_CHECKPOINTS = 2

# schema version -> function that migrates its content to the next version
MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}


def save_checkpoint(folder: Path, step: int, state: Mapping[str, Any]) -> Path:
    """Write step-N.pt and its checksum, and remove all earlier checkpoints but one.

    Later ones are kept: a run that went back past a damaged one overwrites it when it reaches that step.
    """
    path = folder / f"step-{step:09d}.pt"
    content = {"schema_version": SCHEMA_VERSION, **state}
    write_atomically(path, lambda temporary: _save(temporary, content))
    checksum = digest(path)
    write_text(path.with_suffix(".sha256"), checksum)
    for old in [checkpoint for checkpoint in checkpoints(folder) if checkpoint.name <= path.name][:-MAX_CHECKPOINTS]:
        old.unlink(missing_ok=True)
        old.with_suffix(".sha256").unlink(missing_ok=True)
    return path


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(folder.glob("step-*.pt"))


def load_newest(folder: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest intact checkpoint (None if there is none), and a message for each damaged one skipped."""
    damaged: list[str] = []
    for path in reversed(checkpoints(folder)):
        try:
            return load_checkpoint(path), damaged
        except DamagedFile as error:
            damaged.append(str(error))
    if damaged:
        raise BadInput(f"no sound checkpoint is left: {'; '.join(damaged)}; to start again at step 0, remove {folder}")
    return None, damaged


class DamagedFile(BadInput):
    """A file whose bytes differ from what was written."""


class UnsafeFile(BadInput):
    """A file whose loading could run code; `refused_name` is the name that torch refused, if known."""

    def __init__(self, message: str, refused_name: str = "") -> None:
        super().__init__(message)
        self.refused_name = refused_name


def load_checkpoint(path: Path) -> dict[str, Any]:
    try:
        expected = path.with_suffix(".sha256").read_text(errors="replace").strip()
    except OSError:
        expected = ""  # a crash between the two writes; the content is checked below
    if expected and path.is_file() and digest(path) != expected:
        raise DamagedFile(f"checkpoint {path} is damaged (its checksum differs)")
    content = load_tensors(path)
    version = content.get("schema_version")
    if not isinstance(version, int):
        raise BadInput(f"{path}: not a checkpoint of supancl (no schema_version); remove it, or name another --out")
    if version > SCHEMA_VERSION:
        raise BadInput(f"{path} was written by a newer supancl (schema {version}, known {SCHEMA_VERSION}); upgrade")
    while version < SCHEMA_VERSION:
        if version not in MIGRATIONS:
            raise BadInput(
                f"{path} has schema {version}, which no supancl has written; remove it, or name another --out"
            )
        content = MIGRATIONS[version](content)
        version += 1
    return content


def load_tensors(path: Path, allowed: Sequence[type] = ()) -> dict[str, Any]:
    """Read a .pt, .pth or .ckpt file of tensors and plain containers; refuse anything that could run code.

    `allowed`: further classes that are known to be harmless when loaded.
    """
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals(list(allowed)):
            warnings.simplefilter("ignore")  # torch warns about what it then refuses
            content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise DamagedFile(f"checkpoint {path} cannot be read ({reason(error)})") from None
    except Exception as error:  # a truncated pickle can fail in any way
        if _could_run_code(path, error):
            match = re.search(r"GLOBAL ([\w.]+)", str(error))
            raise UnsafeFile(
                f"{path} holds more than tensors and plain containers and is not opened, because loading "
                "it could run code; save its state dict alone",
                match[1] if match else "",
            ) from None
        with open(path, "rb") as file:
            has_magic_bytes = file.read(2).startswith((b"\x80", b"PK"))  # a pickle, or a zip of one
        is_truncated = has_magic_bytes and not isinstance(error, pickle.UnpicklingError)
        why = reason(error) if is_truncated else "it is no file of tensors"
        raise DamagedFile(f"checkpoint {path} is damaged ({why})") from None
    if not isinstance(content, dict):
        raise BadInput(f"{path}: not a checkpoint (it holds a {type(content).__name__}); give a state dict")
    return content


def _could_run_code(path: Path, error: Exception) -> bool:
    """Whether torch refused a name or instruction that a file of tensors does not need."""
    text = str(error)
    if any(word in text for word in ("nsupported global", "nsupported GLOBAL", "nsupported class", "TorchScript")):
        return True
    with open(path, "rb") as file:
        return "Unsupported operand" in text and file.read(2).startswith((b"\x80", b"PK"))  # a pickle, or a zip of one


def _save(path: Path, content: dict[str, Any]) -> None:
    with open(path, "wb") as file:  # given a path, torch hides why it could not write
        torch.save(content, file)
