"""The precision of a network: one rule for training, features, fine-tuning and detection."""

from __future__ import annotations

from typing import Literal

import torch

Precision = Literal["fp32", "bf16"]


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
