"""`supancl map`: from the command to the page, and what it refuses."""

from __future__ import annotations

import base64
import json
import re

import numpy as np
import pytest

from tests.helpers import TINY, class_folders, supancl


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two runs on the same class folders."""
    from supancl.cli import main

    root = tmp_path_factory.mktemp("map")
    data = class_folders(root / "photos", ("cat", "dog", "owl"), each=12)
    for seed in (0, 1):
        flags = ["--data", data, "--seed", seed, "--out", root / f"run{seed}", *TINY, "--quiet"]
        assert main(["pretrain", "digits.supsiam", *map(str, flags)]) == 0
    return root


@pytest.fixture(autouse=True)
def here(place, monkeypatch):
    monkeypatch.chdir(place)


def page_data(path, name="map"):
    return json.loads(re.search(rf'id="data-{name}">(.*?)</script>', path.read_text(encoding="utf-8"))[1])


def unpack(packed):
    return np.frombuffer(base64.b64decode(packed["base64"]), np.dtype(packed["dtype"]).newbyteorder("<"))


def test_a_page_of_two_runs_agrees_with_embed(place, capsys, tmp_path):
    out = tmp_path / "map.html"
    said = supancl(
        capsys, "map", "run0", "second=run1", "--data", "photos", "--out", out, "--json", tmp_path / "r.json"
    )
    assert said.code == 0, said.err
    result = json.loads((tmp_path / "r.json").read_text())
    assert (result["images"], result["classes"], result["titles"]) == (36, 3, ["run0", "second"])
    data = page_data(out)
    supancl(capsys, "embed", "run1", "--data", "photos", "--out", tmp_path / "f.npz")
    found = np.load(tmp_path / "f.npz")
    # a table that is saved from the page lies somewhere else, so its paths begin at the root
    assert [data["prefix"] + name for name in data["names"]] == [str(place / name) for name in found["train_names"]]
    assert unpack(data["labels"]).tolist() == found["train_labels"].tolist()
    held_out = unpack(data["split_of"]) == data["splits"].index("held-out")
    assert held_out.tolist() == found["train_held_out"].tolist()
    unit = found["train_features"] / np.linalg.norm(found["train_features"], axis=1, keepdims=True)
    similarity = unit @ unit.T - 9 * np.eye(36)
    neighbours = unpack(data["encoders"][1]["neighbours"]).reshape(36, 12)
    values = np.take_along_axis(similarity, neighbours.astype(int), 1)
    assert np.allclose(values, -np.sort(-similarity, axis=1)[:, :12], atol=1e-5)


def test_equal_seeds_give_equal_pages(capsys, tmp_path):
    pages = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        flags = ["--data", "photos", "--seed", seed, "--limit", "20", "--out", tmp_path / f"{name}.html"]
        said = supancl(capsys, "map", "run0", *flags)
        assert said.code == 0, said.err
        pages.append((tmp_path / f"{name}.html").read_bytes())
    assert pages[0] == pages[1] != pages[2]


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_picture_of_chosen_classes(capsys, tmp_path, suffix):
    out = tmp_path / f"map.{suffix}"
    said = supancl(capsys, "map", "run0", "run1", "--data", "photos", "--classes", "cat,owl", "--static", out)
    assert said.code == 0, said.err
    starts = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    assert out.read_bytes().startswith(starts[suffix])
    assert supancl(capsys, "map", "run0", "--data", "photos", "--static", out).code == 0  # replaces its own picture


def test_images_with_several_labels_are_chosen_by_any_of_them(place, capsys, tmp_path):
    cats, owls = (sorted((place / "photos" / name).iterdir()) for name in ("cat", "owl"))
    lines = ["path,label", *(f"{path},{'cat;pet:0.5' if i % 2 else 'cat;wild'}" for i, path in enumerate(cats))]
    lines += [f"{path},owl:0.5;wild:2" for path in owls]
    (tmp_path / "several.csv").write_text("\n".join(lines) + "\n")
    words = ["map", "run0", "--data", tmp_path / "several.csv", "--json", tmp_path / "r.json"]
    said = supancl(capsys, *words, "--classes", "wild", "--out", tmp_path / "map.html")
    assert said.code == 0, said.err
    result = json.loads((tmp_path / "r.json").read_text())
    assert (result["images"], result["classes"]) == (18, 2)
    data = page_data(tmp_path / "map.html")
    names = data["classes"]
    assert (sorted(data["cells"][0].split(";")), data["cells"][-1]) == (["cat", "wild"], "owl:0.5;wild:2")
    coloured = [names[label] for label in unpack(data["labels"])]
    assert coloured == ["cat"] * 6 + ["wild"] * 12  # equal weights: the rarer class; else the larger weight
    assert supancl(capsys, *words, "--static", tmp_path / "map.png").code == 0
