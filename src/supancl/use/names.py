"""The names of formats and the folder of an export, checked without torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from supancl.errors import BadInput, did_you_mean
from supancl.files import check_writable

FORMAT_NAMES = ("hf", "onnx", "pt2", "torchvision")


def check_formats(names: Sequence[str]) -> list[str]:
    """The names, each once; an unknown one is refused."""
    for name in names:
        if name not in FORMAT_NAMES:
            raise BadInput(f"format {name}: no such format{did_you_mean(name, FORMAT_NAMES)}")
    if not names:
        raise BadInput(f"format names no format; choose from {', '.join(FORMAT_NAMES)}")
    return list(dict.fromkeys(names))


def check_out(folder: Path) -> None:
    """Refuse a folder that exists or cannot be made."""
    if os.path.lexists(folder):
        raise BadInput(f"{folder} exists already; choose another out, or remove it")
    check_writable(folder)
