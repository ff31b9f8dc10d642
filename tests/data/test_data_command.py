"""`supancl data show|check`, as typed."""

from __future__ import annotations

import io
import json
from pathlib import Path

import datasets
import numpy as np
import pytest
import webdataset
from PIL import Image

from tests.files import (
    archive,
    assert_refused,
    class_folders,
    noise,
    picture,
    supancl,
    table,
)


def json_of(said) -> dict:
    return json.loads(said.out[said.out.index("{") :])


def show(capsys, tmp_path: Path, source: object, *more: object) -> dict:
    said = supancl(capsys, "data", "show", source, "--json", "-", "--out", tmp_path / "sheets", *more)
    assert said.code == 0, said.err
    return json_of(said)


def write_tar(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with webdataset.TarWriter(str(path)) as writer:
        for i in range(6):
            content = io.BytesIO()
            Image.fromarray(noise(9, 8, 3, seed=i)).save(content, "png")
            writer.write({"__key__": f"{i}", "png": content.getvalue(), "cls": i % 2})
    return path


def write_hugging_face(path: Path) -> str:
    content = io.BytesIO()
    Image.fromarray(noise(9, 8, 3)).save(content, "png")
    kinds = datasets.ClassLabel(names=["x", "y"])
    features = datasets.Features({"image": datasets.Image(), "label": kinds})
    rows = {"image": [{"bytes": content.getvalue(), "path": None}] * 6, "label": [0, 1] * 3}
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(rows, features).save_to_disk(path)
    return f"hf:{path}"


def a_table(root: Path) -> Path:
    picture(root / "a.png", size=(9, 8))
    picture(root / "b.png", size=(9, 8))
    return table(root / "list.csv", "path,label,split", *["a.png,cat,train", "b.png,dog,train"] * 3, "a.png,cat,val")


SOURCES = {
    "folder": lambda root: class_folders(root / "data"),
    "npz": lambda root: archive(root / "data.npz"),
    "csv": lambda root: a_table(root),
    "tar": lambda root: write_tar(root / "shards" / "train-0.tar").parent,
    "hf": lambda root: write_hugging_face(root / "saved"),
    "torchvision": lambda root: f"torchvision:ImageFolder@{class_folders(root / 'data')}",
    "digits": lambda root: "digits",
}


@pytest.mark.parametrize("kind", list(SOURCES))
def test_show_counts_and_draws_every_kind_of_source(capsys, tmp_path, cache_root, kind):
    facts = show(capsys, tmp_path, SOURCES[kind](tmp_path))
    images = {"folder": 12, "npz": 20, "csv": 6, "tar": 6, "hf": 6, "torchvision": 12, "digits": 1797}[kind]
    assert facts["splits"]["train"]["images"] == images
    assert facts["classes"] == (10 if kind == "digits" else 2)
    assert sum(sum(each.values()) for each in facts["histogram"].values()) == images + (kind == "csv")
    assert facts["unreadable"] == {}
    for name, picture_path in zip(("images.png", "views.png"), facts["pictures"], strict=True):
        assert Path(picture_path) == tmp_path / "sheets" / name
        with Image.open(picture_path) as sheet:
            assert np.array(sheet).std() > 10
    assert not list(cache_root.glob("*/.lock")), "looking leaves no cache behind"


# --- benchmarks -------------------------------------------------------------------------------------------------------


def test_check_without_a_root_says_what_to_download(capsys):
    said = supancl(capsys, "data", "check", "pets", "--json", "-")
    assert said.code == 0
    found = json_of(said)
    assert found["name"] == "pets"
    assert "oxford-iiit-pet" in found["where"]


def test_check_of_data_that_are_not_whole_fails_and_writes_what_it_found(capsys, tmp_path):
    for split in ("trainval", "test"):
        (tmp_path / "pets/annotations").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"pets/annotations/{split}.txt").write_text(f"Abyssinian_{split} 1 1 1")
    said = supancl(capsys, "data", "check", "pets", "--root", tmp_path, "--json", tmp_path / "found.json")
    assert_refused(said, "pets", tmp_path, "supancl data check pets", code=1)
    assert json.loads((tmp_path / "found.json").read_text())["ok"] is False
