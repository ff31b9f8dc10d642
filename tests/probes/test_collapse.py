"""The signs of neural collapse against their formulas written out with NumPy."""

import json

import numpy as np
import pytest
import torch

from supancl.errors import BadInput
from supancl.probes import Features, collapse, effective_rank, variance
from tests.files import mentions
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
    assert found.nc3 is None
    assert found.nc4 == pytest.approx(100 * (distances.argmin(1) != labels).mean())
    assert found.class_variance == pytest.approx(
        [((values[labels == c] - means[c]) ** 2).sum(1).mean() for c in range(4)]
    )
    assert (found.within, found.total) == pytest.approx(tuple(variance(features, normalize)))
    assert found.effective_rank == pytest.approx(effective_rank(torch.from_numpy(values)))
    assert json.loads(json.dumps(found.to_json()))["classes"] == [0, 1, 2, 3]


def test_a_classifier_gives_nc3_and_the_agreement_of_nc4() -> None:
    features = blobs(80, classes=4, width=7)
    values, labels = features.values.double(), features.labels
    means = torch.stack([values[labels == c].mean(0) for c in range(4)])
    centred = means - values.mean(0)
    own = collapse(features, normalize=False, weights=3.0 * centred)
    assert own.nc3 == pytest.approx(0, abs=1e-12)
    bias = -0.5 * means.square().sum(1)
    assert collapse(features, normalize=False, weights=means, bias=bias).nc4 == 0
    other = torch.randn(4, 7, generator=torch.Generator().manual_seed(0))
    found = collapse(features, normalize=False, weights=other)
    gap = other.double() / other.double().norm() - centred / centred.norm()
    assert found.nc3 == pytest.approx(float(gap.square().sum()))
    nearest = torch.cdist(values, means).argmin(1)
    assert found.nc4 == pytest.approx(100 * float((nearest != (values @ other.double().T).argmax(1)).double().mean()))


def test_less_noise_is_more_collapse() -> None:
    tight, loose = (collapse(blobs(200, width=20, noise=noise)) for noise in (0.05, 0.8))
    assert tight.nc1 < loose.nc1 / 10
    assert tight.ratio < loose.ratio
    assert tight.nc4 <= loose.nc4


@pytest.mark.parametrize(
    ("features", "weights", "line"),
    [
        (Features(torch.randn(5, 3), torch.ones(5, dtype=torch.long)), None, ("only class 1", "between classes")),
        (Features(torch.full((4, 3), float("nan")), torch.arange(4)), None, ("variance features", "row 0", "NaN")),
        (blobs(20), torch.zeros(4, 5), ("weights", "(4, 5)", "(4, 6)")),
    ],
)
def test_bad_input_is_one_line(features: Features, weights, line: str) -> None:
    with pytest.raises(BadInput, match=mentions(*line)):
        collapse(features, weights=weights)
