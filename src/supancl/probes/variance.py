"""Intra-class and total variance of features (Sec. 4.3), effective rank, and measures of neural collapse."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.config import to_json
from supancl.errors import BadInput
from supancl.files import jsonable
from supancl.probes.features import Features, check_features


class Variance(NamedTuple):
    """S_W = E ||z - mu_y||^2 and S_T = E ||z - mu||^2; S_W is nan if no class has two images to differ."""

    within: float
    total: float

    @property
    def ratio(self) -> float:
        return self.within / self.total if self.total > 0 else float("nan")


def variance(features: Features, normalize: bool = True) -> Variance:
    """S_W and S_T over the labelled features, L2-normalised by default.

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
    means, row, classes = class_means(values, features.labels)
    within = (values - means[row]).square().sum(1).mean()
    total = (values - values.mean(0)).square().sum(1).mean()
    return Variance(float(within) if len(classes) < len(row) else math.nan, float(total))


def class_means(values: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The mean of each class in the order of the labels, the row of its class for each image, and the labels."""
    classes, row = torch.unique(labels, return_inverse=True)
    sums = torch.zeros(len(classes), values.shape[1], dtype=values.dtype, device=values.device)
    return sums.index_add_(0, row, values) / torch.bincount(row)[:, None], row, classes


def effective_rank(values: Tensor | np.ndarray) -> float:
    """exp of the entropy of the normalised singular values (Roy and Vetterli, 2007) of centred features.

    >>> round(effective_rank(torch.eye(5)), 2)
    4.0
    """
    values = torch.as_tensor(values).double()
    centred = values - values.mean(0)
    # X X' and X' X have the same non-zero eigenvalues: use the smaller
    gram = centred @ centred.T if len(centred) < centred.shape[1] else centred.T @ centred
    # N centred rows span at most N - 1 directions; further eigenvalues are rounding errors
    directions = min(len(gram), len(centred) - 1)
    singular = torch.linalg.eigvalsh(gram)[len(gram) - directions :].clamp(min=0).sqrt()
    total = singular.sum()
    if not bool(torch.isfinite(total)) or float(total) <= 1e-12:
        return 0.0
    proportion = singular / total
    proportion = proportion[proportion > 1e-12]
    return float((-(proportion * proportion.log()).sum()).exp())


@dataclass(frozen=True)
class Collapse:
    """Measures of neural collapse (Papyan, Han and Donoho, 2020); for nc1 to nc4, 0 is collapsed.

    nc1: tr(S_W S_B^+) / C, the variability within classes relative to that between them.
    nc2_norms: deviation / mean of the norms of the centred class means.
    nc2_angles: deviation of the cosines between two of them; nc2_simplex: mean |cosine + 1 / (C - 1)|, the distance
    from the simplex, whose means are as far apart as possible.
    nc3: ||W / |W| - M / |M|||^2 of a classifier's weights W and the means M; None without a classifier.
    nc4: percentage of images whose nearest class mean is not of the predicted class (without a classifier: of their
    class).
    class_variance: E ||z - mu_y||^2 for each class in the order of `classes`; their mean over images is S_W. The JSON
    key is `spread`.
    nan, in JSON null: not measurable. The variance of one image is not, and if no class has two, neither is anything
    within classes (S_W, its ratio, nc1, nc4).
    """

    within: float
    total: float
    ratio: float
    effective_rank: float
    nc1: float
    nc2_norms: float
    nc2_angles: float
    nc2_simplex: float
    nc3: float | None
    nc4: float
    class_variance: tuple[float, ...]
    classes: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        content = jsonable(to_json(self))
        return {"spread" if key == "class_variance" else key: value for key, value in content.items()}


def collapse(
    features: Features, normalize: bool = True, weights: Tensor | None = None, bias: Tensor | None = None
) -> Collapse:
    """All measures of variance and collapse, over the labelled features, L2-normalised by default.

    `weights` (C, width), with or without `bias`, is a linear classifier of the same features, with rows in the order of
    the labels.

    >>> points = Features(torch.eye(3).repeat_interleave(4, 0), torch.arange(3).repeat_interleave(4))
    >>> measures = collapse(points)
    >>> [round(value, 6) for value in (measures.nc1, measures.nc2_norms, measures.nc2_simplex, measures.nc4)]
    [0.0, 0.0, 0.0, 0.0]
    """
    labelled = check_features("variance", features)
    values = labelled.values.double()
    values = F.normalize(values, dim=1) if normalize else values
    means, row, classes = class_means(values, labelled.labels)
    if len(classes) < 2:
        raise BadInput(f"variance features: only class {int(classes[0])}; measures between classes need two")
    if weights is not None and weights.shape != means.shape:
        raise BadInput(
            f"the classifier's weights have shape {tuple(weights.shape)}, the class means "
            f"{tuple(means.shape)}: one row per class, as wide as the features"
        )
    centred = means - values.mean(0)
    residual = values - means[row]
    sizes = torch.bincount(row)
    class_variance = (torch.bincount(row, residual.square().sum(1)) / sizes).masked_fill(sizes < 2, math.nan)
    within, total = residual.square().sum(1).mean(), (values - values.mean(0)).square().sum(1).mean()
    cosines = F.normalize(centred, dim=1) @ F.normalize(centred, dim=1).T
    cosines = cosines[~torch.eye(len(classes), dtype=torch.bool, device=cosines.device)]
    norms = centred.norm(dim=1)
    simplex = (cosines + 1 / (len(classes) - 1)).abs().mean()
    predicted, dual = row, None
    if weights is not None:
        weights = weights.double().to(values.device)
        predicted = (values @ weights.T + (0 if bias is None else bias.double().to(values.device))).argmax(1)
        dual = float((weights / weights.norm() - centred / centred.norm()).square().sum())
    nearest_class = (values @ means.T - 0.5 * means.square().sum(1)).argmax(1)
    measures = Collapse(
        float(within),
        float(total),
        float(within / total) if float(total) > 0 else float("nan"),
        effective_rank(values),
        _nc1(residual, centred),
        float(norms.std(correction=0) / norms.mean()),
        float(cosines.std(correction=0)),
        float(simplex),
        dual,
        100 * float((nearest_class != predicted).double().mean()),
        tuple(class_variance.tolist()),
        tuple(classes.tolist()),
    )
    if len(classes) == len(row):  # one image per class: it is its own mean
        return replace(measures, within=math.nan, ratio=math.nan, nc1=math.nan, nc4=math.nan)
    return measures


def _nc1(residual: Tensor, centred: Tensor) -> float:
    """tr(S_W S_B^+) / C without a matrix of width x width: S_B = M' M / C has the right singular vectors of M."""
    _, singular, axes = torch.linalg.svd(centred, full_matrices=False)
    nonzero = singular > 1e-10 * singular.max()
    along = (residual @ axes[nonzero].T).square().mean(0)
    return float((along / singular[nonzero].square()).sum())
