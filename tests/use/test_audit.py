"""`supancl audit`: from the command to the tables, on labels that were flipped; and what it refuses."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

from supancl.data.opening import open_data
from supancl.runs.folder import RunFolder
from tests.evaluation.made import SPEC, run_folder
from tests.helpers import archive, assert_refused, class_folders, contents, noise, supancl, table

COUNT = 600
FLIPPED = 60


def read(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """600 digits in files and a .csv with 60 flipped labels, two copies, and a run of random weights."""
    root = tmp_path_factory.mktemp("audit")
    images, digits = load_digits(return_X_y=True)
    random = np.random.default_rng(0)
    labels = digits[:COUNT].copy()
    flipped = random.choice(COUNT, FLIPPED, replace=False)
    labels[flipped] = (labels[flipped] + random.integers(1, 10, FLIPPED)) % 10
    (root / "images").mkdir()
    for i, image in enumerate(images[:COUNT]):
        Image.fromarray((image * 15).astype(np.uint8).reshape(8, 8)).save(root / f"images/{i:03d}.png")
    rows = [f"{'test' if i >= 500 else ''},images/{i:03d}.png,{names(label)},n" for i, label in enumerate(labels)]
    Image.open(root / "images/007.png").save(root / "images/copy.png")
    table(root / "digits.csv", "split,file,label,note", *rows, f"test,images/copy.png,{names(3)},")
    np.save(root / "true.npy", digits[:COUNT])
    np.save(root / "flipped.npy", np.sort(flipped))
    run_folder(root / "run", source=str(root / "digits.csv"), spec=replace(SPEC, width=64), data__columns="image=file")
    return root


def names(label: int) -> str:
    return f'"digit, {label}"'


@pytest.fixture(autouse=True)
def here(place, monkeypatch):
    monkeypatch.chdir(place)


def test_the_images_of_the_run_are_known_under_another_name(place, capsys, tmp_path) -> None:
    recipe = RunFolder(Path("run")).read_recipe()[0]
    content = open_data(recipe.data, recipe.encoder.channels).content
    assert content is not None
    (place / "run" / "content.npz").write_bytes(content.to_bytes())
    lines = (place / "digits.csv").read_text().splitlines()
    part = table(place / "half.csv", lines[0].replace("file", "path"), *lines[1:300])
    said = supancl(capsys, "audit", "run", "--data", part.name, "--out", tmp_path / "out")
    assert said.code == 0, said.err
    assert json.loads((tmp_path / "out" / "audit.json").read_text())["trained_on_these_labels"]
    # decisions that are saved from the page name images as the tables do
    page = (tmp_path / "out" / "audit.html").read_text(encoding="utf-8")
    shown = json.loads(re.search(r'id="data-audit">(.*?)</script>', page)[1])
    suspects = {row["path"] for row in read(tmp_path / "out" / "suspects.csv")}
    assert suspects <= {shown["prefix"] + name for name in shown["names"]}
    blank = [np.full((8, 8), level, np.uint8) for level in range(40)]
    archive(tmp_path / "other.npz", train_images=np.stack(blank), train_labels=np.arange(40) % 2)
    said = supancl(capsys, "audit", "run", "--data", tmp_path / "other.npz", "--out", tmp_path / "other")
    assert not json.loads((tmp_path / "other" / "audit.json").read_text())["trained_on_these_labels"]


def test_flipped_labels_are_found_and_corrected(place, capsys, tmp_path) -> None:
    """Measured with these random weights: AUROC .999, and 57 of the 59 first suspects are flipped."""
    out, before = tmp_path / "out", (place / "digits.csv").read_bytes()
    flags = ["--out", out, "--corrected", tmp_path / "fixed.csv", "--lead", "0.3", "--json", tmp_path / "r.json"]
    said = supancl(capsys, "audit", "run", *flags)
    assert said.code == 0, said.err
    flipped, true = np.load("flipped.npy"), np.load("true.npy")
    suspects = read(out / "suspects.csv")
    scores = np.ones(COUNT)
    for row in suspects:
        if not row["path"].endswith("copy.png"):
            scores[int(Path(row["path"]).stem)] = float(row["score"])
    assert roc_auc_score(np.isin(np.arange(COUNT), flipped), -scores) > 0.96
    assert [float(row["score"]) for row in suspects] == sorted(float(row["score"]) for row in suspects)
    first = suspects[: FLIPPED // 2]
    assert np.mean([int(Path(row["path"]).stem) in flipped for row in first]) > 0.8
    assert {row["split"] for row in suspects} <= {"train", "test"}
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["suspects"] == len(suspects)
    low, high = result["wrong_interval"]
    assert low < 10 < high
    assert f"{result['wrong_percent']:.1f}%" in said.out
    assert json.loads((out / "audit.json").read_text())["made_by"] == "supancl audit"

    pair = read(out / "duplicates.csv")[0]
    assert Path(pair["path"]).name == "007.png"
    assert (Path(pair["other_path"]).name, pair["kind"], pair["labels_differ"]) == ("copy.png", "same pixels", "yes")
    assert (pair["split"], pair["other_split"]) == ("train", "test")

    fixed, given = read(tmp_path / "fixed.csv"), read(place / "digits.csv")
    changed = [row for row in fixed if row["changed_from"]]
    leads = [float(row["suggested_score"]) - float(row["score"]) for row in suspects]
    assert len(changed) == result["changed"] == sum(lead >= 0.3 for lead in leads)
    assert [row["changed_from"] or row["label"] for row in fixed] == [row["label"] for row in given]
    assert [row["note"] for row in fixed] == [row["note"] for row in given]
    assert all(Path(row["file"]).is_absolute() and Path(row["file"]).is_file() for row in fixed)  # another folder
    assert {row["label"] for row in changed} == {""}
    wrong = [
        np.mean([row["label"] not in ("", f"digit, {true[i]}") for i, row in enumerate(rows[:COUNT])])
        for rows in (given, fixed)
    ]
    assert wrong[1] < wrong[0] / 2
    assert (place / "digits.csv").read_bytes() == before


def test_an_audit_may_be_repeated_but_replaces_nothing_else(place, capsys, tmp_path) -> None:
    data = class_folders(tmp_path / "photos", each=4)
    flags = ["--data", data, "--out", tmp_path / "out"]
    said = supancl(capsys, "audit", "run", *flags)
    assert said.code == 0, said.err
    once = contents(tmp_path / "out")
    assert supancl(capsys, "audit", "run", *flags).code == 0
    assert contents(tmp_path / "out") == once
    (tmp_path / "other").mkdir()
    (tmp_path / "other/mine.txt").touch()
    assert_refused(supancl(capsys, "audit", "run", "--data", data, "--out", tmp_path / "other"), "out", "exists")
    (tmp_path / "out/suspects.csv").unlink()  # as if it had been killed
    (tmp_path / "out/audit.json").write_text('{"made_by": "supancl audit"}')
    assert supancl(capsys, "audit", "run", *flags).code == 0
    assert contents(tmp_path / "out") == once


def test_partly_labelled_arrays_and_weight_files(place, capsys, tmp_path) -> None:
    """Unlabelled images are neighbours and may be outliers or duplicates, but no suspects."""
    labels = np.where(np.arange(40) % 3 == 0, -1, np.arange(40) % 2)
    images = noise(40, 8, 8)
    images[39] = images[0]
    archive(tmp_path / "few.npz", train_images=images, train_labels=labels)
    flags = ["--data", tmp_path / "few.npz", "--out", tmp_path / "out"]
    said = supancl(capsys, "audit", "run/encoder.safetensors", *flags)
    assert said.code == 0, said.err
    assert all(row["label"] in ("0", "1") for row in read(tmp_path / "out/suspects.csv"))
    assert read(tmp_path / "out/duplicates.csv")[0]["labels_differ"] == ""  # one of the two has no label
