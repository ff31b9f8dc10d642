"""The projector g and the predictor h, built from an MLP spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from supancl.config import Count, check_fields

if TYPE_CHECKING:
    from torch import Tensor, nn
else:
    from supancl.lazy import nn


@dataclass(frozen=True)
class MLP:
    """Widths of the hidden layers and of the output, and which layers have batch norm and bias.

    A hidden width of None is the input width: that of the encoder, for a projector.

    >>> MLP(hidden=(512,), out=2048).build(2048)[-1].out_features
    2048
    """

    hidden: tuple[Count | None, ...] = ()
    out: Count | None = None  # None: the number of classes, for a classifier
    norm: Literal["batch", "none"] = "batch"
    last_norm: Literal["none", "batch", "batch-no-affine"] = "none"
    bias: Literal["auto", "none"] = "auto"  # auto: only where no batch norm follows, which would cancel it

    def __post_init__(self) -> None:
        check_fields(self)

    @staticmethod
    def describe(weights: Mapping[str, Tensor]) -> tuple[MLP, int]:
        """The spec and the input width of a head with these weights, named as `build` names them.

        >>> spec = MLP(hidden=(8,), out=4, last_norm="batch")
        >>> MLP.describe(spec.build(6).state_dict()) == (spec, 6)
        True
        """
        linear = sorted(int(name.split(".")[0]) for name, value in weights.items() if value.ndim == 2)
        normed = [f"{index + 1}.running_mean" in weights for index in linear]
        biased = [f"{index}.bias" in weights for index in linear]
        widths = [len(weights[f"{index}.weight"]) for index in linear]
        affine = f"{linear[-1] + 1}.weight" in weights
        return MLP(
            tuple(widths[:-1]),
            widths[-1],
            "batch" if not linear[:-1] or normed[0] else "none",
            "none" if not normed[-1] else "batch" if affine else "batch-no-affine",
            "auto" if all(norm != bias for norm, bias in zip(normed, biased, strict=True)) else "none",
        ), weights[f"{linear[0]}.weight"].shape[1]

    def build(self, width: int) -> nn.Sequential:
        if self.out is None:
            raise ValueError("MLP.out is not known yet; give it the number of classes first")
        layers: list[nn.Module] = []
        for hidden_width in self.hidden:
            hidden = width if hidden_width is None else hidden_width
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
