"""k-NN, linear probe, variance and features against definitions."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from supancl import embed, knn_accuracy, linear_accuracy, variance
from supancl.core.encoders import EncoderSpec
from supancl.data.views.evaluation import evaluation_view
from supancl.probes import Features, knn_predict
from tests.tiny import SIDE, tiny_data


def blobs(n: int, classes: int = 3, seed: int = 0) -> Features:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    centres = torch.randn(classes, 6, generator=torch.Generator().manual_seed(99))
    return Features(centres[labels] + 0.6 * torch.randn(n, 6, generator=generator), labels)


@pytest.mark.parametrize("k", [1, 5, 50])
def test_knn_is_the_weighted_vote_of_its_definition(k: int) -> None:
    reference, queries = blobs(40), blobs(25, seed=1)
    predicted = knn_predict(reference, queries.values, k=k, temperature=0.1, chunk=7)
    stored = F.normalize(reference.values, dim=1)
    for query, found in zip(F.normalize(queries.values, dim=1), predicted, strict=True):
        order = sorted(range(40), key=lambda i: -float(query @ stored[i]))[:k]
        votes = [0.0] * 3
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


def test_linear_probe_separates_what_is_separable() -> None:
    fit, test = blobs(300), blobs(200, seed=1)
    assert linear_accuracy(fit, test) > 85
    shuffled = Features(fit.values, fit.labels[torch.randperm(300, generator=torch.Generator().manual_seed(0))])
    assert linear_accuracy(shuffled, test) < 60
    assert math.isnan(linear_accuracy(Features(fit.values, torch.zeros(300, dtype=torch.long)), test))


def test_variance_is_its_definition() -> None:
    features = blobs(30)
    values = F.normalize(features.values.double(), dim=1)
    total = np.mean([float((z - values.mean(0)).square().sum()) for z in values])
    means = {int(y): values[features.labels == y].mean(0) for y in features.labels}
    within = np.mean([float((z - means[int(y)]).square().sum()) for z, y in zip(values, features.labels, strict=True)])
    found = variance(features)
    assert found.total == pytest.approx(total)
    assert found.within == pytest.approx(within)
    assert found.ratio == pytest.approx(within / total)
    assert variance(Features(3 * features.values, features.labels), normalize=False).total == pytest.approx(
        9 * variance(features, normalize=False).total
    )


def test_embed_gives_eval_mode_features_in_order_and_puts_the_mode_back() -> None:
    torch.manual_seed(0)
    encoder = EncoderSpec("cnn", channels=1, size=SIDE, width=8, mean=(0.5,), std=(0.5,)).build().train()
    data = tiny_data()
    found = embed(encoder, data.train, batch_size=7)
    assert encoder.training
    encoder.eval()
    batch = data.train.batch(torch.arange(len(data.train)))
    expected = encoder(evaluation_view(batch, SIDE, (0.5,), (0.5,)))
    torch.testing.assert_close(found.values, expected.detach())
    assert torch.equal(found.labels, data.train.labels)
