"""Labels of other kinds from a file to an encoder: columns of classes, and classes on several levels."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.files import archive, class_folders, noise, picture, supancl, table

TINY = [
    "--epochs", "2", "--batch-size", "8", "--device", "cpu", "--quiet",
    "--set", "encoder.width=8", "--set", "pool.size=16", "--set", "schedule.warmup_epochs=0",
]  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def described(folder) -> dict:
    return json.loads((folder / "recipe.json").read_text())


def test_from_a_column_per_class_to_an_encoder(here, capsys):
    rows = ["1,0,0", "1,0.7,0", ",,", "0,0,1"]
    for i in range(24):
        picture(here / f"{i}.png", seed=i)
    path = table(here / "list.csv", "file,id,cat,dog,fox", *(f"{i}.png,{i},{rows[i % 4]}" for i in range(24)))
    columns = ("--columns", "image=file,label=cat+dog+fox")
    supancl(capsys, "data", "show", path, *columns, "--out", "sheets", "--json", "facts.json")
    assert json.loads((here / "facts.json").read_text())["histogram"] == {
        "cat": {"train": 12}, "dog": {"train": 6}, "fox": {"train": 6}, "(unlabelled)": {"train": 6},
    }  # fmt: skip
    trained = supancl(capsys, "pretrain", "digits.supsiam", "--data", path, *columns, *TINY, "--out", "run")
    assert trained.code == 0, trained.err
    about = described(here / "run")["data"]
    assert (about["classes"], about["labels_per_image"]["most"]) == (3, 2)
    assert supancl(capsys, "embed", "run", "--data", path, "--out", "features.npz").code == 0
    with np.load(here / "features.npz") as features:
        assert features["train_labels"][1].tolist() == [1, pytest.approx(0.7), 0]


def test_from_nested_folders_to_an_encoder(here, capsys):
    class_folders(here / "photos", ("animal/cat", "animal/dog", "plant/rose", "plant"), 6)
    levels = ("--set", "data.hierarchy=paths", "--set", "data.level_weights=[2,1]")
    supancl(capsys, "data", "show", "photos", *levels, "--out", "sheets", "--json", "facts.json")
    facts = json.loads((here / "facts.json").read_text())
    assert facts["levels"] == [2, 3]
    assert facts["histogram"]["plant"] == {"train": 12}
    trained = supancl(capsys, "pretrain", "digits.supsiam", "--data", "photos", *levels, *TINY, "--out", "run")
    assert trained.code == 0, trained.err
    recipe = described(here / "run")
    assert recipe["recipe"]["data"]["hierarchy"] == "paths"
    assert recipe["recipe"]["data"]["level_weights"] == [2, 1]
    assert (recipe["data"]["classes"], recipe["data"]["labels_per_image"]["largest_weight"]) == (5, 2)
    assert supancl(capsys, "embed", "run", "--data", "photos", "--out", "features.npz").code == 0
    with np.load(here / "features.npz") as features:
        assert features["class_names"].tolist() == ["animal", "animal/cat", "animal/dog", "plant", "plant/rose"]
        assert np.bincount(features["train_labels"]).tolist() == [0, 6, 6, 6, 6]


def test_from_numbers_of_cifar100_to_an_encoder(here, capsys):
    path = archive(here / "cifar100.npz", train_images=noise(300, 8, 8, 3), train_labels=np.arange(300) % 100)
    level = ("--set", "data.hierarchy=cifar100")
    trained = supancl(capsys, "pretrain", "digits.supbyol", "--data", path, *level, *TINY, "--out", "run")
    assert trained.code == 0, trained.err
    assert described(here / "run")["data"]["classes"] == 120
