"""k nearest neighbours, exact and in chunks: a vote weighted by similarity."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.evaluate.features import Features


def knn_predict(
    reference: Features, queries: Tensor, k: int = 20, temperature: float = 0.1, chunk: int = 1024
) -> Tensor:
    """The class of each query: its k most similar references vote with weight exp(cosine / temperature)."""
    reference = reference.labelled()
    stored = F.normalize(reference.values, dim=1)
    classes = int(reference.labels.max()) + 1 if len(reference.labels) else 1
    k = min(k, len(stored))
    predictions = []
    for part in F.normalize(queries, dim=1).split(chunk):
        similarity, neighbour = (part @ stored.T).topk(k, dim=1)
        votes = torch.zeros(len(part), classes)
        # relative to the nearest one: exp(1 / 0.01) would overflow
        weight = ((similarity - similarity[:, :1]) / temperature).exp()
        votes.scatter_add_(1, reference.labels[neighbour], weight)
        predictions.append(votes.argmax(1))
    return torch.cat(predictions) if predictions else torch.empty(0, dtype=torch.long)


def knn_accuracy(reference: Features, queries: Features, k: int = 20, temperature: float = 0.1) -> float:
    """Share of the labelled queries whose class the vote finds, in percent."""
    queries = queries.labelled()
    if not len(queries.labels) or not len(reference.labelled().labels):
        return float("nan")
    predicted = knn_predict(reference, queries.values, k, temperature)
    return 100 * float((predicted == queries.labels).double().mean())
