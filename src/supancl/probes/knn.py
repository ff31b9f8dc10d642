"""k nearest neighbours, exact and in chunks: a vote weighted by similarity.

References stream past the queries by the chunk, each query keeping its best k so far: memory follows the chunk sizes,
not the number of references, which may lie in half precision or in a memory-mapped file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.errors import BadInput
from supancl.probes.features import Features, Labelled, Rows, check_finite, check_shape, chunk_of

Metric = Literal["cosine", "l2"]
REFERENCES = 16384  # references compared at a time


class Neighbours(NamedTuple):
    """The k most similar references of each query, the nearest first: similarity, and row of the reference.

    Similarity is the cosine, or -||q - r||^2 / 2, which on unit features is the cosine less one.
    """

    similarity: Tensor
    rows: Tensor


def best(similarity: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`topk` of each row, sorted, in a third of its time on wide rows.

    The columns are dealt into groups; the k largest lie in the k groups with the largest maxima, so that a cheap
    maximum replaces the selection among all but k groups.
    """
    rows, columns = similarity.shape
    deal = math.isqrt(max(columns // max(k, 1), 1))
    groups = columns // max(deal, 1)
    if deal < 4 or groups <= k:
        values, found = similarity.topk(min(k, columns), dim=1)
        return values, found
    whole = groups * deal
    chosen = similarity[:, :whole].unflatten(1, (deal, groups)).amax(1).topk(k, dim=1, sorted=False).indices
    member = (chosen[:, None, :] + groups * torch.arange(deal, device=similarity.device)[:, None]).flatten(1)
    rest = torch.arange(whole, columns, device=similarity.device).expand(rows, -1)
    member = torch.cat([member, rest], 1)
    values, place = similarity.gather(1, member).topk(k, dim=1)
    return values, member.gather(1, place)


def _prepared(part: Tensor, metric: Metric, centre: Tensor | None) -> Tensor:
    """Rows whose products with each other are similarities, or with the l2 metric distances apart from the norms."""
    return F.normalize(part, dim=1) if metric == "cosine" else part - centre if centre is not None else part


def _compared(queries: Tensor, part: Tensor, metric: Metric) -> Tensor:
    if metric == "cosine":
        return queries @ part.T
    norms = part.square().sum(1)
    return torch.addmm(-0.5 * norms, queries, part.T).sub_(0.5 * queries.square().sum(1, keepdim=True)).clamp_(max=0.0)


def _query_blocks(queries: Rows, chunk: int, device: torch.device, name: str) -> Iterator[tuple[int, Tensor]]:
    for start in range(0, len(queries), chunk):
        block = chunk_of(queries, start, start + chunk, device)
        check_finite(name, block, start)
        yield start, block


def neighbours(
    reference: Labelled,
    queries: Rows,
    k: int,
    metric: Metric = "cosine",
    chunk: int = 1024,
    reference_chunk: int = REFERENCES,
    device: torch.device | str | None = None,
    leave_one_out: bool = False,
) -> Neighbours:
    """The k nearest labelled references of every query, exactly.

    `chunk` queries meet `reference_chunk` references at a time; up to 16 chunks of queries stay on the device while
    the references stream past once. `leave_one_out` says that the queries are the references: none is its own
    neighbour.
    """
    if metric not in ("cosine", "l2"):
        raise BadInput(f"metric = {metric!r}: must be cosine or l2")
    if k < 1:
        raise BadInput(f"k = {k}: must be at least 1")
    check_shape("reference", reference)
    if len(queries) and queries.shape[1] != reference.values.shape[1]:
        raise BadInput(
            f"query features are {queries.shape[1]} wide, reference features {reference.values.shape[1]}: "
            "embed both with the same encoder"
        )
    device = torch.device(device if device is not None else getattr(reference.values, "device", "cpu"))
    known = reference.labels.to(device) >= 0
    k = min(k, int(known.sum()) - leave_one_out)
    centre = chunk_of(reference.values, 0, reference_chunk, device).mean(0) if metric == "l2" else None
    similarities, found = [], []
    for start, block in _query_blocks(queries, 16 * chunk, device, "query"):
        block = _prepared(block, metric, centre)
        values = torch.full((len(block), k), -math.inf, device=device)
        rows = torch.zeros(len(block), k, dtype=torch.long, device=device)
        for begin, part in _query_blocks(reference.values, reference_chunk, device, "reference"):
            hidden = ~known[begin : begin + len(part)]
            part, some_hidden = _prepared(part, metric, centre), bool(hidden.any())
            for low in range(0, len(block), chunk):
                now = slice(low, low + chunk)
                similarity = _compared(block[now], part, metric)
                if some_hidden:
                    similarity[:, hidden] = -math.inf
                if leave_one_out:
                    _forget_self(similarity, start + low - begin)
                _merge(values[now], rows[now], *best(similarity, k), begin)
        similarities.append(values)
        found.append(rows)
    empty = torch.empty(0, k, device=device)
    return Neighbours(torch.cat(similarities or [empty]), torch.cat(found or [empty.long()]))


def _forget_self(similarity: Tensor, shift: int) -> None:
    """Minus infinity where row i meets column i + shift, the same image."""
    if -len(similarity) < shift < similarity.shape[1]:
        similarity.diagonal(shift).fill_(-math.inf)


def _merge(values: Tensor, rows: Tensor, new_values: Tensor, new_columns: Tensor, begin: int) -> None:
    """The best of what was kept and what came, kept in place."""
    both, where = torch.cat([values, new_values], 1), torch.cat([rows, new_columns + begin], 1)
    top, place = both.topk(values.shape[1], dim=1)
    values.copy_(top)
    rows.copy_(where.gather(1, place))


def vote(found: Neighbours, labels: Tensor, k: int, temperature: float, classes: int) -> Tensor:
    """The class with the largest sum of exp(similarity / temperature) over the k nearest; inf counts heads."""
    if not temperature > 0:
        raise BadInput(f"temperature = {temperature:g}: must be above 0")
    similarity = found.similarity[:, :k]
    # relative to the nearest one: exp(1 / 0.01) would overflow
    weight = ((similarity - similarity[:, :1]) / temperature).exp()
    votes = weight.new_zeros(len(weight), classes)
    return votes.scatter_add_(1, labels.to(weight.device)[found.rows[:, :k]], weight).argmax(1)


def _classes(labels: Tensor) -> int:
    return int(labels.max()) + 1


def knn_predict(
    reference: Labelled,
    queries: Rows,
    k: int = 20,
    temperature: float = 0.1,
    chunk: int = 1024,
    metric: Metric = "cosine",
    reference_chunk: int = REFERENCES,
    device: torch.device | str | None = None,
) -> Tensor:
    """The class of each query: its k most similar references vote with weight exp(similarity / temperature).

    >>> reference = Features(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]), torch.tensor([7, 7, 2]))
    >>> knn_predict(reference, torch.tensor([[2.0, 0.1], [0.1, 1.0]]), k=2)
    tensor([7, 2])
    """
    if not bool((reference.labels >= 0).any()):
        raise BadInput("reference features: no labelled image, so there is nobody to vote")
    found = neighbours(reference, queries, k, metric, chunk, reference_chunk, device)
    return vote(found, reference.labels, k, temperature, _classes(reference.labels))


def knn_accuracy(
    reference: Labelled,
    queries: Features,
    k: int = 20,
    temperature: float = 0.1,
    chunk: int = 1024,
    metric: Metric = "cosine",
    reference_chunk: int = REFERENCES,
    device: torch.device | str | None = None,
) -> float:
    """Share of the labelled queries whose class the vote finds, in percent."""
    return knn_accuracies(reference, queries, (k,), temperature, chunk, metric, reference_chunk, device)[k]


def knn_accuracies(
    reference: Labelled,
    queries: Features,
    ks: Sequence[int],
    temperature: float = 0.1,
    chunk: int = 1024,
    metric: Metric = "cosine",
    reference_chunk: int = REFERENCES,
    device: torch.device | str | None = None,
) -> dict[int, float]:
    """`knn_accuracy` for several k from one search."""
    asked = queries if bool((queries.labels >= 0).all()) else queries.labelled()
    if not len(asked.labels) or not bool((reference.labels >= 0).any()):
        return dict.fromkeys(ks, math.nan)
    found = neighbours(reference, asked.values, max(ks), metric, chunk, reference_chunk, device)
    return _scores(found, reference.labels, asked.labels, ks, temperature)


def knn_leave_one_out(
    features: Labelled,
    ks: Sequence[int] = (20,),
    temperature: float = 0.1,
    chunk: int = 1024,
    metric: Metric = "cosine",
    reference_chunk: int = REFERENCES,
    device: torch.device | str | None = None,
) -> dict[int, float]:
    """Accuracy in percent by k on one split, each labelled image judged by all the others."""
    known = features.labels >= 0
    if int(known.sum()) < 2:
        raise BadInput(f"leave-one-out needs two labelled images, there are {int(known.sum())}")
    found = neighbours(features, features.values, max(ks), metric, chunk, reference_chunk, device, leave_one_out=True)
    known = known.to(found.rows.device)
    kept = Neighbours(found.similarity[known], found.rows[known])
    return _scores(kept, features.labels, features.labels[known.cpu()], ks, temperature)


def _scores(
    found: Neighbours, labels: Tensor, truth: Tensor, ks: Sequence[int], temperature: float
) -> dict[int, float]:
    truth = truth.to(found.rows.device)
    return {
        k: 100 * float((vote(found, labels, k, temperature, _classes(labels)) == truth).double().mean()) for k in ks
    }
