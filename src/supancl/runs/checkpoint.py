"""Checkpoints: the whole state of a run, from which it can resume.

A checkpoint is written to a temporary file, synced and renamed; the previous one is kept. It holds a digest of its own
content, which is compared when it is read. Files are read with weights_only=True: nothing in them is executed.
"""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from supancl.errors import BadInput
from supancl.files import check_zip, open_regular, reason, write_atomically
from supancl.runs.provenance import content_digest, has_plain_bytes
from supancl.version import __version__

SCHEMA_VERSION = 2
MAX_CHECKPOINTS = 2
MAX_REPETITION = 16  # of a file's bytes in its tensors: shared weights are stored once
MAX_PICKLE_BYTES = 16 * 2**20  # names and shapes of 100,000 tensors; Python needs up to 60 times as much memory


def save_checkpoint(folder: Path, step: int, state: Mapping[str, Any], keep_all: bool = False) -> Path:
    """Write step-N.pt, and unless `keep_all`, remove all earlier checkpoints but one.

    Later ones are kept: a run that went back past a damaged one overwrites it when it reaches that step.
    """
    path = folder / f"step-{step:09d}.pt"
    content = {"schema_version": SCHEMA_VERSION, **state}
    content["digest"] = content_digest(content)
    write_atomically(path, lambda temporary: save_with_torch(temporary, content))
    if keep_all:
        return path
    for old in [checkpoint for checkpoint in checkpoints(folder) if checkpoint.name <= path.name][:-MAX_CHECKPOINTS]:
        old.unlink(missing_ok=True)
    return path


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(folder.glob("step-*.pt"))


def load_newest(folder: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest intact checkpoint (None if there is none), and remarks on damaged ones skipped."""
    damaged: list[str] = []
    for path in reversed(checkpoints(folder)):
        try:
            content = load_checkpoint(path)
        except DamagedFile as error:
            damaged.append(str(error))
            continue
        return content, [f"{line}; continuing from the one before it" for line in damaged]
    if damaged:
        raise BadInput(f"no intact checkpoint is left: {'; '.join(damaged)}; to start again at step 0, remove {folder}")
    return None, []


class DamagedFile(BadInput):
    """A file whose bytes differ from what was written."""


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The state in a checkpoint of this schema, compared with its digest."""
    content = load_tensors(path)
    version, expected = content.get("schema_version"), content.pop("digest", None)
    if version != SCHEMA_VERSION:
        raise BadInput(
            f"{path} has schema version {version}, supancl {__version__} reads {SCHEMA_VERSION}; finish the run with "
            "the version in its recipe.json, or start again with another out"
        )
    try:
        is_intact = not any(map(_repeats_bytes, _tensors(content))) and content_digest(content) == expected
    except TypeError:  # a tensor that no run saves
        is_intact = False
    if not is_intact:
        raise DamagedFile(f"checkpoint {path} is damaged (its content differs from its digest)")
    return content


def load_tensors(path: Path, allowed: Sequence[type] = (), mapped: bool = False) -> dict[str, Any]:
    """Read a .pt, .pth or .ckpt file of tensors and plain containers; refuse anything that could run code.

    `allowed`: further classes that are known to be harmless when loaded. `mapped`: tensors are read when they are
    used, so that those which nobody asks for take no memory.
    """
    try:
        is_zip = _check_archive(path)
        with warnings.catch_warnings(), torch.serialization.safe_globals(list(allowed)):
            warnings.simplefilter("ignore")  # torch warns about what it then refuses
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped and is_zip)
    except OSError as error:
        raise DamagedFile(f"checkpoint {path} cannot be read ({reason(error)})") from None
    except BadInput:
        raise
    except Exception as error:  # a truncated pickle can fail in any way
        with open(path, "rb") as file:
            has_magic_bytes = file.read(2).startswith((b"\x80", b"PK"))  # a pickle, or a zip of one
        if has_magic_bytes and ("nsupported" in str(error) or "TorchScript" in str(error)):
            name = re.search(r"GLOBAL ([\w.]+)", str(error))
            raise BadInput(
                f"{path} holds {name[1] if name else 'more than tensors and plain containers'} and was not opened, "
                "because loading it could run code; if you trust it, save only its weights: torch.save({'state_dict': "
                "torch.load(IN, weights_only=False)['state_dict']}, OUT) (docs/import.md)"
            ) from None
        is_torn = has_magic_bytes and not isinstance(error, pickle.UnpicklingError)
        why = reason(error) if is_torn else "it is not a file of tensors"
        raise DamagedFile(f"checkpoint {path} is damaged ({why})") from None
    if not isinstance(content, dict):
        raise BadInput(f"{path}: not a checkpoint (it holds a {type(content).__name__}); give a state dict")
    claimed = sum(value.numel() * value.element_size() for value in _tensors(content))
    if claimed > MAX_REPETITION * max(path.stat().st_size, 2**20):  # copied, they would fill the memory
        raise BadInput(f"{path}: its tensors have {claimed:,} bytes, more than the file; save contiguous tensors")
    return content


def _check_archive(path: Path) -> bool:
    """Whether a file is a zip, as torch.save writes it; refuse one that would take more memory than it has bytes."""
    with open_regular(path) as file:
        if file.read(2) != b"PK":
            return False
        try:
            check_zip(file)
            members = zipfile.ZipFile(file).infolist()
        except zipfile.BadZipFile:  # cut short: torch says how
            return False
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise BadInput(f"{path}: its members are compressed; unpack it, and save its content again with torch.save")
    pickled = max((member.file_size for member in members if member.filename.endswith(".pkl")), default=0)
    if pickled > MAX_PICKLE_BYTES or sum(member.file_size for member in members) > path.stat().st_size:
        raise BadInput(f"{path}: its members claim more bytes than such a file has; save its tensors alone")
    return True


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors with values in nested containers."""
    if isinstance(value, torch.Tensor):
        yield from [value] if has_plain_bytes(value) else []
    elif isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(item)


def _repeats_bytes(tensor: torch.Tensor) -> bool:
    """Whether a tensor claims more bytes than were stored: none of a run does, and its digest would take them all."""
    return tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes()


def save_with_torch(path: Path, content: dict[str, Any]) -> None:
    with open(path, "wb") as file:  # given a path, torch hides why it could not write
        torch.save(content, file)
