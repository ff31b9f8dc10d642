"""An MLP spec becomes the projector g or the predictor h."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from supancl.config import Count


@dataclass(frozen=True)
class MLP:
    """Widths of the hidden layers and of the output, and where batch norm and bias stand.

    A hidden width of None is that of what comes in: the encoder's, for a projector.

    >>> MLP(hidden=(512,), out=2048).build(2048)[-1].out_features
    2048
    """

    hidden: tuple[Count | None, ...] = ()
    out: Count | None = None  # None: the number of classes, for a classifier
    norm: Literal["batch", "none"] = "batch"
    last_norm: Literal["none", "batch", "batch-no-affine"] = "none"
    bias: Literal["auto", "none"] = "auto"  # auto: wherever no batch norm follows and would cancel it

    @property
    def depth(self) -> int:
        return len(self.hidden) + 1

    def build(self, width: int) -> nn.Sequential:
        if self.out is None:
            raise ValueError("MLP.out is not known yet; give it the number of classes first")
        layers: list[nn.Module] = []
        for wanted in self.hidden:
            hidden = width if wanted is None else wanted
            normed = self.norm == "batch"
            layers.append(nn.Linear(width, hidden, bias=self.bias == "auto" and not normed))
            if normed:
                layers.append(nn.BatchNorm1d(hidden))
            layers.append(nn.ReLU(inplace=True))
            width = hidden
        normed = self.last_norm != "none"
        layers.append(nn.Linear(width, self.out, bias=self.bias == "auto" and not normed))
        if normed:
            layers.append(nn.BatchNorm1d(self.out, affine=self.last_norm == "batch"))
        return nn.Sequential(*layers)
