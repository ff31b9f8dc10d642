"""Digests of what a file holds: tensors and plain containers, whatever format stores them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
else:
    from supancl.lazy import torch


def content_digest(content: Any) -> str:
    """A sha256 of nested containers: every name, every value, and type, shape and bytes of every tensor.

    Raises TypeError for tensors without plain bytes: sparse, quantised or on the meta device.
    """
    state = hashlib.sha256()
    _add(state, content)
    return state.hexdigest()


def _add(state: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_meta or value.is_quantized:
            raise TypeError(f"a tensor of layout {value.layout} on {value.device.type} has no plain bytes")
        state.update(f"tensor {value.dtype} {tuple(value.shape)} ".encode())
        state.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    elif isinstance(value, Mapping):
        state.update(f"dict {len(value)} ".encode())
        for key, item in value.items():
            _add(state, key)
            _add(state, item)
    elif isinstance(value, (list, tuple)):
        state.update(f"list {len(value)} ".encode())
        for item in value:
            _add(state, item)
    else:
        text = repr(value).encode("utf-8", "surrogatepass")
        state.update(f"{type(value).__name__} {len(text)} ".encode() + text)
