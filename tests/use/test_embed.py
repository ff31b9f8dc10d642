"""`supancl embed`: what what the run held out, and the three formats."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from supancl.data.opening import open_data
from supancl.data.spec import DataSpec
from tests.evaluation.made import run_folder
from tests.helpers import TINY, assert_mentions, class_folders, picture, supancl


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
    assert [str(row["held_out"]).lower() for row in rows] == [str(value).lower() for value in arrays["train_held_out"]]
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
