"""Few-shot classification: many small episodes, solved in batches.

The classifier is the one-vs-rest logistic regression that scikit-learn's liblinear solver fits: C times the summed
log-loss + ||w||^2 / 2, the intercept penalised like the other weights. Its optimum is a linear combination of the
support images, so Newton's method has only ways x shots unknowns, for every class of every episode in one batch.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.errors import BadInput, SupanclError
from supancl.probes.features import Features, check_features
from supancl.reporter import track
from supancl.stats import episode_half_width

EPISODE_BLOCK = 250  # episodes; changing it would change the random numbers
MAX_KEYS = 2**24  # random keys at a time; limits memory for large classes
MAX_STEPS = 100


class Episodes(NamedTuple):
    """Rows of the features: support (E, ways, shots) and query (E, ways, queries), -1 where a class has too few."""

    support: Tensor
    query: Tensor
    dropped: tuple[int, ...]  # classes with too few images


@dataclass(frozen=True)
class FewShot:
    """Mean accuracy in percent over the episodes and the half-width of its 95% interval."""

    mean: float
    interval: float
    accuracies: tuple[float, ...]
    dropped: tuple[int, ...]
    drawn: str  # a digest of the episodes: equal for two encoders with the same ones
    queries_used: tuple[int, int]  # fewest and most per class: small classes have fewer than `queries`


def sample_episodes(
    labels: Tensor,
    ways: int = 5,
    shots: int = 5,
    queries: int = 16,
    episodes: int = 2000,
    seed: int = 0,
    fill_queries: bool = False,
) -> Episodes:
    """Sample episodes from the labels alone, so that every encoder gets the same ones.

    A class with no more than `shots` images has no query left and is dropped. A class with fewer than shots + queries
    images contributes the queries that it has, so it weighs less in its episode. With `fill_queries` its queries are
    sampled with replacement, as in the authors' code, and all classes have equal weight; classes and shots are the same
    either way.
    """
    if min(ways - 1, shots, queries, episodes, seed + 1) < 1:
        raise BadInput("at least 2 ways, 1 shot, 1 query and 1 episode are needed, and a seed from 0 on")
    order = torch.argsort(labels, stable=True)
    order = order[labels[order] >= 0]
    names, sizes = torch.unique(labels[order], return_counts=True)
    usable = sizes > shots
    dropped = tuple(names[~usable].tolist())
    if int(usable.sum()) < ways:
        raise BadInput(
            f"classes with more than {shots} images: {int(usable.sum())}; {ways} ways need as many: use fewer ways or "
            "shots, or more images"
        )
    offset = (sizes.cumsum(0) - sizes)[usable]
    sizes = sizes[usable]
    random = np.random.default_rng(seed)  # the same stream for every version and machine
    images_per_class = min(shots + queries, int(sizes.max()))
    blocks = []
    for _ in range(0, episodes, EPISODE_BLOCK):  # in whole blocks, so n episodes are the first n of any larger number
        key = torch.from_numpy(random.random((EPISODE_BLOCK, len(sizes))))
        rows_of_classes = key.topk(ways, dim=1).indices
        # chunks do not change the stream
        for block in rows_of_classes.split(max(1, MAX_KEYS // (ways * int(sizes.max())))):
            key = torch.from_numpy(random.random((len(block), ways, int(sizes.max())), dtype=np.float32))
            key.masked_fill_(torch.arange(key.shape[2]) >= sizes[block][..., None], -1.0)
            keys, column = key.topk(images_per_class, dim=2)
            images = order[(offset[block][..., None] + column).clamp(max=len(order) - 1)]
            blocks.append(images.masked_fill(keys < 0, -1))
    rows = torch.cat(blocks)[:episodes]
    query = rows[..., shots:]
    if fill_queries:
        query = _fill_queries(query, queries, seed)
    return Episodes(rows[..., :shots].contiguous(), query.contiguous(), dropped)


def _fill_queries(query: Tensor, queries: int, seed: int) -> Tensor:
    """(E, ways, queries): a class with fewer queries gets that many, sampled with replacement."""
    count = (query >= 0).sum(-1, keepdim=True)
    key = torch.from_numpy(np.random.default_rng([seed, 1]).random((*query.shape[:2], queries)))
    resampled = query.gather(2, (key * count).long())
    padded = F.pad(query, (0, queries - query.shape[2]), value=-1)
    return torch.where(count < queries, resampled, padded)


def dual_logistic(kernel: Tensor, sign: Tensor, strength: float = 1.0, tolerance: float = 1e-7) -> Tensor:
    """(E, ways, n) coefficients a of the optimum w = sum of a_i x_i of every binary problem of every episode.

    `kernel` (E, n, n) holds the products of the support images (plus one for the intercept), `sign` (ways, n) is +1 or
    -1. At the optimum a = C y sigma(-y f) with f = K a. Newton's method solves systems I + S K S, which are well
    conditioned however large the features are; steps are halved until the penalised loss falls.
    """
    kernel = kernel[:, None]
    coefficients = kernel.new_zeros(len(kernel), *sign.shape)
    scores = torch.zeros_like(coefficients)
    eye = torch.eye(kernel.shape[-1], dtype=kernel.dtype, device=kernel.device)

    def penalized_loss(weights: Tensor, scores_of: Tensor) -> Tensor:
        return 0.5 * (weights * scores_of).sum(-1) + strength * F.softplus(-sign * scores_of).sum(-1)

    value = penalized_loss(coefficients, scores)
    for _ in range(MAX_STEPS):
        probability = torch.sigmoid(scores)
        slope = strength * sign * torch.sigmoid(-sign * scores)  # C (target - probability), which would lose digits
        # relative to each problem: features of norm s have coefficients as small as 1 / s^2
        if bool(((coefficients - slope).abs().amax(-1) <= tolerance * slope.abs().amax(-1)).all()):
            return coefficients
        curvature = strength * probability * (1 - probability)
        root = curvature.sqrt()
        right = curvature * scores + slope
        system = eye + root[..., :, None] * kernel * root[..., None, :]
        inner = (root * (kernel @ right[..., None])[..., 0])[..., None]
        solved = torch.cholesky_solve(inner, torch.linalg.cholesky(system))[..., 0]
        step = right - root * solved - coefficients
        along = (kernel @ step[..., None])[..., 0]
        length = torch.ones_like(value)[..., None]
        for _ in range(30):
            new_value = penalized_loss(coefficients + length * step, scores + length * along)
            worse = new_value > value + 1e-12 * value.abs()
            if not bool(worse.any()):
                break
            length = torch.where(worse[..., None], length / 2, length)
        coefficients, scores, value = coefficients + length * step, scores + length * along, new_value
    raise SupanclError(
        f"the episodes' classifiers did not converge in {MAX_STEPS} steps; normalise the features (normalize)"
    )


def predict_episodes(values: Tensor, support: Tensor, query: Tensor, strength: float = 1.0) -> Tensor:
    """The predicted way (0, 1, ...) of each query of each episode, in the shape of `query`.

    `support` (E, ways, shots) and `query` (E, ways, queries) hold rows of `values`; ignore the predictions for -1.
    """
    ways, shots = support.shape[1:]
    points = values[support.flatten(1)].double()
    query_points = values[query.clamp(min=0).flatten(1)].double()
    sign = 2 * torch.eye(ways, dtype=torch.float64, device=values.device).repeat_interleave(shots, 1) - 1
    coefficients = dual_logistic(points @ points.mT + 1, sign, strength)
    return ((query_points @ points.mT + 1) @ coefficients.mT).argmax(-1).view(query.shape)


def few_shot(
    features: Features,
    ways: int = 5,
    shots: int = 5,
    queries: int = 16,
    episodes: int = 2000,
    seed: int = 0,
    normalize: bool = False,
    strength: float = 1.0,
    chunk: int = 64,
    device: torch.device | str | None = None,
    fill_queries: bool = False,
) -> FewShot:
    """N-way K-shot accuracy of raw features (unit ones with `normalize`); `strength` is scikit-learn's C.

    `fill_queries`: classes with few images have as many queries as the others (see `sample_episodes`). Memory grows
    with `chunk`, the number of episodes solved at a time.
    """
    labelled = check_features("few-shot", features)
    sampled = sample_episodes(labelled.labels.cpu(), ways, shots, queries, episodes, seed, fill_queries)
    values = labelled.values.to(device) if device is not None else labelled.values
    values = F.normalize(values, dim=1) if normalize else values
    truth, fractions = torch.arange(ways, device=values.device)[:, None], []
    batches = list(zip(sampled.support.split(chunk), sampled.query.split(chunk), strict=True))
    for rows in track(batches, "episodes, in groups"):
        support, query = (part.to(values.device) for part in rows)
        is_query = query >= 0
        is_correct = (predict_episodes(values, support, query, strength) == truth) & is_query
        fractions.append(is_correct.sum((1, 2)).double() / is_query.sum((1, 2)))
    accuracies = 100 * torch.cat(fractions).cpu()
    query_counts = (sampled.query >= 0).sum(-1)
    return FewShot(
        float(accuracies.mean()),
        episode_half_width(accuracies),
        tuple(accuracies.tolist()),
        sampled.dropped,
        hashlib.sha256(sampled.support.numpy().tobytes() + sampled.query.numpy().tobytes()).hexdigest()[:16],
        (int(query_counts.min()), int(query_counts.max())),
    )
