"""The choice of transfer; its numbers are compared with scikit-learn in tests/evaluation/test_cross_check.py."""

import json

import numpy as np
import pytest

from supancl.probes import transfer
from tests.probes.blobs import blobs


def test_equal_scores_choose_the_smallest_weight_and_the_report_is_json() -> None:
    easy = blobs(40, noise=0.01)
    found = transfer(easy, blobs(20, noise=0.01, seed=1), blobs(20, noise=0.01, seed=2))
    assert found.accuracy == 100.0
    assert found.weights == pytest.approx(np.logspace(-6, 5, 45))
    best = max(found.held_out)
    assert found.weight == min(w for w, score in zip(found.weights, found.held_out, strict=True) if score == best)
    assert json.loads(json.dumps(found.to_json()))["images"] == [40, 20, 20]
    assert found.residual <= 1e-3
