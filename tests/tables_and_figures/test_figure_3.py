"""Figure 3 in its smallest form: two runs on the digits, five classes; the picture, and the numbers beside it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

from supancl.data.sources.layouts import imagenet100_classes
from supancl.paper.figure import BIRDS, DOGS
from tests.evaluate.made import run_folder
from tests.files import TINY, archive, class_folders, noise, supancl

CLASSES = ("1", "3", "5", "8", "9")
FIGURE = ("paper", "figure", "3")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs on the digits; one of them was not shown a label."""
    from supancl.cli import main

    folder = tmp_path_factory.mktemp("runs")
    for name, recipe, *more in (
        ("simsiam", "digits.simsiam"),
        ("supsiam", "digits.supsiam"),
        ("other", "digits.supsiam", "--seed", "1", "--set", "loss.alpha=0"),
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
    shown = draw(
        capsys,
        tmp_path / "figure3.png",
        runs / "simsiam",
        runs / "supsiam",
        "--data",
        "digits",
        "--classes",
        ",".join(CLASSES),
        "--split",
        "train",
        "--per-class",
        "12",
        "--normalize",
    )
    assert [each["name"] for each in shown["classes"]] == list(CLASSES)
    assert [panel["title"] for panel in shown["panels"]] == ["SimSiam", "SupSiam, alpha = 0.5"]
    assert sorted(shown["labels"]) == sorted(list(range(5)) * 12)
    digits = load_digits().target  # images are called after their row
    rows = [int("".join(filter(str.isdigit, name))) for name in shown["images"]]
    assert len(set(rows)) == 60
    assert [str(digits[row]) for row in rows] == [CLASSES[label] for label in shown["labels"]]
    for panel in shown["panels"]:
        assert np.isfinite(panel["points"]).all()
        assert np.shape(panel["points"]) == (60, 2)
        assert panel["ratio"] == pytest.approx(panel["within"] / panel["total"])
    assert {"torch", "scikit-learn", "matplotlib"} <= shown["versions"].keys()
    assert shown["settings"]["seed"] == 0


def test_the_numbers_of_a_panel_are_those_of_its_features(runs, tmp_path, capsys):
    shown = draw(capsys, tmp_path / "x.png", runs / "supsiam", "--data", "digits", "--classes", ",".join(CLASSES))
    assert (
        supancl(
            capsys, "embed", runs / "supsiam", "--data", "digits", "--device", "cpu", "--out", tmp_path / "f.npz"
        ).code
        == 0
    )
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


def test_another_run_another_panel(runs, tmp_path, capsys):
    words = ("--data", "digits", "--classes", "1,3,5,8,9", "--per-class", "8")
    first, again, other = (
        draw(capsys, tmp_path / f"{name}.png", runs / run, *words)
        for name, run in (("a", "supsiam"), ("b", "supsiam"), ("c", "other"))
    )
    assert first["panels"] == again["panels"]
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert first["images"] == other["images"]
    for key in ("points", "weights", "within"):
        assert first["panels"][0][key] != other["panels"][0][key]
    seeded = draw(capsys, tmp_path / "d.png", runs / "supsiam", *words, "--seed", "1")
    assert seeded["images"] != first["images"]


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_the_picture_is_not_blank(suffix, runs, tmp_path, capsys):
    out = tmp_path / f"figure3.{suffix}"
    draw(
        capsys,
        out,
        runs / "simsiam",
        f"our own={runs / 'supsiam'}",
        "--data",
        "digits",
        "--per-class",
        "8",
        "--groups",
        "odd=1,3,5",
        "--groups",
        "even=8,0",
    )
    content = out.read_bytes()
    if suffix == "png":
        pixels = imread(out)[..., :3]
        assert pixels.std() > 0.02
        assert len(np.unique((pixels.reshape(-1, 3) * 255).astype(int), axis=0)) > 20
    elif suffix == "svg":
        assert content.startswith(b"<?xml")
        assert len({line for line in content.split(b"fill: ") if line.startswith(b"#")}) > 5
    else:
        assert content.startswith(b"%PDF")
        assert len(content) > 5000


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


def test_classes_from_a_file(runs, tmp_path, capsys):
    (tmp_path / "classes.txt").write_text("9\n\n4\n")
    shown = draw(capsys, tmp_path / "x.png", runs / "supsiam", "--classes", tmp_path / "classes.txt")
    assert [each["name"] for each in shown["classes"]] == ["9", "4"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--classes", "1,seven"), ("digits", "'seven'")),
        (("--classes", "1"), ("1 class", "--classes")),
        (("--classes", ","), ("--classes",)),
        (("--classes", "1,2", "--groups", "a"), ("--groups a", "GROUP=A,B")),
        (("--classes", "1,2", "--groups", "a=3"), ("'3'", "--classes")),
        (("--groups", "a=1,2", "--groups", "b=2"), ("--groups", "'2'", "one group")),
        (
            ("--groups", "a=1", "--groups", "b=2", "--groups", "c=3", "--groups", "d=4", "--groups", "e=5"),
            ("5 groups", "4 families"),
        ),
        (("--per-class", "0"), ("--per-class 0",)),
        (("--out", "x.gif"), ("x.gif", ".svg")),
        (("--layer", "middle"), ("'middle'",)),
    ],
)
def test_what_cannot_be_drawn_is_told(words, named, runs, capsys):
    said = supancl(capsys, *FIGURE, runs / "supsiam", "--data", "digits", *words)
    assert said.code == 2
    for word in named:
        assert word in said.err


