"""Package versions, hardware and commit, stored with runs and results; and digests of what a file holds."""

from __future__ import annotations

import contextlib
import hashlib
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supancl.version import __version__

if TYPE_CHECKING:
    import torch
else:
    from supancl.lazy import torch


PACKAGES = ("torch", "torchvision", "timm", "numpy", "pillow", "safetensors")


def versions() -> dict[str, str]:
    by_package = {"python": platform.python_version(), "supancl": __version__}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            by_package[package] = version(package)
    return by_package


def commit() -> str | None:
    """The commit of the source tree that this package runs from; None if there is none."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip() or None
    return None


def hardware(device: torch.device) -> str:
    """The GPU's name, or the CPU with its threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, threads: {torch.get_num_threads()}"


def content_digest(content: Any) -> str:
    """A sha256 of nested containers: every name, every value, and type, shape and bytes of every tensor.

    Raises TypeError for tensors without plain bytes: sparse, quantised or on the meta device.
    """
    state = hashlib.sha256()
    _add(state, content)
    return state.hexdigest()


def has_plain_bytes(tensor: torch.Tensor) -> bool:
    """Whether a tensor is neither sparse nor quantised, and has values."""
    return tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_quantized


def _add(state: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        if not has_plain_bytes(value):
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
