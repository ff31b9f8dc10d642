"""`supancl embed`: what the run held out, bad images, and the example of docs/own-data.md."""

from __future__ import annotations

import csv
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from supancl import from_arrays
from supancl.core.encoders import EncoderSpec
from supancl.data.opening import open_data
from supancl.data.splits import DataSpec
from tests.evaluation.made import run_folder
from tests.files import TINY, assert_mentions, class_folders, noise, picture, supancl, table

PAGE = Path(__file__).parents[2] / "docs" / "own-data.md"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Class folders without a split."""
    monkeypatch.chdir(tmp_path)
    class_folders(tmp_path / "data", each=20)
    return tmp_path


def embedded(capsys, *arguments: object) -> dict[str, np.ndarray]:
    Path("f.npz").unlink(missing_ok=True)
    said = supancl(capsys, "embed", *arguments, "--out", "f.npz", "--device", "cpu")
    assert said.code == 0, said.err
    with np.load("f.npz") as found:
        return {**found, "said": said}


def names(split) -> set[str]:
    return {Path(name).name + Path(name).parent.name for name in split.names_at(torch.arange(len(split)))}


def test_features_of_class_folders_say_what_the_run_held_out(place, capsys):
    assert supancl(capsys, "pretrain", "digits.supsiam", "--data", "data", *TINY, "--out", "run").code == 0
    found = embedded(capsys, "run", "--data", "data")
    held_out = found["train_held_out"]
    assert (held_out.dtype, held_out.shape, len(found["train_features"])) == (bool, (40,), 40)
    told = {Path(name).name + Path(name).parent.name for name in found["train_names"][held_out]}
    share = 0.25  # the recipe's own
    assert told == names(open_data(DataSpec(source="data", holdout=share), 1).held_out)
    assert len(told) == 10
    assert found["said"].out.splitlines()[-1] == "f.npz: train 40 x 8; the run held 10 of train out"


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({"data__holdout": None}, 4),
        ({"data__holdout": 0.0}, 0),
        ({"data__limit": 12}, 28),
        ({"data__leave_out": ("dog",)}, 22),
    ],
)
def test_whatever_a_setting_keeps_from_training_is_held_out(place, capsys, settings, count):
    run = run_folder(place / "run", source="data", described=True, **settings)
    found = embedded(capsys, run, "--data", "data")
    assert int(found["train_held_out"].sum()) == count
    trained = open_data(DataSpec(source="data", **{name[6:]: value for name, value in settings.items()}), 1).train
    told = {Path(name).name + Path(name).parent.name for name in found["train_names"][~found["train_held_out"]]}
    assert told == names(trained)


def test_splits_of_the_data_themselves_hold_nothing_out_of_train(place, capsys):
    for split, each in (("train", 6), ("val", 3)):
        class_folders(place / "parted" / split, each=each)
    found = embedded(capsys, run_folder(place / "run", source="parted", described=True), "--data", "parted")
    assert found["train_held_out"].tolist() == [False] * 12
    assert "val_held_out" not in found


def test_other_data_and_data_that_have_changed_do_not_say_what_was_held_out(place, capsys):
    run = run_folder(place / "run", source="data", described=True)
    class_folders(place / "others")
    assert "train_held_out" not in embedded(capsys, run, "--data", "others")
    assert "train_held_out" not in embedded(capsys, run / "encoder.safetensors", "--data", "data")
    picture(place / "data" / "cat" / "new.png", seed=999)
    found = embedded(capsys, run, "--data", "data")
    assert "train_held_out" not in found
    assert "warning: which images" in found["said"].err
    assert_mentions(found["said"].err, "data", "changed")


def test_one_photograph_in_python_has_the_features_that_embed_writes(place, capsys):
    """The blocks of the page, run as they stand."""
    for name, size in (("7.jpg", (86, 64)), ("8.jpg", (90, 120))):
        picture(place / "photos" / "pug" / name, seed=3, size=size, mode="RGB")
    spec = EncoderSpec("cifar-resnet18", channels=3, size=32)
    run_folder(place / "runs" / "photos", source="photos", spec=spec)
    page = PAGE.read_text(encoding="utf-8").split("## Use the encoder elsewhere")[0]  # the rest: tests/docs
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    scope: dict[str, object] = {}
    for block in blocks:
        exec(block, scope)
    found = embedded(capsys, "runs/photos", "--data", "photos")
    row = [Path(name).name for name in found["train_names"]].index("7.jpg")
    ours, theirs = scope["features"], torch.from_numpy(found["train_features"][row])[None]
    assert ours.shape == (1, 512)
    assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)


# --- other formats ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_tables_hold_what_the_archive_holds(place, capsys, suffix):
    picture(place / "data" / "unlabelled" / "=1.png")
    run = run_folder(place / "run", source="data", described=True)
    arrays = embedded(capsys, run, "--data", "data")
    said = supancl(capsys, "embed", run, "--data", "data", "--out", f"f{suffix}", "--device", "cpu")
    assert said.code == 0, said.err
    if suffix == ".csv":
        with open("f.csv", newline="") as file:
            rows = list(csv.DictReader(file))
    else:
        from pyarrow import parquet

        rows = parquet.read_table("f.parquet").to_pylist()
    assert list(rows[0])[:5] == ["path", "label", "split", "held_out", "f0"]
    assert [row["path"] for row in rows] == arrays["train_names"].tolist()
    names = [*arrays["class_names"], ""]
    assert [row["label"] for row in rows] == [names[label] for label in arrays["train_labels"]]
    assert [str(row["held_out"]) for row in rows] == [str(value) for value in arrays["train_held_out"]]
    features = np.array([[np.float32(value) for value in list(row.values())[4:]] for row in rows])
    assert np.array_equal(features, arrays["train_features"])


@pytest.mark.parametrize("out", ["f.csv", "tables/f.csv"])
def test_paths_are_those_of_predict_and_the_table_is_a_source(place, capsys, out):
    run = run_folder(place / "run", source="data", described=True)
    labels, paths = Path(out).parent / "labels.csv", []
    for command, name, flags in (("embed", out, []), ("predict", labels, ["--all"])):
        said = supancl(capsys, command, run, "--data", "./data", "--out", name, "--device", "cpu", *flags)
        assert said.code == 0, said.err
        with open(name, newline="") as file:
            paths.append([row["path"] for row in csv.DictReader(file)])
    assert paths[0] == paths[1]
    assert paths[0][0] == ("data/cat/0.png" if out == "f.csv" else str(place / "data" / "cat" / "0.png"))
    assert len(open_data(DataSpec(source=out, holdout=0, columns="image=path,label=label"), 1).train) == 40


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_names_in_another_encoding_are_written_with_escapes(place, capsys, suffix):
    (place / "data" / "dog").rename(place / "data" / os.fsdecode(b"h\xfcnd"))
    said = supancl(capsys, "embed", run_folder(place / "run"), "--data", "data", "--out", f"f{suffix}")
    assert said.code == 0, said.err
    if suffix == ".csv":
        with open("f.csv", encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    else:
        from pyarrow import parquet

        rows = parquet.read_table("f.parquet").to_pylist()
    assert {(row["label"], Path(row["path"]).parent.name) for row in rows} == {("cat",) * 2, (r"h\udcfcnd",) * 2}


# --- nested labels ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".parquet"])
def test_nested_labels_are_written_as_they_came_and_read_back(place, capsys, suffix):
    class_folders(place / "nested", ("animal/cat", "animal", "plant", "unlabelled"), 6)
    settings = {"hierarchy": "paths", "level_weights": (2.0, 1.0)}
    run = run_folder(place / "run", source="nested", **{f"data__{name}": value for name, value in settings.items()})
    said = supancl(capsys, "embed", run, "--data", "nested", "--out", f"f{suffix}", "--device", "cpu")
    assert said.code == 0, said.err
    if suffix == ".npz":
        with np.load("f.npz") as arrays:
            assert arrays["class_names"].tolist() == ["animal", "animal/cat", "plant"]
            paths, numbers = arrays["train_names"].tolist(), arrays["train_labels"]
        assert numbers.shape == (24,)
        labels = [["animal", "animal/cat", "plant", ""][number] for number in numbers]
    elif suffix == ".csv":
        with open("f.csv", newline="") as file:
            paths, labels = zip(*((row["path"], row["label"]) for row in csv.DictReader(file)), strict=True)
    else:
        from pyarrow import parquet

        paths, labels = (parquet.read_table("f.parquet")[name].to_pylist() for name in ("path", "label"))
    folders = [Path(path).parent.relative_to("nested").as_posix() for path in paths]
    assert list(labels) == ["" if folder == "unlabelled" else folder for folder in folders]
    original = open_data(DataSpec(source="nested", holdout=0, **settings), 1)
    if suffix == ".npz":
        spec = DataSpec("again", holdout=0, **settings)
        again = from_arrays(noise(24, 8, 8), numbers, classes=["animal", "animal/cat", "plant"], spec=spec)
    else:
        table(place / "again.csv", "path,label", *map(",".join, zip(paths, labels, strict=True)))
        again = open_data(DataSpec(source="again.csv", holdout=0, **settings), 1)
    assert (again.classes, again.levels) == (original.classes, original.levels)
    assert torch.equal(again.train.all_labels.pairs, original.train.all_labels.pairs)


# --- several and soft labels ------------------------------------------------------------------------------------------


def test_soft_labels_in_a_table_are_read_back_as_they_came(place, capsys):
    labels = ["circle:0.3;", "square", "circle:0.5;disk:2:1", "", "disk:1:1;"] * 4
    files = [Path("data") / "cat" / f"{i}.png" for i in range(20)]
    lines = [f"{file},{label}" for file, label in zip(files, labels, strict=True)]
    table(place / "soft.csv", "path,label", *lines)
    run = run_folder(place / "run", source="soft.csv", described=True)
    said = supancl(capsys, "embed", run, "--data", "soft.csv", "--out", "f.csv", "--device", "cpu")
    assert said.code == 0, said.err
    with open("f.csv", newline="") as file:
        assert [row["label"] for row in csv.DictReader(file)] == labels
    original, again = (
        open_data(DataSpec(source=name, holdout=0, columns=columns), 1)
        for name, columns in (("soft.csv", ""), ("f.csv", "image=path,label=label"))
    )
    assert again.classes == original.classes == ("circle", "disk:1", "disk:2", "square")
    assert torch.equal(again.train.all_labels.pairs, original.train.all_labels.pairs)
