"""k nearest neighbours, exact and in chunks: a vote weighted by similarity.

References are read in chunks, and each query keeps its best k so far. Memory depends on the chunk sizes, not on the
number of references, which may be in half precision or in a memory-mapped file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.errors import BadInput
from supancl.probes.features import Features, Labelled, Rows, check_finite, check_shape, read_rows
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


def _prepare(rows: Tensor, metric: Metric, centre: Tensor | None) -> Tensor:
    """Unit rows for cosine, centred rows for l2 (which improves precision)."""
    return F.normalize(rows, dim=1) if metric == "cosine" else rows - centre if centre is not None else rows


def _similarity(queries: Tensor, references: Tensor, metric: Metric) -> Tensor:
    if metric == "cosine":
        return queries @ references.T
    norms = references.square().sum(1)
    return (
        torch.addmm(-0.5 * norms, queries, references.T)
        .sub_(0.5 * queries.square().sum(1, keepdim=True))
        .clamp_(max=0.0)
    )


def _blocks(rows: Rows, chunk: int, device: torch.device, name: str) -> Iterator[tuple[int, Tensor]]:
    for start in range(0, len(rows), chunk):
        block = read_rows(rows, start, start + chunk, device)
        check_finite(name, block, start)
        yield start, block


def neighbours(
    reference: Labelled,
    queries: Rows,
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
    has_label = reference.labels.to(device) >= 0
    k = min(k, int(has_label.sum()) - leave_one_out)
    centre = read_rows(reference.values, 0, reference_chunk, device).mean(0) if metric == "l2" else None
    values = torch.full((len(queries), k), -math.inf, device=device)
    rows = torch.zeros(len(queries), k, dtype=torch.long, device=device)
    all_labelled = bool(has_label.all())
    tiles = _tiles(queries, reference.values, chunk, reference_chunk, device, lambda x: _prepare(x, metric, centre))
    count = math.ceil(len(queries) / chunk) * math.ceil(len(reference.values) / reference_chunk)
    for start, block, begin, references in track(tiles, "comparing features", count):
        similarity = _similarity(block, references, metric)
        if not all_labelled:
            similarity[:, ~has_label[begin : begin + len(references)]] = -math.inf
        if leave_one_out:
            _mask_self(similarity, start - begin)
        own = slice(start, start + len(block))
        _merge(values[own], rows[own], *grouped_topk(similarity, k), begin)
    return Neighbours(values, rows)


def _tiles(
    queries: Rows,
    references: Rows,
    chunk: int,
    reference_chunk: int,
    device: torch.device,
    prepare: Callable[[Tensor], Tensor],
) -> Iterator[tuple[int, Tensor, int, Tensor]]:
    """Every chunk of queries with every chunk of references, each with the number of its first row."""
    for start, block in _blocks(queries, 16 * chunk, device, "query"):
        block = prepare(block)
        for begin, part in _blocks(references, reference_chunk, device, "reference"):
            part = prepare(part)
            for low in range(0, len(block), chunk):
                yield start + low, block[low : low + chunk], begin, part


def _mask_self(similarity: Tensor, shift: int) -> None:
    """Set the similarity of each image with itself, row i and column i + shift, to minus infinity."""
    if -len(similarity) < shift < similarity.shape[1]:
        similarity.diagonal(shift).fill_(-math.inf)


def _merge(values: Tensor, rows: Tensor, new_values: Tensor, new_columns: Tensor, begin: int) -> None:
    """Update the best values and rows in place with new candidates."""
    both, both_rows = torch.cat([values, new_values], 1), torch.cat([rows, new_columns + begin], 1)
    top, order = both.topk(values.shape[1], dim=1)
    values.copy_(top)
    rows.copy_(both_rows.gather(1, order))


def count_votes(matches: Neighbours, labels: Tensor, k: int, temperature: float, classes: int) -> Tensor:
    """(queries, classes): the sum of exp(similarity / temperature) over the k nearest of each class.

    The nearest one counts 1. A temperature of inf is a majority vote. With pairs (N, L, 2) as labels, a neighbour
    divides its vote among its classes by their weights.
    """
    weight = vote_weights(matches, k, temperature)
    votes = weight.new_zeros(len(weight), classes)
    neighbour_labels = labels.to(weight.device)[matches.rows[:, :k]]
    if labels.ndim == 3:
        numbers, weights = neighbour_labels.unbind(-1)  # padding has weight 0, whatever its class
        divided = weight[..., None] * weights.to(weight) / weights.sum(-1, keepdim=True)
        return votes.scatter_add_(1, numbers.long().clamp(min=0).flatten(1), divided.flatten(1))
    return votes.scatter_add_(1, neighbour_labels, weight)


def vote_weights(matches: Neighbours, k: int, temperature: float) -> Tensor:
    """(queries, k): exp(similarity / temperature) of each neighbour, relative to the nearest one's."""
    if not temperature > 0:
        raise BadInput(f"temperature = {temperature:g}: must be above 0")
    similarity = matches.similarity[:, :k]
    # relative to the nearest one, because exp(1 / 0.01) would overflow
    return ((similarity - similarity[:, :1]) / temperature).exp()


