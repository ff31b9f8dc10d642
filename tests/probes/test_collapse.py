"""The signs of neural collapse against their formulas written out with NumPy."""

import json

import numpy as np
import pytest
import torch

from supancl.probes import Features, collapse, effective_rank, variance

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
    norms = np.linalg.norm(between, axis=1)
    cosines = (between @ between.T / np.outer(norms, norms))[~np.eye(len(means), dtype=bool)]
    within, total = (residual**2).sum(1).mean(), ((values - values.mean(0)) ** 2).sum(1).mean()
    return {
        "within": within,
        "total": total,
        "ratio": within / total,
        "nc1": np.trace(residual.T @ residual / len(values) @ inverse) / len(means),
        "nc2_norms": norms.std() / norms.mean(),
        "nc2_angles": cosines.std(),
        "nc2_simplex": np.abs(cosines + 1 / (len(means) - 1)).mean(),
        "nc4": 100 * (np.unique(labels)[distances.argmin(1)] != labels).mean(),
        "effective_rank": np.exp(-(share * np.log(share)).sum()),
    }


def test_the_rank_of_constant_features_is_zero() -> None:
    assert effective_rank(torch.ones(5, 3)) == 0.0


@pytest.mark.parametrize("case", HARD_CASES)
def test_the_measures_are_those_of_whole_covariances(case: str) -> None:
    values, labels, tolerance = HARD_CASES[case]
    features = Features(torch.from_numpy(values), torch.from_numpy(labels))
    found, expected = collapse(features, normalize=False, device="cpu"), naive(values, labels)
    unit = collapse(features)
    assert unit.effective_rank == pytest.approx(effective_rank(features.values, normalize=True))
    assert (unit.within, unit.total) == pytest.approx(tuple(variance(features)), nan_ok=True)
    assert json.loads(json.dumps(found.to_json()))["classes"] == np.unique(labels).tolist()
    by_class = [((values[labels == c] - values[labels == c].mean(0)) ** 2).sum(1).mean() for c in np.unique(labels)]
    if len(by_class) < len(labels):
        assert found.spread == pytest.approx(by_class)
    for key in ("nc2_norms", "nc2_angles", "nc2_simplex"):
        assert getattr(found, key) == pytest.approx(expected[key], rel=1e-7, abs=1e-9), key
    if len(np.unique(labels)) == len(labels):
        assert np.isnan([found.within, found.ratio, found.nc1, found.nc4]).all()
    else:
        for key in ("within", "ratio", "nc1", "nc4"):
            assert getattr(found, key) == pytest.approx(expected[key], rel=1e-9), key
    assert found.total == pytest.approx(expected["total"], rel=1e-9)
    assert found.effective_rank == pytest.approx(expected["effective_rank"], rel=tolerance)
    assert tuple(variance(features, normalize=False)) == pytest.approx((found.within, found.total), nan_ok=True)
