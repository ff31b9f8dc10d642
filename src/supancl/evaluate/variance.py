"""Intra-class and total variance of features (Sec. 4.3), and the effective rank."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.evaluate.features import Features


class Variance(NamedTuple):
    """S_W = E ||z - mu_y||^2 and S_T = E ||z - mu||^2."""

    within: float
    total: float

    @property
    def ratio(self) -> float:
        return self.within / self.total if self.total > 0 else float("nan")


def variance(features: Features, normalize: bool = True) -> Variance:
    """S_W and S_T over the labelled features, L2-normalised first unless told otherwise.

    >>> flat = Features(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 0, 1, 1]))
    >>> variance(flat)
    Variance(within=0.0, total=0.5)
    """
    features = features.labelled()
    if not len(features.labels):
        return Variance(float("nan"), float("nan"))
    values = features.values.double()
    if normalize:
        values = F.normalize(values, dim=1)
    classes, row = torch.unique(features.labels, return_inverse=True)
    sums = torch.zeros(len(classes), values.shape[1], dtype=torch.float64).index_add_(0, row, values)
    means = sums / torch.bincount(row)[:, None]
    within = (values - means[row]).square().sum(1).mean()
    total = (values - values.mean(0)).square().sum(1).mean()
    return Variance(float(within), float(total))


def effective_rank(values: Tensor) -> float:
    """exp of the entropy of the normalised singular values (Roy and Vetterli, 2007) of centred features.

    >>> round(effective_rank(torch.eye(5)), 2)
    4.0
    """
    centred = values.double() - values.double().mean(0)
    # of X X' and X' X, which share their eigenvalues, the smaller
    gram = centred @ centred.T if len(centred) < centred.shape[1] else centred.T @ centred
    singular = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt()
    total = singular.sum()
    if not bool(torch.isfinite(total)) or float(total) <= 1e-12:
        return 0.0
    share = singular / total
    share = share[share > 1e-12]
    return float((-(share * share.log()).sum()).exp())