def vote(matches: Neighbours, labels: Tensor, k: int, temperature: float) -> Tensor:
    """The class with the most votes; see `count_votes`."""
    classes = int(labels.max()) + 1
    size = max(1, MOST_VOTES // classes)
    parts = [Neighbours(*part) for part in zip(matches.similarity.split(size), matches.rows.split(size), strict=True)]
    return torch.cat([count_votes(part, labels, k, temperature, classes).argmax(1) for part in parts])


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
    reference: Labelled,
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
    labelled, pairs = queries.labelled(), getattr(reference, "pairs", None)
    if leave_one_out and len(reference.labels) < 2:
        raise BadInput(f"leave-one-out needs two labelled images, and there are {len(reference.labels)}")
    matches = neighbours(reference, labelled.values, max(ks), metric, device=device, leave_one_out=leave_one_out)
    if pairs is None:
        return {k: vote(matches, reference.labels, k, temperature).cpu() for k in ks}
    votes = {k: count_votes(matches, pairs, k, temperature, classes) for k in ks}
    return {k: equalize(vote / vote.sum(1, keepdim=True)).cpu() for k, vote in votes.items()}


def knn_predict(
    reference: Labelled,
    queries: Rows,
    k: int = DEFAULT_K,
    temperature: float = 0.1,
    chunk: int = QUERY_CHUNK,
    metric: Metric = "cosine",
    reference_chunk: int = REFERENCE_CHUNK,
    device: torch.device | str | None = None,
) -> Tensor:
    """The class of each query: its k most similar references vote with weight exp(similarity / temperature).

    >>> reference = Features(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]), torch.tensor([7, 7, 2]))
    >>> knn_predict(reference, torch.tensor([[2.0, 0.1], [0.1, 1.0]]), k=2)
    tensor([7, 2])
    """
    if not bool((reference.labels >= 0).any()):
        raise BadInput("reference features: no labelled image; k-NN needs at least one")
    matches = neighbours(reference, queries, k, metric, chunk, reference_chunk, device)
    return vote(matches, reference.labels, k, temperature)


def knn_accuracy(
    reference: Labelled,
    queries: Features,
    k: int = DEFAULT_K,
    temperature: float = 0.1,
    chunk: int = QUERY_CHUNK,
    metric: Metric = "cosine",
    reference_chunk: int = REFERENCE_CHUNK,
    device: torch.device | str | None = None,
) -> float:
    """Accuracy in percent over the labelled queries; nan where one side has no label."""
    labelled = queries.labelled()
    if not len(labelled) or not bool((reference.labels >= 0).any()):
        return math.nan
    predicted = knn_predict(reference, labelled.values, k, temperature, chunk, metric, reference_chunk, device)
    return 100 * float((predicted == labelled.labels.to(predicted.device)).double().mean())


def knn_leave_one_out(features: Features, k: int = DEFAULT_K, temperature: float = 0.1) -> float:
    """Accuracy in percent on one split, each labelled image classified by all the others."""
    labelled = features.labelled()
    predicted = knn_answers(labelled, labelled, (k,), temperature, leave_one_out=True)[k]
    return 100 * float((predicted == labelled.labels.cpu()).double().mean())
