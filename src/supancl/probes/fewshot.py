"""Few-shot classification: many small episodes, all of them solved together.

The classifier is the one-vs-rest logistic regression that scikit-learn's liblinear solver fits: C times the summed
log-loss + ||w||^2 / 2, the intercept penalised like the other weights. Its optimum is a combination of the support
images, so that Newton's method works on ways x shots numbers, for every class of every episode in one batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.errors import BadInput, SupanclError, plural
from supancl.probes.features import Features, check_features
from supancl.stats import episode_half_width

DRAWN_AT_ONCE = 250  # episodes; fixed, because the random numbers are laid out by it
MOST_KEYS = 2**24  # random keys at a time, however large a class is
MOST_STEPS = 100


class Episodes(NamedTuple):
    """Rows of the features: support (E, ways, shots) and query (E, ways, queries), -1 where a class has no more."""

    support: Tensor
    query: Tensor
    classes: Tensor  # (E, ways) labels
    dropped: tuple[int, ...]  # classes with too few images


@dataclass(frozen=True)
class FewShot:
    """Mean accuracy in percent over the episodes and the half-width of its 95% interval."""

    mean: float
    interval: float
    accuracies: tuple[float, ...]
    ways: int
    shots: int
    queries: int
    seed: int
    dropped: tuple[int, ...]
    drawn: str  # names the episodes: equal for two encoders that were given the same ones
    used: tuple[int, int] = (0, 0)  # queries a class, fewest and most: classes may have fewer than `queries` left
    fill_queries: bool = False  # see `sample_episodes`

    def to_json(self) -> dict[str, Any]:
        return {
            "mean": self.mean,
            "interval": self.interval,
            "ways": self.ways,
            "shots": self.shots,
            "queries": self.queries,
            "queries_used": list(self.used),
            "fill_queries": self.fill_queries,
            "episodes": len(self.accuracies),
            "seed": self.seed,
            "dropped": list(self.dropped),
            "drawn": self.drawn,
            "accuracies": list(self.accuracies),
        }


class Difference(NamedTuple):
    """Mean of a's accuracy less b's over the same episodes, in points, and the half-width of its 95% interval."""

    mean: float
    interval: float


def sample_episodes(
    labels: Tensor,
    ways: int = 5,
    shots: int = 5,
    queries: int = 16,
    episodes: int = 2000,
    seed: int = 0,
    fill_queries: bool = False,
) -> Episodes:
    """Episodes drawn from the labels alone, so that every encoder meets the same ones.

    A class with no more than `shots` images has no query left and is dropped. One with fewer than shots + queries
    takes part with the queries that it has, each once, so that it weighs less in its episode. With `fill_queries` its
    queries are drawn with replacement from what the shots leave, as in the authors' code, and every class weighs alike;
    classes and shots are the same ones either way.
    """
    for name, value, least in (
        ("ways", ways, 2),
        ("shots", shots, 1),
        ("queries", queries, 1),
        ("episodes", episodes, 1),
        ("seed", seed, 0),
    ):
        if value < least:
            raise BadInput(f"{name} = {value}: must be at least {least}")
    order = torch.argsort(labels, stable=True)
    order = order[labels[order] >= 0]
    names, sizes = torch.unique(labels[order], return_counts=True)
    usable = sizes > shots
    dropped = tuple(names[~usable].tolist())
    if int(usable.sum()) < ways:
        shown = f" (too small: {', '.join(map(str, dropped[:10]))})" if dropped else ""
        raise BadInput(
            f"{plural(int(usable.sum()), 'class has', 'classes have')} the {shots + 1} images that "
            f"{plural(shots, 'shot')} and a query need, {ways} ways need {ways} of them{shown}; use fewer "
            "ways or shots, or more images"
        )
    first = (sizes.cumsum(0) - sizes)[usable]
    names, sizes = names[usable], sizes[usable]
    random = np.random.default_rng(seed)  # its streams are the same for every version and machine
    taken = min(shots + queries, int(sizes.max()))
    drawn, chosen = [], []
    for _ in range(0, episodes, DRAWN_AT_ONCE):  # whole blocks: fewer episodes are the first of more
        key = torch.from_numpy(random.random((DRAWN_AT_ONCE, len(names))))
        which = key.topk(ways, dim=1).indices
        chosen.append(names[which])
        for some in which.split(max(1, MOST_KEYS // (ways * int(sizes.max())))):  # the stream is the same in any pieces
            key = torch.from_numpy(random.random((len(some), ways, int(sizes.max())), dtype=np.float32))
            key.masked_fill_(torch.arange(key.shape[2]) >= sizes[some][..., None], -1.0)
            keys, place = key.topk(taken, dim=2)
            images = order[(first[some][..., None] + place).clamp(max=len(order) - 1)]
            drawn.append(images.masked_fill(keys < 0, -1))
    rows, classes = torch.cat(drawn)[:episodes], torch.cat(chosen)[:episodes]
    query = rows[..., shots:]
    if fill_queries:
        query = _fill(query, queries, seed)
    return Episodes(rows[..., :shots].contiguous(), query.contiguous(), classes, dropped)


def _fill(query: Tensor, queries: int, seed: int) -> Tensor:
    """(E, ways, queries): where a class has fewer, as many are drawn with replacement from those that it has."""
    count = (query >= 0).sum(-1, keepdim=True)
    key = torch.from_numpy(np.random.default_rng([seed, 1]).random((*query.shape[:2], queries)))
    drawn = query.gather(2, (key * count).long())
    room = F.pad(query, (0, queries - query.shape[2]), value=-1)
    return torch.where(count < queries, drawn, room)


def dual_logistic(kernel: Tensor, sign: Tensor, strength: float = 1.0, tolerance: float = 1e-7) -> Tensor:
    """(E, ways, n) coefficients a of the optimum w = sum of a_i x_i of every binary problem of every episode.

    `kernel` (E, n, n) holds the products of the support images (plus one for the intercept), `sign` (ways, n) is +1 or
    -1. At the optimum a = C y sigma(-y f) with f = K a; the iteration is Newton's, with systems I + S K S, which are
    well conditioned however large the features are, and halved steps where the objective would not fall.
    """
    kernel = kernel[:, None]
    coefficients = kernel.new_zeros(len(kernel), *sign.shape)
    scores = torch.zeros_like(coefficients)
    eye = torch.eye(kernel.shape[-1], dtype=kernel.dtype, device=kernel.device)

    def objective(some: Tensor, their_scores: Tensor) -> Tensor:
        return 0.5 * (some * their_scores).sum(-1) + strength * F.softplus(-sign * their_scores).sum(-1)

    value = objective(coefficients, scores)
    for _ in range(MOST_STEPS):
        share = torch.sigmoid(scores)
        slope = strength * sign * torch.sigmoid(-sign * scores)  # C (target - share), which would lose its digits
        # relative to each problem: of features of norm s the coefficients are as small as 1 / s^2
        if bool(((coefficients - slope).abs().amax(-1) <= tolerance * slope.abs().amax(-1)).all()):
            return coefficients
        curvature = strength * share * (1 - share)
        root = curvature.sqrt()
        right = curvature * scores + slope
        system = eye + root[..., :, None] * kernel * root[..., None, :]
        inner = (root * (kernel @ right[..., None])[..., 0])[..., None]
        solved = torch.cholesky_solve(inner, torch.linalg.cholesky(system))[..., 0]
        step = right - root * solved - coefficients
        along = (kernel @ step[..., None])[..., 0]
        length = torch.ones_like(value)[..., None]
        for _ in range(30):
            there = objective(coefficients + length * step, scores + length * along)
            worse = there > value + 1e-12 * value.abs()
            if not bool(worse.any()):
                break
            length = torch.where(worse[..., None], length / 2, length)
        coefficients, scores, value = coefficients + length * step, scores + length * along, there
    raise SupanclError(
        f"the episodes' classifiers did not converge in {MOST_STEPS} steps; those of unit features would (--normalize)"
    )


def episode_answers(values: Tensor, support: Tensor, query: Tensor, strength: float = 1.0) -> Tensor:
    """The way (0, 1, ...) that each query of each episode is taken for, in the shape of `query`.

    `support` (E, ways, shots) and `query` (E, ways, queries) hold rows of `values`; what is said of -1 means nothing.
    """
    ways, shots = support.shape[1:]
    points = values[support.flatten(1)].double()
    asked = values[query.clamp(min=0).flatten(1)].double()
    sign = 2 * torch.eye(ways, dtype=torch.float64, device=values.device).repeat_interleave(shots, 1) - 1
    coefficients = dual_logistic(points @ points.mT + 1, sign, strength)
    return ((asked @ points.mT + 1) @ coefficients.mT).argmax(-1).view(query.shape)


def _shares(values: Tensor, support: Tensor, query: Tensor, strength: float) -> Tensor:
    """(E,) share of right answers."""
    known = query >= 0
    truth = torch.arange(support.shape[1], device=values.device)[:, None]
    right = (episode_answers(values, support, query, strength) == truth) & known
    return right.sum((1, 2)).double() / known.sum((1, 2))


def _chunks(episodes: Episodes, chunk: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    for support, query in zip(episodes.support.split(chunk), episodes.query.split(chunk), strict=True):
        yield support.to(device), query.to(device)


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

    `fill_queries`: classes with few images have as many queries as the others (see `sample_episodes`). Memory follows
    `chunk`, the episodes solved at a time.
    """
    kept = check_features("few-shot", features)
    drawn = sample_episodes(kept.labels.cpu(), ways, shots, queries, episodes, seed, fill_queries)
    values = kept.values.to(device) if device is not None else kept.values
    values = F.normalize(values, dim=1) if normalize else values
    shares = [_shares(values, support, query, strength) for support, query in _chunks(drawn, chunk, values.device)]
    accuracies = 100 * torch.cat(shares).cpu()
    asked, interval = (drawn.query >= 0).sum(-1), episode_half_width(accuracies)
    digest = hashlib.sha256(drawn.support.numpy().tobytes() + drawn.query.numpy().tobytes()).hexdigest()[:16]
    used = (int(asked.min()), int(asked.max()))
    told = (ways, shots, queries, seed, drawn.dropped, digest, used, fill_queries)
    return FewShot(float(accuracies.mean()), interval, tuple(accuracies.tolist()), *told)


def paired_difference(a: FewShot, b: FewShot) -> Difference:
    """How much better a is than b on the same episodes: far sharper than comparing two intervals."""
    if a.drawn != b.drawn:
        raise BadInput(
            "the two few-shot results come from different episodes: use the same images, ways, shots, "
            "queries, episodes and seed for both"
        )
    difference = torch.tensor(a.accuracies, dtype=torch.float64) - torch.tensor(b.accuracies, dtype=torch.float64)
    return Difference(float(difference.mean()), episode_half_width(difference))
