"""Figure 3 in its smallest form: two runs on the digits, five classes; the picture, and the numbers beside it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

from supancl.data.sources.folder import imagenet100_classes
from supancl.paper.figure_3 import BIRDS, DOGS
from tests.evaluation.made import run_folder
from tests.helpers import TINY, class_folders, supancl

CLASSES = ("1", "3", "5", "8", "9")
FIGURE = ("paper", "figure", "3")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs on the digits; one of them was not shown a label."""
    from supancl.cli import main

    folder = tmp_path_factory.mktemp("runs")
    for name, recipe, *more in (
        ("simsiam", "digits.simsiam"),
        ("supsiam", "digits.supsiam"),
    ):
        assert (
            main(["pretrain", recipe, *TINY, "--set", "data.limit=200", *more, "--quiet", "--out", str(folder / name)])
            == 0
        )
    return folder


def draw(capsys: pytest.CaptureFixture[str], out: Path, *words: object) -> dict:
    said = supancl(capsys, *FIGURE, *words, "--device", "cpu", "--quiet", "--out", out)
    assert said.code == 0, said.err
    return json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))


def test_the_documented_command_draws_what_the_data_are(runs, tmp_path, capsys):
    words = ["--data", "digits", "--groups", "odd=1,3,5", "--groups", "others=8,9", "--split", "train"]
    words += ["--per-class", "12", "--normalize"]
    shown = draw(capsys, tmp_path / "figure3.png", runs / "simsiam", runs / "supsiam", *words)
    pixels = imread(tmp_path / "figure3.png")[..., :3]
    assert len(np.unique((pixels.reshape(-1, 3) * 255).astype(int), axis=0)) > 20  # it is not blank
    assert [each["name"] for each in shown["classes"]] == list(CLASSES)
    assert [panel["title"] for panel in shown["panels"]] == ["simsiam", "supsiam, alpha = 0.5"]
    assert sorted(shown["labels"]) == sorted(list(range(5)) * 12)
    digits = load_digits().target  # images are called after their row
    rows = [int("".join(filter(str.isdigit, name))) for name in shown["images"]]
    assert len(set(rows)) == 60
    assert [str(digits[row]) for row in rows] == [CLASSES[label] for label in shown["labels"]]
    for panel in shown["panels"]:
        assert np.isfinite(panel["points"]).all()
        assert np.shape(panel["points"]) == (60, 2)
        assert panel["ratio"] == pytest.approx(panel["within"] / panel["total"])


def test_the_numbers_of_a_panel_are_those_of_its_features(runs, tmp_path, capsys):
    shown = draw(capsys, tmp_path / "x.png", runs / "supsiam", "--data", "digits", "--classes", ",".join(CLASSES))
    embed = ["embed", runs / "supsiam", "--data", "digits", "--device", "cpu", "--out", tmp_path / "f.npz"]
    assert supancl(capsys, *embed).code == 0
    kept = np.load(tmp_path / "f.npz")
    place = {name: row for row, name in enumerate(kept["train_names"])}
    values = kept["train_features"][[place[name] for name in shown["images"]]]
    values = values / np.linalg.norm(values, axis=1, keepdims=True)
    labels = np.array(shown["labels"])
    means = np.stack([values[labels == label].mean(0) for label in range(5)])
    within = ((values - means[labels]) ** 2).sum(1).mean()
    assert shown["panels"][0]["within"] == pytest.approx(within, rel=1e-4)
    others = [np.delete(np.arange(len(labels)), i) for i in range(len(labels))]
    weighted = [
        KNeighborsClassifier(5, weights=lambda d: np.exp(-(d**2) / 2 / 0.1))
        .fit(values[o], labels[o])
        .predict(values[[i]])[0]
        for i, o in enumerate(others)
    ]
    assert shown["panels"][0]["knn"] == pytest.approx(100 * np.mean(weighted == labels), abs=1e-6)


def test_the_papers_classes_are_the_default_where_they_are(tmp_path, capsys):
    """By wnid; five birds are all that ImageNet-100 has."""
    assert {*DOGS, *BIRDS} <= set(imagenet100_classes())
    assert (len(DOGS), len(BIRDS)) == (15, 5)
    data = class_folders(tmp_path / "data" / "train", (*DOGS, *BIRDS, "n02869837"), each=2).parent
    class_folders(data / "val", (*DOGS, *BIRDS, "n02869837"), each=2)
    shown = draw(capsys, tmp_path / "x.png", run_folder(tmp_path / "run", source=str(data)))
    assert [each["name"] for each in shown["classes"]] == [*DOGS, *BIRDS]
    assert [each["group"] for each in shown["classes"]] == ["dogs"] * 15 + ["birds"] * 5
    assert {"Doberman", "Rottweiler"} <= {each["title"] for each in shown["classes"]}
    named = draw(capsys, tmp_path / "y.png", tmp_path / "run", "--classes", "doberman,n02106550,American Coot")
    assert [each["name"] for each in named["classes"]] == ["n02107142", "n02106550", "n02018207"]
