"""Which numbers a network computes in: one rule for training, features, fine-tuning and detection."""

from __future__ import annotations

from typing import Literal

import torch

Precision = Literal["fp32", "bf16"]


def has_bf16(device: torch.device) -> bool:
    """Whether bf16 can be asked for: a GPU must compute in it itself, a CPU always can."""
    return device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)


def auto_precision(device: torch.device) -> Precision:
    """What `auto` means: bf16 where it is faster, on a GPU that has it."""
    return "bf16" if device.type == "cuda" and has_bf16(device) else "fp32"


def autocast_for(device: torch.device, precision: str, cache_weights: bool = True) -> torch.autocast:
    """The context to compute in; without `cache_weights` weights are cast at each use, as captured steps need it.

    >>> with autocast_for(torch.device("cpu"), "bf16"):
    ...     (torch.ones(1, 1) @ torch.ones(1, 1)).dtype
    torch.bfloat16
    """
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=cache_weights)
