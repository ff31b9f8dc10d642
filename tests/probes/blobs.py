"""Small features with classes that overlap, for the tests beside this file."""

import torch

from supancl.probes import Features


def blobs(n: int, classes: int = 4, width: int = 6, noise: float = 0.8, seed: int = 0) -> Features:
    """n rows around one centre per class; the centres are the same for every seed."""
    centres = torch.randn(classes, width, generator=torch.Generator().manual_seed(99))
    labels = torch.arange(n) % classes
    spread = noise * torch.randn(n, width, generator=torch.Generator().manual_seed(seed))
    return Features(centres[labels] + spread, labels)
