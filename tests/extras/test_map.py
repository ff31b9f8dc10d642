"""openTSNE itself, which `supancl map` uses for more than 5,000 images."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from supancl.probes import Features
from supancl.reports.pictures import tsne_map


def test_opentsne_separates_blobs_and_repeats_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supancl.reports.pictures.MAX_IMAGES_SKLEARN", 100)
    random = np.random.default_rng(0)
    labels = np.arange(200) % 4
    values = torch.from_numpy(5 * random.normal(size=(4, 16))[labels] + random.normal(size=(200, 16))).float()
    features = Features(values, torch.from_numpy(labels))
    points = tsne_map(features, 0)
    distances = np.linalg.norm(points[:, None] - points[None], axis=2) + 1e9 * np.eye(200)
    assert (labels[distances.argmin(1)] == labels).mean() > 0.98
    assert np.array_equal(points, tsne_map(features, 0))
