"""The precision of a network: one rule for training, features, fine-tuning and detection."""

from __future__ import annotations

from typing import Literal

import torch

from supancl.errors import BadInput

Precision = Literal["fp32", "bf16"]


def pick_device(name: str, local_rank: int | None = None) -> torch.device:
    """The device with this name, or the best one for "auto"; each rank on this machine (`local_rank`) gets its GPU."""
    kind, _, number = name.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (number and not (kind == "cuda" and number.isdigit())):
        raise BadInput(f"device {name!r}: must be auto, cpu, cuda or cuda:N")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "auto":
        kind = "cuda" if gpus else "cpu"
    index = int(number) if number else local_rank
    if kind == "cpu":
        return torch.device("cpu")
    if gpus <= (index or 0):
        raise BadInput(f"device {name}: GPUs that torch can use: {gpus}; use cpu, or fewer ranks")
    if index is None:
        return torch.device("cuda")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def has_bf16(device: torch.device) -> bool:
    """Whether the device supports bf16: a GPU without emulation, a CPU always."""
    return device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)


def auto_precision(device: torch.device) -> Precision:
    """What `auto` means: bf16 on a GPU that supports it, where it is faster."""
    return "bf16" if device.type == "cuda" and has_bf16(device) else "fp32"


def autocast_for(device: torch.device, precision: str, cache_weights: bool = True) -> torch.autocast:
    """The autocast context; without `cache_weights` weights are cast at each use, which captured steps need.

    >>> with autocast_for(torch.device("cpu"), "bf16"):
    ...     (torch.ones(1, 1) @ torch.ones(1, 1)).dtype
    torch.bfloat16
    """
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=cache_weights)
