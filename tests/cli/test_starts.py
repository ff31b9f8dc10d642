"""Trained weights as a user takes them: label a folder with them, look at it, train on from them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from supancl import load_encoder
from supancl.runs.folder import RunFolder
from tests.helpers import assert_mentions, supancl

MODEL = "test_resnet"  # a model of timm for tests: 0.5 million weights
START = f"timm:{MODEL}@weights.safetensors"
COLOURS = {"green": (60, 140, 60), "red": (140, 60, 60)}
TRAINING = ("--device", "cpu", "--batch-size", "8", "--set", "views.size=32")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Weights, and 48 noisy images of two colours of which 16 are labelled; the true class is in the name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SUPANCL_CACHE", str(tmp_path / "cache"))
    torch.manual_seed(0)
    save_file(timm.create_model(MODEL).state_dict(), "weights.safetensors")
    random = np.random.default_rng(0)
    for name, colour in COLOURS.items():
        for i in range(24):
            file = Path("photos", name if i < 8 else "unlabelled", f"{name}-{i}.png")
            file.parent.mkdir(parents=True, exist_ok=True)
            pixels = (np.array(colour) + random.normal(0, 40, (32, 32, 3))).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(file)
    return tmp_path


@pytest.mark.parametrize("words", [(), ("--classifier", "knn")])
def test_a_partly_labelled_folder_is_labelled_by_its_own_labels(place, capsys, words) -> None:
    said = supancl(capsys, "predict", START, "--data", "photos", "--size", 32, *words, "--json", "result.json")
    assert said.code == 0, said.err
    with open("labels.csv", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["source"] == "predicted"]
    assert len(rows) == 32
    assert sum(Path(row["path"]).name.startswith(row["label"]) for row in rows) >= 30
    result = json.loads(Path("result.json").read_text())
    assert (result["references"], result["checked_on"], result["cross_validated"]) == (16, 16, True)
    assert result["accuracy"] > 85
    low, high = result["accuracy_interval"]
    assert_mentions(said.out, f"[{low:.1f}, {high:.1f}]", "chance 50.0%", "cross-validated images: 16")


def test_a_cross_validated_accuracy_of_labels_that_mean_nothing_is_near_chance(place, capsys) -> None:
    """An image must not be among the references that it is tested with: 512 features fit any labels."""
    for i, file in enumerate(sorted(Path("photos").glob("*/*.png"))):
        target = Path("random", "ab"[i % 2] if i < 40 else "unlabelled", file.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        file.rename(target)
    said = supancl(capsys, "predict", START, "--data", "random", "--size", 32, "--json", "result.json")
    assert said.code == 0, said.err
    result = json.loads(Path("result.json").read_text())
    assert result["checked_on"] == 40
    assert result["accuracy"] < 75


def test_a_run_keeps_the_name_and_the_digest_of_its_start_and_what_it_was_worth(place, capsys) -> None:
    said = supancl(capsys, "pretrain", "--data", "photos", "--epochs", 1, *TRAINING, "--init", START, "--out", "run")
    assert said.code == 0, said.err
    assert_mentions(said.out, f"encoder.name = timm:{MODEL}", f"of the start, {START}", "before training")
    assert load_encoder("run").mean == (0.5, 0.5, 0.5)  # timm's for this model
    init = json.loads(Path("run/recipe.json").read_text())["init"]
    assert init["from"] == f"timm:{MODEL}@{place / 'weights.safetensors'}"
    assert len(init["digest"]) >= 32
    assert [row["kind"] for row in RunFolder(Path("run")).metrics()].count("start") == 1
    said = supancl(capsys, "evaluate", "knn", "run", "--data", "photos")
    assert said.code == 0, said.err
    assert "its start" in said.out
