"""k nearest neighbours, exact and in chunks: a vote weighted by similarity.

References are read in chunks, and each query keeps its best k so far. Memory depends on the chunk sizes, not on the
number of references, which may be in half precision or in a memory-mapped file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.core.labels import Labels
from supancl.errors import BadInput
from supancl.probes.features import Features, check_features, check_width
from supancl.reporter import track

Metric = Literal["cosine", "l2"]
QUERY_CHUNK = 1024  # queries compared with
REFERENCE_CHUNK = 16384  # so many references at a time
MOST_VOTES = 2**24  # images x classes whose votes are in memory at a time
DEFAULT_K = 20
QUARTER = 0.25  # neighbours per reference of a class


class Neighbours(NamedTuple):
    """The k most similar references of each query, the nearest first: similarity, and row of the reference.

    Similarity is the cosine, or -||q - r||^2 / 2, which for unit features is the cosine minus one.
    """

    similarity: Tensor
    rows: Tensor


def grouped_topk(similarity: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Sorted `topk` of each row, in a third of its time on wide rows.

    Columns are divided into groups. The k largest are in the k groups with the largest maxima, so a cheap maximum
    excludes all other groups.
    """
    rows, columns = similarity.shape
    group_size = math.isqrt(max(columns // max(k, 1), 1))
    groups = columns // max(group_size, 1)
    if group_size < 4 or groups <= k:
        values, columns_found = similarity.topk(min(k, columns), dim=1)
        return values, columns_found
    grouped_columns = groups * group_size
    top_groups = (
        similarity[:, :grouped_columns].unflatten(1, (group_size, groups)).amax(1).topk(k, dim=1, sorted=False).indices
    )
    member = (top_groups[:, None, :] + groups * torch.arange(group_size, device=similarity.device)[:, None]).flatten(1)
    remaining = torch.arange(grouped_columns, columns, device=similarity.device).expand(rows, -1)
    member = torch.cat([member, remaining], 1)
    values, order = similarity.gather(1, member).topk(k, dim=1)
    return values, member.gather(1, order)


def _similarity(queries: Tensor, references: Tensor, metric: Metric) -> Tensor:
    if metric == "cosine":
        return queries @ references.T
    norms = references.square().sum(1)
    return (
        torch.addmm(-0.5 * norms, queries, references.T)
        .sub_(0.5 * queries.square().sum(1, keepdim=True))
        .clamp_(max=0.0)
    )


def neighbours(
    reference: Features,
    queries: Tensor,
    k: int,
    metric: Metric = "cosine",
    chunk: int = QUERY_CHUNK,
    reference_chunk: int = REFERENCE_CHUNK,
    device: torch.device | str | None = None,
    leave_one_out: bool = False,
) -> Neighbours:
    """The k nearest labelled references of every query, exactly.

    `chunk` queries are compared with `reference_chunk` references at a time; 16 chunks of queries stay on the device
    per pass over the references. With `leave_one_out` the queries are the references, and none is its own neighbour.
    """
    if metric not in ("cosine", "l2") or k < 1:
        raise BadInput(f"metric = {metric!r}, k = {k}: the metric must be cosine or l2, and k at least 1")
    check_features("reference", reference)
    if len(queries):
        check_features("query", Features(queries, torch.zeros(len(queries))))
        check_width("query", queries, reference.values.shape[1])
    device = torch.device(device if device is not None else reference.values.device)
    has_label = reference.labels.to(device) >= 0
    k, all_labelled = min(k, int(has_label.sum()) - leave_one_out), bool(has_label.all())
    values = torch.full((len(queries), k), -math.inf, device=device)
    rows = torch.zeros(len(queries), k, dtype=torch.long, device=device)
    centre = reference.values[:reference_chunk].to(device, torch.float32).mean(0)  # improves the precision of l2

    def chunks(values: Tensor, size: int) -> Iterator[tuple[int, Tensor]]:
        for start in range(0, len(values), size):
            block = values[start : start + size].to(device, torch.float32)
            yield start, F.normalize(block, dim=1) if metric == "cosine" else block - centre

    def tiles() -> Iterator[tuple[int, Tensor, int, Tensor]]:
        for start, block in chunks(queries, 16 * chunk):
            for begin, part in chunks(reference.values, reference_chunk):
                for low in range(0, len(block), chunk):
                    yield start + low, block[low : low + chunk], begin, part

    count = math.ceil(len(queries) / chunk) * math.ceil(len(reference) / reference_chunk)
    for start, block, begin, part in track(tiles(), "comparing features", count):
        similarity = _similarity(block, part, metric)
        if not all_labelled:
            similarity[:, ~has_label[begin : begin + len(part)]] = -math.inf
        if leave_one_out and -len(similarity) < start - begin < similarity.shape[1]:
            similarity.diagonal(start - begin).fill_(-math.inf)
        new_values, columns = grouped_topk(similarity, k)
        own = slice(start, start + len(block))
        both, both_rows = torch.cat([values[own], new_values], 1), torch.cat([rows[own], columns + begin], 1)
        values[own], order = both.topk(k, dim=1)
        rows[own] = both_rows.gather(1, order)
    return Neighbours(values, rows)


def count_votes(matches: Neighbours, labels: Tensor, k: int, temperature: float, classes: int) -> Tensor:
    """(queries, classes): the sum of exp(similarity / temperature) over the k nearest of each class.

    The nearest one counts 1. A temperature of inf is a majority vote. With pairs (N, L, 2) as labels, a neighbour
    divides its vote among its classes by their weights.
    """
    weight = vote_weights(matches, k, temperature)
    theirs = Labels.of(labels.to(weight.device)[matches.rows[:, :k].flatten()])
    weights = theirs.weights.to(weight)  # 0 for padding
    divided = weight.flatten()[:, None] * weights / weights.sum(1, keepdim=True)
    numbers = theirs.classes.clamp(min=0).view(len(weight), -1)
    return weight.new_zeros(len(weight), classes).scatter_add_(1, numbers, divided.view_as(numbers))


def vote_weights(matches: Neighbours, k: int, temperature: float) -> Tensor:
    """(queries, k): exp(similarity / temperature) of each neighbour, relative to the nearest one's."""
    if not temperature > 0:
        raise BadInput(f"temperature = {temperature:g}: must be above 0")
    similarity = matches.similarity[:, :k]
    # relative to the nearest one, because exp(1 / 0.01) would overflow
    return ((similarity - similarity[:, :1]) / temperature).exp()


def equalize(values: Tensor) -> Tensor:
    """Values rounded to 18 bits: parts of a vote that differ only by rounding must not rank images."""
    mantissa, exponent = torch.frexp(values)
    return torch.ldexp((mantissa * 2**18).round() / 2**18, exponent)


def default_k(references: Tensor, leave_one_out: bool = False) -> int:
    """20 neighbours, or a quarter of the references of the median class if that is less; at least 1.

    With few references, 20 neighbours are mostly of other classes (docs/evaluate.md has figures). In a class that is
    tested by leaving one out there is one reference less.

    >>> default_k(torch.arange(4).repeat_interleave(100)), default_k(torch.arange(4).repeat_interleave(8))
    (20, 2)
    """
    _, sizes = torch.unique(references[references >= 0], return_counts=True)
    if not len(sizes):
        return DEFAULT_K
    return max(1, min(DEFAULT_K, round((int(sizes.median()) - leave_one_out) * QUARTER)))


def knn_answers(
    reference: Features,
    queries: Features,
    ks: Sequence[int],
    temperature: float = 0.1,
    metric: Metric = "cosine",
    device: torch.device | str | None = None,
    leave_one_out: bool = False,
    classes: int = 0,
) -> dict[int, Tensor]:
    """By k, the class of each labelled query; of several labels, (queries, classes), each class's part of the votes.

    With `leave_one_out` the queries are the first of the references, all labelled, and none is its own neighbour.
    """
    values, pairs = queries.labelled().values, reference.pairs
    if leave_one_out and len(reference.labels) < 2:
        raise BadInput(f"leave-one-out needs two labelled images, and there are {len(reference.labels)}")
    matches = neighbours(reference, values, max(ks), metric, device=device, leave_one_out=leave_one_out)
    labels, classes = (reference.labels, int(reference.labels.max()) + 1) if pairs is None else (pairs, classes)
    size = max(1, MOST_VOTES // classes)
    parts = [Neighbours(*part) for part in zip(matches.similarity.split(size), matches.rows.split(size), strict=True)]
    answers = {}
    for k in ks:
        votes = (count_votes(part, labels, k, temperature, classes) for part in parts)
        said = [part.argmax(1) if pairs is None else equalize(part / part.sum(1, keepdim=True)) for part in votes]
        answers[k] = torch.cat(said).cpu() if said else torch.empty(0, dtype=torch.long)
    return answers


def knn_accuracy(
    reference: Features,
    queries: Features,
    k: int = DEFAULT_K,
    temperature: float = 0.1,
    metric: Metric = "cosine",
    device: torch.device | str | None = None,
    leave_one_out: bool = False,
) -> float:
    """Accuracy in percent over the labelled queries; nan where one side has no label.

    The k most similar references of an image vote with weight exp(similarity / temperature).

    >>> reference = Features(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]), torch.tensor([7, 7, 2]))
    >>> knn_accuracy(reference, Features(torch.tensor([[2.0, 0.1], [0.1, 1.0]]), torch.tensor([7, 2])), k=2)
    100.0
    """
    reference, queries = reference.labelled() if leave_one_out else reference, queries.labelled()
    if not len(queries) or not bool((reference.labels >= 0).any()):
        return math.nan
    predicted = knn_answers(reference, queries, (k,), temperature, metric, device, leave_one_out)[k]
    return 100 * float((predicted == queries.labels.cpu()).double().mean())


def knn_leave_one_out(features: Features, k: int = DEFAULT_K, temperature: float = 0.1) -> float:
    """Accuracy in percent on one split, each labelled image classified by all the others."""
    return knn_accuracy(features, features, k, temperature, leave_one_out=True)
