"""The signs of neural collapse against their formulas written out with NumPy."""

import json

import numpy as np
import pytest
import torch

from supancl.probes import Features, collapse, effective_rank, variance
from tests.probes.blobs import blobs


@pytest.mark.parametrize("normalize", [True, False])
def test_the_measures_are_their_formulas(normalize: bool) -> None:
    features = blobs(50, classes=4, width=7)
    found = collapse(features, normalize)
    values, labels = features.values.double().numpy(), features.labels.numpy()
    if normalize:
        values = values / np.linalg.norm(values, axis=1, keepdims=True)
    means = np.stack([values[labels == c].mean(0) for c in range(4)])
    centred = means - values.mean(0)
    s_w = sum(np.outer(v - means[y], v - means[y]) for v, y in zip(values, labels, strict=True)) / 50
    s_b = sum(np.outer(m, m) for m in centred) / 4
    norms = np.linalg.norm(centred, axis=1)
    cosines = np.array([centred[a] @ centred[b] / norms[a] / norms[b] for a in range(4) for b in range(4) if a != b])
    distances = np.linalg.norm(values[:, None] - means[None], axis=2)
    assert found.nc1 == pytest.approx(np.trace(s_w @ np.linalg.pinv(s_b)) / 4)
    assert found.nc2_norms == pytest.approx(norms.std() / norms.mean())
    assert found.nc2_angles == pytest.approx(cosines.std())
    assert found.nc2_simplex == pytest.approx(np.abs(cosines + 1 / 3).mean())
    assert found.nc4 == pytest.approx(100 * (distances.argmin(1) != labels).mean())
    assert found.class_variance == pytest.approx(
        [((values[labels == c] - means[c]) ** 2).sum(1).mean() for c in range(4)]
    )
    assert (found.within, found.total) == pytest.approx(tuple(variance(features, normalize)))
    assert found.effective_rank == pytest.approx(effective_rank(torch.from_numpy(values)))
    assert json.loads(json.dumps(found.to_json()))["classes"] == [0, 1, 2, 3]


CLUSTERED = np.random.default_rng(0).normal(size=(5, 40))[np.arange(60) % 5]  # every image is its class's mean
HARD_CASES = {
    # name: values, labels, and how exactly the effective rank is defined
    "more chunks than one": (np.random.default_rng(1).normal(size=(2500, 9)), np.arange(2500) % 7, 1e-9),
    "wider than a block": (np.random.default_rng(2).normal(size=(1100, 700)), np.arange(1100) % 3, 1e-9),
    "fewer images than features": (np.random.default_rng(3).normal(size=(30, 600)), np.arange(30) % 4, 1e-9),
    "unequal classes": (np.random.default_rng(4).normal(size=(60, 8)), np.arange(60) % 12 // 4, 1e-9),
    "one image per class": (np.random.default_rng(5).normal(size=(12, 20)), np.arange(12), 1e-9),
    "more classes than features": (np.random.default_rng(6).normal(size=(90, 4)), np.arange(90) % 30, 1e-9),
    "few directions": (np.random.default_rng(7).normal(size=(60, 3)) @ np.eye(3, 40), np.arange(60) % 5, 1e-5),
    "nearly collapsed": (CLUSTERED + 1e-3 * np.random.default_rng(8).normal(size=(60, 40)), np.arange(60) % 5, 1e-9),
    "far from zero": (100 + np.random.default_rng(9).normal(size=(60, 8)), np.arange(60) % 5, 1e-9),
}


def naive(values: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """The measures by their definitions: whole covariances, a pseudo-inverse, all singular values."""
    means = {c: values[labels == c].mean(0) for c in np.unique(labels)}
    residual = values - np.stack([means[c] for c in labels])
    between = np.stack(list(means.values())) - values.mean(0)
    distances = ((values[:, None] - np.stack(list(means.values()))[None]) ** 2).sum(2)
    inverse = np.linalg.pinv(between.T @ between / len(means), rcond=1e-12, hermitian=True)
    singular = np.linalg.svd(values - values.mean(0), compute_uv=False)
    share = singular[singular > 1e-10 * singular.max()] / singular.sum()
    within, total = (residual**2).sum(1).mean(), ((values - values.mean(0)) ** 2).sum(1).mean()
    return {
        "within": within,
        "total": total,
        "ratio": within / total,
        "nc1": np.trace(residual.T @ residual / len(values) @ inverse) / len(means),
        "nc4": 100 * (np.unique(labels)[distances.argmin(1)] != labels).mean(),
        "effective_rank": np.exp(-(share * np.log(share)).sum()),
    }


@pytest.mark.parametrize("case", HARD_CASES)
def test_the_measures_are_those_of_whole_covariances(case: str) -> None:
    values, labels, tolerance = HARD_CASES[case]
    features = Features(torch.from_numpy(values), torch.from_numpy(labels))
    found, expected = collapse(features, normalize=False, device="cpu"), naive(values, labels)
    if len(np.unique(labels)) == len(labels):
        assert np.isnan([found.within, found.ratio, found.nc1, found.nc4]).all()
    else:
        for key in ("within", "ratio", "nc1", "nc4"):
            assert getattr(found, key) == pytest.approx(expected[key], rel=1e-9), key
    assert found.total == pytest.approx(expected["total"], rel=1e-9)
    assert found.effective_rank == pytest.approx(expected["effective_rank"], rel=tolerance)
    assert tuple(variance(features, normalize=False)) == pytest.approx((found.within, found.total), nan_ok=True)
