"""Writes a run's files by a thread, so that training goes on meanwhile."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from supancl.core.encoders import Encoder
from supancl.weights.checkpoint import save_checkpoint
from supancl.weights.encoder_file import encoder_metadata, projector_metadata, save_safetensors


class Writer:
    """Saves as the functions here do, by a thread: what is given is copied at once, so that training may go on.

    Of each kind one file is under way; the next one waits for it. What could not be written is told by the next save,
    or by `wait`. Leaving the `with` block waits for the last file, whatever it is left for.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")  # one: files keep their order
        self._pending: dict[str, Future[object]] = {}
        self._copies: dict[str, HostCopy] = {}

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *reason: object) -> None:
        self._thread.shutdown(wait=True)

    def save(self, folder: Path, step: int, state: Mapping[str, Any]) -> None:
        """`save_checkpoint` of the state as it is now."""
        self._hand_over("checkpoint", state, lambda kept: save_checkpoint(folder, step, kept))

    def save_encoder(self, path: Path, encoder: Encoder, classes: tuple[str, ...], recipe: str) -> None:
        """`save_encoder` of the encoder as it is now."""
        metadata = encoder_metadata(encoder, classes, recipe)
        self._hand_over("encoder", encoder.body.state_dict(), lambda kept: save_safetensors(path, kept, metadata))

    def save_projector(self, path: Path, projector: nn.Module, recipe: str) -> None:
        """`save_projector` of the projector as it is now."""
        metadata = projector_metadata(projector, recipe)
        self._hand_over("projector", projector.state_dict(), lambda kept: save_safetensors(path, kept, metadata))

    def wait(self) -> None:
        """Until everything is on disk; raises what kept it from getting there."""
        for kind in list(self._pending):
            self._pending.pop(kind).result()

    def _hand_over(self, kind: str, content: Mapping[str, Any], write: Callable[[Any], object]) -> None:
        for other, future in list(self._pending.items()):
            if other == kind or future.done():
                self._pending.pop(other).result()
        copied = self._copies.setdefault(kind, HostCopy())
        kept = copied.of(content)
        self._pending[kind] = self._thread.submit(self._write, copied, write, kept)

    @staticmethod
    def _write(copied: HostCopy, write: Callable[[Any], object], kept: Any) -> None:
        copied.arrive()
        write(kept)


class HostCopy:
    """Nested containers of tensors, copied into host memory that serves again for the next one.

    From a GPU the copy is queued behind the steps before it into pinned memory, and nobody but `arrive` waits for it.
    """

    def __init__(self) -> None:
        self._memory: dict[tuple[str, ...], Tensor] = {}
        self._copied: list[torch.cuda.Event] = []

    def of(self, content: Any) -> Any:
        devices: set[torch.device] = set()
        kept = self._kept(content, (), devices)
        self._copied = [torch.cuda.current_stream(device).record_event() for device in devices]
        return kept

    def arrive(self) -> None:
        """Wait until the copy is there."""
        for event in self._copied:
            event.synchronize()

    def _kept(self, value: Any, place: tuple[str, ...], devices: set[torch.device]) -> Any:
        if isinstance(value, Tensor):
            if value.is_cuda:
                devices.add(value.device)
            return self._at(place, value.detach()).copy_(value.detach(), non_blocking=True)
        if isinstance(value, dict):
            kept = copy.copy(value)  # a state dict has its versions beside its entries
            kept.update({key: self._kept(item, (*place, str(key)), devices) for key, item in value.items()})
            return kept
        if isinstance(value, (list, tuple)):
            return type(value)(self._kept(item, (*place, str(row)), devices) for row, item in enumerate(value))
        return value

    def _at(self, place: tuple[str, ...], value: Tensor) -> Tensor:
        memory = self._memory.get(place)
        if memory is None or memory.shape != value.shape or memory.dtype != value.dtype:
            memory = torch.empty_like(value, device="cpu", pin_memory=value.is_cuda)  # laid out alike
            self._memory[place] = memory
        return memory
