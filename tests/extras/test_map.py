"""openTSNE itself, which `supancl map` uses for more than 5,000 images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from supancl.probes import Features
from supancl.reporter import ProgressFunction, report_to
from supancl.reports.pictures import tsne_map
from tests.files import TINY, supancl


def test_opentsne_separates_blobs_and_repeats_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supancl.reports.pictures.MAX_IMAGES_SKLEARN", 100)
    random = np.random.default_rng(0)
    labels = np.arange(200) % 4
    values = torch.from_numpy(5 * random.normal(size=(4, 16))[labels] + random.normal(size=(200, 16))).float()
    features = Features(values, torch.from_numpy(labels))
    calls: list[tuple[str, int, int]] = []
    with report_to(ProgressFunction(lambda *call: calls.append(call))):
        points = tsne_map(features, 0)
    distances = np.linalg.norm(points[:, None] - points[None], axis=2) + 1e9 * np.eye(200)
    assert (labels[distances.argmin(1)] == labels).mean() > 0.98
    assert calls[-1][1:] == (750, 750)
    assert np.array_equal(points, tsne_map(features, 0))


def test_the_command_maps_many_images_with_opentsne(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """6,000 images take half a minute on one core; here 320 count as many."""
    monkeypatch.setattr("supancl.reports.pictures.MAX_IMAGES_SKLEARN", 300)
    monkeypatch.setattr("sklearn.manifold.TSNE", None)
    run, out = tmp_path / "run", tmp_path / "map.html"
    assert supancl(capsys, "pretrain", "digits.supsiam", *TINY, "--set", "data.limit=64", "--out", run).code == 0
    said = supancl(capsys, "map", run, "--data", "digits", "--limit", 320, "--out", out)
    assert said.code == 0, said.err
    assert out.stat().st_size > 60_000
