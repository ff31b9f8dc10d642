"""k-NN in every way it may be chunked, stored and measured, against a full sort."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from supancl.probes import Features, accuracy, knn, knn_accuracy, knn_leave_one_out, neighbours
from supancl.probes.knn import grouped_topk, knn_answers
from tests.probes.blobs import blobs


def predicted(reference: Features, queries: torch.Tensor, k: int = 20, **how) -> torch.Tensor:
    everyone = Features(queries, torch.zeros(len(queries), dtype=torch.long))
    return knn_answers(reference, everyone, (k,), **how)[k]


def similarities(queries: torch.Tensor, references: torch.Tensor, metric: str) -> torch.Tensor:
    if metric == "cosine":
        return F.normalize(queries.double(), dim=1) @ F.normalize(references.double(), dim=1).T
    return -0.5 * torch.cdist(queries.double(), references.double()).square()


@pytest.mark.parametrize("k", [1, 5, 50])
def test_knn_is_the_weighted_vote_of_its_definition(k: int) -> None:
    reference, queries = blobs(40), blobs(25, seed=1)
    answers = predicted(reference, queries.values, k=k, temperature=0.1)
    stored = F.normalize(reference.values, dim=1)
    for query, found in zip(F.normalize(queries.values, dim=1), answers, strict=True):
        order = sorted(range(40), key=lambda i: -float(query @ stored[i]))[:k]
        votes = [0.0] * 4
        for i in order:
            votes[int(reference.labels[i])] += math.exp(float(query @ stored[i]) / 0.1)
        assert int(found) == int(np.argmax(votes))


def test_knn_ignores_the_unlabelled_and_does_not_overflow() -> None:
    reference, queries = blobs(40), blobs(25, seed=1)
    labels = torch.cat([reference.labels, torch.full((25,), -1)])
    hidden = Features(torch.cat([reference.values, queries.values]), labels)
    assert knn_accuracy(hidden, queries) == knn_accuracy(reference, queries)
    assert knn_accuracy(reference, queries, temperature=1e-3) > 50
    assert math.isnan(knn_accuracy(reference, Features(queries.values, torch.full((25,), -1))))


@pytest.mark.parametrize("metric", ["cosine", "l2"])
@pytest.mark.parametrize(("chunk", "reference_chunk"), [(7, 11), (1000, 13), (3, 1000)])
def test_neighbours_are_those_of_a_full_sort(metric: str, chunk: int, reference_chunk: int) -> None:
    reference, queries = blobs(120, width=9), blobs(50, width=9, seed=1)
    found = neighbours(reference, queries.values, 10, metric, chunk, reference_chunk)
    expected = similarities(queries.values, reference.values, metric).sort(1, descending=True)
    assert torch.equal(found.rows, expected.indices[:, :10])
    torch.testing.assert_close(found.similarity.double(), expected.values[:, :10], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("columns", "k"), [(5000, 20), (997, 3), (64, 1), (50, 50), (300, 200), (10, 20)])
def test_the_best_are_those_of_topk(columns: int, k: int) -> None:
    values = torch.randn(6, columns, generator=torch.Generator().manual_seed(columns))
    found, where = grouped_topk(values, k)
    expected = values.topk(min(k, columns), dim=1)
    assert torch.equal(found, expected.values)
    assert torch.equal(values.gather(1, where), expected.values)
    values[:, -1] = 100.0  # may be left over when columns are grouped
    assert (grouped_topk(values, k)[1][:, 0] == columns - 1).all()


@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_leave_one_out_is_a_search_among_the_others(metric: str) -> None:
    features = blobs(60, noise=1.5)
    features.labels[::7] = -1
    known = features.labelled()
    right = []
    for row in range(len(known.labels)):
        others = torch.arange(len(known.labels)) != row
        rest = Features(known.values[others], known.labels[others])
        right.append(int(predicted(rest, known.values[row : row + 1], k=5, metric=metric)) == int(known.labels[row]))
    found = knn_answers(known, known, (5,), metric=metric, leave_one_out=True)[5]
    assert accuracy(found, known.labels) == pytest.approx(100 * np.mean(right))
    if metric == "cosine":
        assert knn_leave_one_out(features, 5) == pytest.approx(100 * np.mean(right))
    everyone = neighbours(known, known.values, 1000, metric, leave_one_out=True)
    assert everyone.rows.shape == (len(known.labels), len(known.labels) - 1)
    assert torch.isfinite(everyone.similarity).all()


def test_votes_of_many_classes_are_counted_for_some_images_at_a_time(monkeypatch) -> None:
    reference, queries = blobs(40, noise=2.0), blobs(25, seed=1)
    whole = predicted(reference, queries.values)
    monkeypatch.setattr(knn, "MOST_VOTES", 12)
    assert torch.equal(predicted(reference, queries.values), whole)


def test_rounding_brings_no_image_nearer_than_itself() -> None:
    values = 100 * torch.randn(64, 33, generator=torch.Generator().manual_seed(0))
    similarity = neighbours(Features(values, torch.zeros(64, dtype=torch.long)), values, 1, "l2").similarity
    assert similarity.max() == 0
