"""Write a run's files in a thread while training continues."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from supancl.core.encoders import Encoder
from supancl.runs.checkpoint import save_checkpoint
from supancl.runs.encoder_file import encoder_metadata, projector_metadata, save_safetensors


class Writer:
    """Saves checkpoints, encoders and projectors in a thread; their tensors are copied immediately.

    One file of each kind is written at a time; the next one waits. An error is raised by the next save, or by `wait`.
    Leaving the `with` block waits for the last file, also after an exception.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")  # one: files keep their order
        self._pending: dict[str, Future[object]] = {}
        self._copies: dict[str, HostCopy] = {}

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *reason: object) -> None:
        self._thread.shutdown(wait=True)

    def save(self, folder: Path, step: int, state: Mapping[str, Any], keep_all: bool = False) -> None:
        """`save_checkpoint` of a copy of the current state."""
        self._submit("checkpoint", state, lambda copied: save_checkpoint(folder, step, copied, keep_all))

    def save_encoder(self, path: Path, encoder: Encoder, classes: tuple[str, ...], recipe: str) -> None:
        """`save_encoder` of a copy of the current encoder."""
        metadata = encoder_metadata(path, encoder, classes, recipe)
        self._submit("encoder", encoder.body.state_dict(), lambda copied: save_safetensors(path, copied, metadata))

    def save_projector(self, path: Path, projector: nn.Module, recipe: str) -> None:
        """`save_projector` of a copy of the current projector."""
        metadata = projector_metadata(path, projector, recipe)
        self._submit("projector", projector.state_dict(), lambda copied: save_safetensors(path, copied, metadata))

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
        self._pending[kind] = self._thread.submit(self._write, host_copy, write, copied)

    @staticmethod
    def _write(host_copy: HostCopy, write: Callable[[Any], object], copied: Any) -> None:
        host_copy.wait()
        write(copied)


class HostCopy:
    """Copies nested containers of tensors into host memory, which is reused for the next copy.

    From a GPU the copy into pinned memory is queued on the stream; only `wait` waits for it.
    """

    def __init__(self) -> None:
        self._memory: dict[tuple[str, ...], Tensor] = {}
        self._events: list[torch.cuda.Event] = []

    def copy(self, content: Any) -> Any:
        devices: set[torch.device] = set()
        copied = self._copy(content, (), devices)
        self._events = [torch.cuda.current_stream(device).record_event() for device in devices]
        return copied

    def wait(self) -> None:
        """Wait until the copy is complete."""
        for event in self._events:
            event.synchronize()

    def _copy(self, value: Any, key_path: tuple[str, ...], devices: set[torch.device]) -> Any:
        if isinstance(value, Tensor):
            if value.is_cuda:
                devices.add(value.device)
            return self._buffer_for(key_path, value.detach()).copy_(value.detach(), non_blocking=True)
        if isinstance(value, dict):
            copied = copy.copy(value)  # keeps a state dict's _metadata
            copied.update({key: self._copy(item, (*key_path, str(key)), devices) for key, item in value.items()})
            return copied
        if isinstance(value, (list, tuple)):
            return type(value)(self._copy(item, (*key_path, str(row)), devices) for row, item in enumerate(value))
        return value

    def _buffer_for(self, key_path: tuple[str, ...], value: Tensor) -> Tensor:
        buffer = self._memory.get(key_path)
        if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
            buffer = torch.empty_like(value, device="cpu", pin_memory=value.is_cuda)  # same memory layout
            self._memory[key_path] = buffer
        return buffer
