"""What a run or a result was made with: package versions and the commit of the source tree."""

from __future__ import annotations

import contextlib
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from supancl.version import __version__

PACKAGES = ("torch", "torchvision", "timm", "numpy", "safetensors")


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "supancl": __version__}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def commit() -> str | None:
    """The commit of the source tree this runs from, where it runs from one."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        asked = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return asked.stdout.strip() or None
