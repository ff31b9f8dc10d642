"""Package versions, the hardware and the commit of the source tree, stored with runs and results."""

from __future__ import annotations

import contextlib
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from supancl.errors import plural
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
    try:
        result = subprocess.run(
            ["git", "-C", str(root), "describe", "always", "dirty"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None


def hardware(device: torch.device) -> str:
    """The GPU's name, or the CPU with its threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {plural(torch.get_num_threads(), 'thread')}"
