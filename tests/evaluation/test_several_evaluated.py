"""Several labels per image, from pretraining to the printed mAP, the files and the page."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from tests.evaluation.made import bright
from tests.helpers import archive, supancl

TINY = [
    "--epochs", "2", "--batch-size", "16", "--device", "cpu", "--quiet", "--set", "encoder.width=8",
    "--set", "pool.size=16", "--set", "schedule.warmup_epochs=0", "--set", "data.holdout=null",
]  # fmt: skip
MAP = r"mAP (\d+\.\d\d)% \[(\d+\.\d), (\d+\.\d)\] of 120 images"


def matrix(labels: np.ndarray) -> np.ndarray:
    """Four brightnesses, and dark or light."""
    return np.eye(6)[labels] + np.eye(6)[4 + (labels >= 2)]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The folder that commands run in, with several.npz."""
    monkeypatch.chdir(tmp_path)
    arrays = {"class_names": ["dark/a", "dark/b", "light/c", "light/d", "dark", "light"]}
    for seed, (name, size) in enumerate((("train", 160), ("test", 120))):
        images, labels = bright(size, 4, seed)
        arrays |= {f"{name}_images": images, f"{name}_labels": matrix(labels)}
    archive(tmp_path / "several.npz", **arrays)
    return tmp_path


def train(capsys, *more: object, out: str = "run") -> None:
    trained = supancl(capsys, "pretrain", "digits.supsiam", "--data", "several.npz", *TINY, "--out", out, *more)
    assert trained.code == 0, trained.err


def test_from_an_archive_to_the_map_and_the_page(place, capsys):
    train(capsys)
    for protocol in ("knn", "linear"):
        said = supancl(capsys, "evaluate", protocol, "run", "--device", "cpu", "--json", "result.json")
        assert said.code == 0, said.err
        result = json.loads((place / "result.json").read_text())
        printed = {tuple(map(float, found)) for found in re.findall(MAP, said.out)}
        assert (round(result["map"], 2), *(round(end, 1) for end in result["map_interval"])) in printed
        assert result["chance"] == pytest.approx(100 / 3)
        assert "accuracy" not in result
        (saved,) = (place / "run" / "evaluate").glob(f"{protocol}*.json")
        assert result["map"] == json.loads(saved.read_text())["map"]
    assert supancl(capsys, "evaluate", "transfer", "run", "--data", "several.npz", "--device", "cpu").code == 0
    assert supancl(capsys, "report", "run").code == 0
    assert f"{result['map']:.2f}" in (place / "run" / "report.html").read_text()
    listed = supancl(capsys, "runs", ".")
    assert listed.code == 0, listed.err
    assert f"mAP {result['map']:.1f}" in listed.out
