"""A long tail from the documented command to an evaluated encoder: balanced order, class queues, balanced accuracy."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from tests.helpers import archive, supancl

CLASSES, EACH, RATIO = 4, 150, 20
TINY = ["--epochs", "2", "--batch-size", "16", "--device", "cpu", "--quiet", "--set", "encoder.width=16",
        "--set", "schedule.warmup_epochs=0"]  # fmt: skip
TAIL = ["--set", f"data.imbalance={RATIO}"]
BALANCED = ["--set", "data.balanced=true", "--set", "pool.kind=class-queues", "--set", "pool.size=5"]


@pytest.fixture
def shades(tmp_path, monkeypatch):
    """Images of four shades with noise: easy, and equally many of each."""
    monkeypatch.chdir(tmp_path)
    chance, labels = np.random.default_rng(0), np.arange(CLASSES * EACH) % CLASSES
    images = (60 * labels[:, None, None] + chance.integers(0, 60, (len(labels), 8, 8))).astype(np.uint8)
    return archive(tmp_path / "shades.npz", train_images=images, train_labels=labels)


def test_a_tail_is_trained_and_evaluated_class_by_class(shades, capsys):
    done = supancl(capsys, "pretrain", "digits.supsiam", "--data", shades, *TINY, *TAIL, *BALANCED, "--out", "run")
    assert done.code == 0, done.err
    trained = json.loads((shades.parent / "run" / "recipe.json").read_text())["data"]["train"]
    assert trained < CLASSES * EACH / 2
    for protocol in ("knn", "linear"):
        said = supancl(capsys, "evaluate", protocol, "run", "--no-baselines", "--json", f"{protocol}.json")
        assert said.code == 0, said.err
        result = json.loads((shades.parent / f"{protocol}.json").read_text())
        assert set(result["by_class_size"]) == {"head", "middle", "tail"}
        assert sum(group["classes"] for group in result["by_class_size"].values()) == CLASSES
        assert 25 < result["balanced_accuracy"] <= 100
        assert re.search(r"balanced accuracy \d+\.\d\d%: head .*middle .*tail ", " ".join(said.out.split()))
