"""Wrong labels on purpose (`data.label_noise`), to measure what they do and whether `supancl audit` finds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from supancl.data.order import derive_seed
from supancl.errors import BadInput

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from supancl.lazy import torch

NoiseKind = Literal["symmetric", "pair"]
FIRST_SEED = 20243  # fixed, as for what is held out: runs with the same `seed` have the same wrong labels


def flip_labels(labels: Tensor, classes: int, fraction: float, kind: NoiseKind = "symmetric", seed: int = 0) -> Tensor:
    """The labels with `fraction` of them made wrong; -1 (unlabelled) stays.

    "symmetric": each of the other classes is equally likely. "pair": class c becomes c + 1, the last one the first.

    >>> labels = torch.arange(4).repeat(25)
    >>> noisy = flip_labels(labels, classes=4, fraction=0.2, kind="pair")
    >>> int((noisy != labels).sum()), bool(((noisy - labels) % 4 <= 1).all())
    (20, True)
    """
    if fraction == 0:
        return labels
    if classes < 2:
        raise BadInput(f"data.label_noise = {fraction:g} needs at least two classes; there is {classes}")
    generator = torch.Generator().manual_seed(derive_seed(FIRST_SEED, seed))
    labelled = (labels >= 0).nonzero()[:, 0]
    wrong = labelled[torch.randperm(len(labelled), generator=generator)[: round(fraction * len(labelled))]]
    if kind == "pair":
        shift = torch.ones(len(wrong), dtype=torch.long)
    else:
        shift = torch.randint(1, classes, (len(wrong),), generator=generator)
    noisy = labels.clone()
    noisy[wrong] = (labels[wrong] + shift.to(labels.device)) % classes
    return noisy
