"""`supancl predict` with references of several labels per image: the table, its numbers, and the way back to --data."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import average_precision_score, f1_score

from supancl.data.opening import open_data
from supancl.data.spec import DataSpec
from supancl.probes import Features
from supancl.probes.classifiers import fit_linear_classifier
from supancl.runs.encoder_file import load_with_classes
from tests.evaluation.made import run_folder
from tests.helpers import assert_mentions, supancl
from tests.use.test_predict import CLASSES, texture

LEVELS = ("bright", "dark")


def draw(folder: Path, count: int, seed: int = 0) -> list[tuple[str, set[str]]]:
    """Images of three textures, of which two in three are made bright or dark; names and true labels."""
    random = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for i in range(count):
        image = texture(i % 3, random).astype(float) * 0.5 + 64
        level = (None, *LEVELS)[random.integers(3)]
        image += {"bright": 60, "dark": -60, None: 0}[level]
        path = folder / f"{i}.png"
        Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(path)
        drawn.append((str(path), {CLASSES[i % 3], *([level] if level else [])}))
    return drawn


def write(path: Path, drawn: list[tuple[str, set[str]]], unlabelled: int = 0) -> Path:
    texts = [";".join(sorted(labels)) if i >= unlabelled else "" for i, (_, labels) in enumerate(drawn)]
    lines = [f"{name},{text}" for (name, _), text in zip(drawn, texts, strict=True)]
    path.write_text("\n".join(["path,label", *lines]) + "\n")
    return path


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A run on 300 images with one or two labels, of which 120 are held out, and 40 new ones."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SUPANCL_CACHE", str(tmp_path / "cache"))
    write(Path("photos.csv"), draw(Path("photos"), 300))
    run_folder(Path("run"), source="photos.csv", described=True, data__holdout=0.4)
    return tmp_path


def predict(capsys, *words: object, out: str = "labels.csv") -> tuple[list[dict[str, str]], dict, str]:
    said = supancl(capsys, "predict", *words, "--out", out, "--device", "cpu", "--no-cache", "--json", "summary.json")
    assert said.code == 0, said.err
    with open(out, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file)), json.loads(Path("summary.json").read_text()), said.out


def f1(rows: list[dict[str, str]], truth: dict[str, set[str]]) -> float:
    """The mean over images of the F1 of their labels, by scikit-learn."""
    names = sorted({*CLASSES, *LEVELS})
    given, found = (
        np.array([[name in labels for name in names] for labels in sets])
        for sets in ([truth[row["path"]] for row in rows], [row["label"].split(";") for row in rows])
    )
    return 100 * float(f1_score(given, found, average="samples"))


@pytest.mark.parametrize("words", [(), ("--classifier", "knn")], ids=["linear", "knn"])
def test_new_images_get_all_labels_that_are_probable_enough(place, capsys, words):
    truth = dict(draw(Path("new"), 60, seed=1))
    rows, summary, printed = predict(capsys, "run", "--data", "new", *words)
    assert len(rows) == 60
    assert f1(rows, truth) > 75
    assert summary["f1"] == pytest.approx(f1(rows, truth), abs=12)
    assert summary["f1_interval"][0] < summary["f1"] < summary["f1_interval"][1]
    assert summary["checked_on"] == 120
    assert {len(row["label"].split(";")) for row in rows} >= {1, 2}
    for row in rows:  # the only label of an image may be below the threshold, others not
        assert ";" not in row["label"] or float(row["confidence"]) >= summary["label_threshold"] - 5e-5
    values = [f"mAP {summary['map']:.2f}%", f"F1 {summary['f1']:.1f}%", f"chance {summary['chance']:.1f}%"]
    assert_mentions(printed, *values, "held-out images: 120")


def true_matrix(pairs: torch.Tensor) -> np.ndarray:
    matrix = np.zeros((len(pairs), len(CLASSES) + len(LEVELS)), bool)
    for row, labels in enumerate(pairs.tolist()):
        for number, weight in labels:
            if number >= 0 and weight > 0:
                matrix[row, int(number)] = True
    return matrix


def test_map_and_f1_are_scikit_learns(place, capsys):
    """Of the kept classifier on the kept held-out features."""
    write(Path("few.csv"), draw(Path("few"), 200, seed=5))
    run_folder(Path("small"), source="few.csv", described=True, data__holdout=0.3)
    _, summary, _ = predict(capsys, "small", "--data", "photos")
    kept = load_with_classes(Path("small/predict/references.safetensors"))[0]
    labelled, held_out = (
        Features(kept[part], kept[f"{part}_labels"], kept[f"{part}_pairs"]) for part in ("references", "held_out")
    )
    linear, _ = fit_linear_classifier(labelled, held_out, 5)
    truth = true_matrix(held_out.pairs)
    logits = (held_out.values @ linear.weight.T + linear.bias).double().numpy()
    assert summary["map"] == pytest.approx(100 * average_precision_score(truth, logits, average="macro"), abs=1e-4)
    probability = 1 / (1 + np.exp(-logits / summary["temperature"]))
    listed = probability >= 0.5
    listed[np.arange(len(listed)), probability.argmax(1)] = True
    assert summary["f1"] == pytest.approx(100 * f1_score(truth, listed, average="samples"))


def test_the_table_is_a_source_and_given_labels_stay_with_their_weights(place, capsys):
    drawn = draw(Path("new"), 40, seed=2)
    write(Path("mixed.csv"), drawn, unlabelled=25)
    with open("mixed.csv", "a") as file:
        file.write("photos/0.png,columns:0.7;halves:0.3\nphotos/1.png,dark:0.25\n")
    rows, summary, _ = predict(capsys, "run", "--data", "mixed.csv")
    assert (summary["predicted"], summary["given"]) == (25, 17)
    by_path = {row["path"]: row for row in rows}
    assert by_path["photos/0.png"]["label"] == "columns:0.7;halves:0.3"
    assert all(set(by_path[path]["label"].split(";")) == labels for path, labels in drawn[25:])
    assert {by_path[path]["confidence"] == "" for path, _ in drawn[25:]} == {True}
    data = open_data(DataSpec(source="labels.csv", holdout=0.0))
    assert sorted(data.classes) == sorted({*CLASSES, *LEVELS})
    weights = {
        name: {data.classes[int(number)]: weight for number, weight in pairs if number >= 0}
        for name, pairs in zip(data.train.names_at(torch.arange(42)), data.train.all_labels.pairs.tolist(), strict=True)
    }
    assert weights["photos/1.png"] == {"dark": 0.25}
    for row in (row for row in rows if row["source"] == "predicted"):
        assert weights[row["path"]] == dict.fromkeys(row["label"].split(";"), 1)
    trained = supancl(
        capsys, "pretrain", "digits.supsiam", "--data", "labels.csv", "--epochs", 1, "--batch-size", 8,
        "--device", "cpu", "--set", "encoder.width=8", "--set", "pool.size=16", "--out", "again",
    )  # fmt: skip
    assert trained.code == 0, trained.err
    shown = supancl(capsys, "data", "show", "labels.csv", "--json", "-")
    assert shown.code == 0, shown.err
