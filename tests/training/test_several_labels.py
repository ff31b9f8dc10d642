"""Several, soft and nested labels from a file to an encoder: training, resuming, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from supancl import from_arrays, pretrain
from supancl.errors import BadInput
from supancl.training.checks import fit_labels
from tests.helpers import (
    assert_same_bits,
    final_state,
    mentions,
    noise,
    picture,
    supancl,
    table,
    tiny_data,
    tiny_recipe,
)
from tests.test_resume import crash_and_resume

CPU = torch.device("cpu")
TINY = [
    "--epochs", "2", "--batch-size", "8", "--device", "cpu", "--quiet",
    "--set", "encoder.width=8", "--set", "pool.size=16", "--set", "schedule.warmup_epochs=0",
]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "pool", "settings"),
    [
        ("supsiam", "queue", {}),
        ("supbyol", "class-queues", {"loss__samples": 2}),
        ("supsiam", "prototypes", {"train__accumulate": 2}),
        ("supmoco", "queue", {}),
        ("supcon", None, {}),
        ("crossentropy", None, {"loss__form": "binary"}),
    ],
)
def test_a_stopped_run_ends_with_the_same_bits(method, pool, settings, tmp_path):
    recipe = tiny_recipe(method, pool, train__checkpoint_every=2, **settings)
    data = tiny_data(30, classes=5, unlabelled=0.2, several=True)
    pretrain(recipe, data, tmp_path / "whole")
    crash_and_resume(recipe, data, tmp_path / "stopped", at=5)
    assert_same_bits(final_state(tmp_path / "whole"), final_state(tmp_path / "stopped"))


def test_class_queues_with_several_labels_are_refused_where_their_copies_would_be_compared(tmp_path):
    data = tiny_data(30, classes=5, several=True)
    with pytest.raises(BadInput, match=mentions("several labels")):
        pretrain(tiny_recipe("supmoco", "class-queues"), data, tmp_path / "run")
    soft = from_arrays(noise(20, 8, 8), np.eye(2)[np.arange(20) % 2] * np.linspace(0.5, 1, 20)[:, None])
    assert fit_labels(tiny_recipe("supmoco", "class-queues"), soft).train.all_labels.pairs.shape[1] == 1


def test_from_a_table_to_an_encoder(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    labels = ["cat;dog:0.7", "dog", "bird;cat", ""]
    for i in range(24):
        picture(tmp_path / f"{i}.png", seed=i)
    path = table(tmp_path / "labels.csv", "path,label", *(f"{i}.png,{labels[i % 4]}" for i in range(24)))
    supancl(capsys, "data", "show", path, "--out", "sheets", "--json", "facts.json")
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert facts["histogram"]["cat"] == {"train": 12}
    assert facts["splits"]["train"]["labelled"] == 18
    trained = supancl(capsys, "pretrain", "digits.supsiam", "--data", path, *TINY, "--out", "run")
    assert trained.code == 0, trained.err
    about = json.loads((tmp_path / "run" / "recipe.json").read_text())["data"]
    assert about["labels_per_image"]["most"] == 2
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["knn"] is None
    assert 0 < rows[-1]["knn_map"] <= 100
    assert rows[-1]["pool_coverage"] == 1
    predicted = supancl(capsys, "predict", "run", "--data", path, "--out", "labels.out.csv")
    assert predicted.code == 0, predicted.err
    assert ",predicted," in (tmp_path / "labels.out.csv").read_text()
    assert supancl(capsys, "embed", "run", "--data", path, "--out", "features.npz").code == 0
    with np.load(tmp_path / "features.npz") as features:
        assert features["train_labels"][:4].tolist() == [
            [0, 1, pytest.approx(0.7)], [0, 0, 1], [1, 1, 0], [-1, -1, -1],
        ]  # fmt: skip
    assert supancl(capsys, "embed", "run", "--data", path, "--out", "features.csv").code == 0
    assert "cat;dog:0.7" in (tmp_path / "features.csv").read_text().splitlines()[1]
    assert supancl(capsys, "report", "run").code == 0
