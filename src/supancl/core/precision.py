"""The precision of a network: one rule for training, features, fine-tuning and detection."""

from __future__ import annotations

from typing import Literal

import torch

from supancl.errors import BadInput

Precision = Literal["fp32", "bf16"]


def pick_device(name: str, local_rank: int | None = None) -> torch.device:
    """The device with this name, or the best one for "auto"; each rank on this machine (`local_rank`) gets its GPU."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    try:
        device = torch.device(("cuda" if gpus else "cpu") if name == "auto" else name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise BadInput(f"device {name!r}: must be auto, cpu, cuda or cuda:N")
    if device.type == "cpu":
        return torch.device("cpu")
    index = local_rank if device.index is None else device.index
    if gpus <= (index or 0):
        raise BadInput(f"device {name}: GPUs that torch can use: {gpus}; use cpu, or fewer ranks")
    if index is None:
        return device
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
