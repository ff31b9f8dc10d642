"""Checkpoints: the whole state of a run, from which it can resume.

A checkpoint is written to a temporary file, synced and renamed; the previous one is kept. It holds a digest of its own
content, which is compared when it is read. Files are read with weights_only=True: nothing in them is executed.
"""

from __future__ import annotations

import copy
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from supancl.errors import BadInput
from supancl.files import check_zip, open_regular, reason, write_atomically
from supancl.runs.encoder_file import save_safetensors
from supancl.runs.provenance import content_digest, has_plain_bytes
from supancl.version import __version__

SCHEMA_VERSION = 2
MAX_CHECKPOINTS = 2
MAX_REPETITION = 4  # of a file's bytes in its tensors: shared weights are stored once
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
        else:
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
    with suppress(TypeError):  # a tensor that no run saves
        if content_digest(content) == expected:
            return content
    raise DamagedFile(f"checkpoint {path} is damaged (its content differs from its digest)")


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
            is_pickle = file.read(2).startswith((b"\x80", b"PK"))  # or a zip of one
        if is_pickle and re.search("nsupported|TorchScript", str(error)):
            name = re.search(r"GLOBAL ([\w.]+)", str(error))
            raise BadInput(
                f"{path} holds {name[1] if name else 'more than tensors'} and was not opened, because loading it could "
                "run code; if you trust it, save only its weights: torch.save({'state_dict': torch.load(IN, "
                "weights_only=False)['state_dict']}, OUT) (docs/import.md)"
            ) from None
        raise DamagedFile(f"checkpoint {path} is damaged or no file of tensors ({reason(error)})") from None
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
    pickled = max((member.file_size for member in members if member.filename.endswith(".pkl")), default=0)
    is_packed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
    if is_packed or pickled > MAX_PICKLE_BYTES or sum(member.file_size for member in members) > path.stat().st_size:
        raise BadInput(f"{path}: compressed, or claims more bytes than the file has; save its tensors with torch.save")
    return True


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors with values in nested containers."""
    if isinstance(value, Tensor):
        yield from [value] if has_plain_bytes(value) else []
    elif isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(item)


def save_with_torch(path: Path, content: dict[str, Any]) -> None:
    with open(path, "wb") as file:  # given a path, torch hides why it could not write
        torch.save(content, file)


# --- writing while training goes on -----------------------------------------------------------------------------------


class Writer:
    """Saves checkpoints, encoders and projectors in a thread; their tensors are copied immediately.

    One file of each kind is written at a time; the next one waits. An error is raised by the next save, or by `wait`.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")  # one: files keep their order
        self._pending: dict[str, Future[object]] = {}
        self._copies: dict[str, HostCopy] = {}

    def close(self) -> None:
        """Wait for the last file, also after an exception."""
        self._thread.shutdown(wait=True)

    def save(self, folder: Path, step: int, state: Mapping[str, Any], keep_all: bool = False) -> None:
        """`save_checkpoint` of a copy of the current state."""
        self._submit("checkpoint", state, lambda copied: save_checkpoint(folder, step, copied, keep_all))

    def save_weights(self, path: Path, weights: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
        """`save_safetensors` of a copy of the current weights."""
        self._submit(path.name, weights, lambda copied: save_safetensors(path, copied, metadata))

    def wait(self) -> None:
        """Wait until everything is on disk; raise any error of writing."""
        for kind in list(self._pending):
            self._pending.pop(kind).result()

    def _submit(self, kind: str, content: Mapping[str, Any], write: Callable[[Any], object]) -> None:
        for pending_kind, future in list(self._pending.items()):
            if pending_kind == kind or future.done():
                self._pending.pop(pending_kind).result()
        host_copy = self._copies.setdefault(kind, HostCopy())
        copied = host_copy.copy(content)

        def write_when_copied() -> None:
            host_copy.wait()
            write(copied)

        self._pending[kind] = self._thread.submit(write_when_copied)


class HostCopy:
    """Copies nested containers of tensors into host memory, which is reused for the next copy.

    From a GPU the copy into pinned memory is queued on the stream; only `wait` waits for it.
    """

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []
        self._events: list[torch.cuda.Event] = []

    def copy(self, content: Any) -> Any:
        tensors = list(_tensors(content))
        if [(b.shape, b.dtype) for b in self._buffers] != [(t.shape, t.dtype) for t in tensors]:
            # same memory layout
            self._buffers = [torch.empty_like(t, device="cpu", pin_memory=t.is_cuda) for t in tensors]
        for buffer, tensor in zip(self._buffers, tensors, strict=True):
            buffer.copy_(tensor.detach(), non_blocking=True)
        devices = {tensor.device for tensor in tensors if tensor.is_cuda}
        self._events = [torch.cuda.current_stream(device).record_event() for device in devices]
        buffer_of = {id(tensor): buffer for tensor, buffer in zip(tensors, self._buffers, strict=True)}
        return copy.deepcopy(content, buffer_of)  # of these tensors the buffers, of all else copies

    def wait(self) -> None:
        """Wait until the copy is complete."""
        for event in self._events:
            event.synchronize()
