"""Where a measure's rule just begins or just ends to hold: two classes, a distance of nothing, the last row."""

import hashlib
import math

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from supancl import linear_accuracy
from supancl.probes import Features, few_shot, neighbours, sample_episodes
from tests.probes.blobs import blobs


@pytest.mark.parametrize("regularization", [1e-3, 1.0])
def test_two_classes_are_enough_for_a_linear_probe_and_it_is_scikit_learns_on_standardised_features(
    regularization: float,
) -> None:
    fit, test = (blobs(90, classes=2, noise=3.0, seed=seed) for seed in (0, 1))
    fit = Features(fit.values * torch.tensor([1.0, 50.0, 1.0, 1.0, 0.01, 1.0]) + 7, fit.labels)
    test = Features(test.values * torch.tensor([1.0, 50.0, 1.0, 1.0, 0.01, 1.0]) + 7, test.labels)
    scaler = StandardScaler().fit(fit.values.double().numpy())
    model = LogisticRegression(C=regularization, max_iter=2000)
    model.fit(scaler.transform(fit.values.double().numpy()), fit.labels.numpy())
    right = model.predict(scaler.transform(test.values.double().numpy())) == test.labels.numpy()
    assert linear_accuracy(fit, test, regularization) == pytest.approx(100 * right.mean())
    nobody, one_class = Features(test.values, torch.full((90,), -1)), Features(fit.values, torch.zeros(90).long())
    assert math.isnan(linear_accuracy(fit, nobody, regularization))
    assert math.isnan(linear_accuracy(one_class, test, regularization))


def test_no_reference_is_nearer_than_the_same_point() -> None:
    features = blobs(200)
    found = neighbours(features, features.values, 3, "l2").similarity
    assert float(found.max()) == 0.0  # by rounding alone, some would be above it
    torch.testing.assert_close(found[:, 0], torch.zeros(200), rtol=0, atol=1e-5)


def test_episodes_are_named_by_what_was_drawn_so_that_results_of_other_sessions_pair() -> None:
    features = blobs(60)
    episodes = sample_episodes(features.labels, 3, 2, 4, 5, seed=1)
    drawn = hashlib.sha256(episodes.support.numpy().tobytes() + episodes.query.numpy().tobytes()).hexdigest()
    assert few_shot(features, 3, 2, 4, 5, seed=1).episodes_digest == drawn[:16]