def test_a_name_that_is_nearly_right_is_answered_with_the_nearest(tmp_path, capsys):
    data = class_folders(tmp_path / "data", ("sweet_pepper", "maple_tree"))
    run = run_folder(tmp_path / "run", source=str(data))
    said = supancl(capsys, *FIGURE, run, "--classes", "sweet_peper,maple tree")
    assert said.code == 2
    assert "'sweet_pepper'" in said.err


def test_more_classes_than_colours_are_refused(tmp_path, capsys):
    data = archive(tmp_path / "many.npz", train_images=noise(162, 8, 8), train_labels=np.arange(162) % 81)
    said = supancl(
        capsys,
        *FIGURE,
        run_folder(tmp_path / "run", source=str(data)),
        "--split",
        "train",
        "--classes",
        ",".join(map(str, range(81))),
    )
    assert said.code == 2
    assert "81 classes" in said.err
    assert "80" in said.err


def test_other_channels_and_other_images_are_refused(runs, tmp_path, capsys):
    five = archive(tmp_path / "five.npz", train_images=noise(20, 8, 8, 5))
    said = supancl(capsys, *FIGURE, runs / "supsiam", "--data", five, "--out", tmp_path / "x.png")
    assert said.code == 2
    assert "channel" in said.err
    said = supancl(
        capsys,
        *FIGURE,
        runs / "supsiam",
        run_folder(tmp_path / "half", source="digits", data__holdout=0.5),
        "--data",
        "digits",
        "--out",
        tmp_path / "x.png",
    )
    assert said.code == 2
    assert "half" in said.err
    assert "--split test" in said.err


def test_the_figures_are_listed_with_their_commands(capsys):
    said = supancl(capsys, "paper", "figure")
    assert said.code == 0
    assert [line.split(":")[0] for line in said.out.splitlines()] == ["Figure 1", "Figure 2", "Figure 3"]
    assert "supancl paper toy" in supancl(capsys, "paper", "figure", "2").out
    assert "supancl paper figure 3" in supancl(capsys, "paper", "figure", "Figure 3").out
    assert supancl(capsys, "paper", "figure", "2", "runs/any").code == 2
    said = supancl(capsys, "paper", "figure", "7")
    assert said.code == 2
    assert "'7'" in said.err
