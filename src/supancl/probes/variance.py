"""Intra-class and total variance of features (Sec. 4.3), effective rank, and measures of neural collapse."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.config import to_json
from supancl.errors import BadInput
from supancl.files import jsonable
from supancl.probes.features import Features, check_features

CHUNK = 1024  # rows in double precision at a time: all of them would take several times the memory of the features
BLOCK = 512  # columns


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
    classes = class_means(features, normalize)
    chunks = classes.chunks(features.values, normalize)
    return classes.variance(torch.cat([(rows - classes.means[own]).square().sum(1) for rows, own in chunks]))


class ClassMeans(NamedTuple):
    """The classes in the order of their labels."""

    labels: Tensor
    sizes: Tensor
    row: Tensor  # (N,): the row of its class for each image
    means: Tensor  # (C, width)
    centred: Tensor  # (C, width): less the mean of all images

    def chunks(self, values: Tensor, normalize: bool) -> Iterator[tuple[Tensor, Tensor]]:
        """The features in double precision, and the rows of their classes."""
        return zip(double_chunks(values, normalize), self.row.split(CHUNK), strict=True)

    def variance(self, distances: Tensor) -> Variance:
        """S_W and S_T from the squared distance of each image from the mean of its class.

        S_T = S_W + S_B needs no further pass. Of constant features all are rounding errors, and so is the ratio.
        """
        within = distances.mean()
        between = (self.sizes * self.centred.square().sum(1)).sum() / len(self.row)
        return Variance(float(within) if len(self.labels) < len(self.row) else math.nan, float(within + between))


def class_means(features: Features, normalize: bool) -> ClassMeans:
    labels, row = torch.unique(features.labels, return_inverse=True)
    sizes = torch.bincount(row)
    sums = torch.zeros(len(labels), features.values.shape[1], dtype=torch.float64, device=features.values.device)
    for rows, own in zip(double_chunks(features.values, normalize), row.split(CHUNK), strict=True):
        sums.index_add_(0, own, rows)
    means = sums / sizes[:, None]
    return ClassMeans(labels, sizes, row, means, means - sums.sum(0) / len(row))


def double_chunks(values: Tensor, normalize: bool) -> Iterator[Tensor]:
    for rows in values.split(CHUNK):
        yield F.normalize(rows.double(), dim=1) if normalize else rows.double()


def effective_rank(values: Tensor | np.ndarray, normalize: bool = False) -> float:
    """exp of the entropy of the normalised singular values (Roy and Vetterli, 2007) of centred features.

    Singular values are computed as roots of eigenvalues, so those below 1e-8 of the largest are rounding errors: of
    2048 features that span 100 directions they raise the rank by about 1e-5 of itself.

    >>> round(effective_rank(torch.eye(5)), 2)
    4.0
    """
    values = torch.as_tensor(values)
    count, width = values.shape
    mean = torch.stack([rows.sum(0) for rows in double_chunks(values, normalize)]).sum(0) / count
    centred = (rows - mean for rows in double_chunks(values, normalize))
    # X X' and X' X have the same non-zero eigenvalues: use the smaller
    gram = upper_gram([torch.cat(list(centred)).T] if count < width else centred)
    # N centred rows span at most N - 1 directions; further eigenvalues are rounding errors
    directions = min(len(gram), count - 1)
    singular = torch.linalg.eigvalsh(gram, UPLO="U")[len(gram) - directions :].clamp(min=0).sqrt()
    total = singular.sum()
    if not bool(torch.isfinite(total)) or float(total) <= 1e-12:
        return 0.0
    proportion = singular / total
    proportion = proportion[proportion > 1e-12]
    return float((-(proportion * proportion.log()).sum()).exp())


def upper_gram(chunks: Iterable[Tensor]) -> Tensor:
    """X' X of rows in chunks; of the lower triangle, which holds the same numbers, only what is in the blocks."""
    gram = None
    for rows in chunks:
        gram = rows.new_zeros(rows.shape[1], rows.shape[1]) if gram is None else gram
        for start in range(0, len(gram), BLOCK):
            gram[start : start + BLOCK, start:].addmm_(rows[:, start : start + BLOCK].T, rows[:, start:])
    assert gram is not None
    return gram


@dataclass(frozen=True)
class Collapse:
    """Measures of neural collapse (Papyan, Han and Donoho, 2020); for nc1 to nc4, 0 is collapsed.

    nc1: tr(S_W S_B^+) / C, the variability within classes relative to that between them.
    nc2_norms: deviation / mean of the norms of the centred class means.
    nc2_angles: deviation of the cosines between two of them; nc2_simplex: mean |cosine + 1 / (C - 1)|, the distance
    from the simplex, whose means are as far apart as possible.
    nc4: percentage of images whose nearest class mean is not that of their class.
    spread: E ||z - mu_y||^2 for each class in the order of `classes`; their mean over images is S_W.
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
    nc4: float
    spread: tuple[float, ...]
    classes: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        content: dict[str, Any] = jsonable(to_json(self))
        return content


def collapse(features: Features, normalize: bool = True, device: torch.device | str | None = None) -> Collapse:
    """All measures of variance and collapse, over the labelled features, L2-normalised by default.

    They are computed on `device`, or where the features are. nc1 takes no matrix of width x width: S_B = M' M / C has
    the right singular vectors of M.

    >>> points = Features(torch.eye(3).repeat_interleave(4, 0), torch.arange(3).repeat_interleave(4))
    >>> measures = collapse(points)
    >>> [round(value, 6) for value in (measures.nc1, measures.nc2_norms, measures.nc2_simplex, measures.nc4)]
    [0.0, 0.0, 0.0, 0.0]
    """
    labelled = check_features("variance", features)
    if device is not None:
        labelled = Features(labelled.values.to(device), labelled.labels.to(device))
    classes = class_means(labelled, normalize)
    labels, sizes, row, means, centred = classes
    if len(labels) < 2:
        raise BadInput(f"variance features: only class {int(labels[0])}; measures between classes need two")
    _, singular, axes = torch.linalg.svd(centred, full_matrices=False)
    nonzero = singular > 1e-10 * singular.max()
    offset = -0.5 * means.square().sum(1)
    squares, along, agrees = [], [], []
    for rows, own in classes.chunks(labelled.values, normalize):
        residual = rows - means[own]
        squares.append(residual.square().sum(1))
        along.append((residual @ axes[nonzero].T).square().sum(0))
        agrees.append((rows @ means.T + offset).argmax(1) == own)
    within_along = torch.stack(along).sum(0) / len(row)
    distances = torch.cat(squares)
    scatter, has_two = classes.variance(distances), len(labels) < len(row)
    class_variance = means.new_zeros(len(labels)).index_add_(0, row, distances) / sizes
    norms, unit = centred.norm(dim=1), F.normalize(centred, dim=1)
    cosines = (unit @ unit.T)[~torch.eye(len(labels), dtype=torch.bool, device=unit.device)]
    return Collapse(
        *scatter,
        scatter.ratio,
        effective_rank(labelled.values, normalize),
        float((within_along / singular[nonzero].square()).sum()) if has_two else math.nan,
        float(norms.std(correction=0) / norms.mean()),
        float(cosines.std(correction=0)),
        float((cosines + 1 / (len(labels) - 1)).abs().mean()),
        100 * float((~torch.cat(agrees)).double().mean()) if has_two else math.nan,
        tuple(class_variance.masked_fill(sizes < 2, math.nan).tolist()),
        tuple(labels.tolist()),
    )
