"""Each kind of label from a file to an evaluated encoder: several, soft, lists, VOC's objects, nested, few."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image

from tests.files import archive, supancl, table

IMAGES, SHADES = 80, ("black", "grey", "silver", "white")
TINY = ["--epochs", "2", "--batch-size", "16", "--device", "cpu", "--quiet", "--set", "encoder.width=16",
        "--set", "pool.size=16"]  # fmt: skip
NESTED = ["--set", "data.hierarchy=paths"]
Source = tuple[str, str, list[str]]  # what --data is, the recipe, further words


def shade(number: int) -> str:
    return SHADES[number % len(SHADES)]


def group(number: int) -> str:
    """Dark or light."""
    return ("dark", "light")[number % len(SHADES) // 2]


def pictures() -> Iterator[Image.Image]:
    """Grey images with noise, whose mean is the shade of their number."""
    chance = np.random.default_rng(0)
    for number in range(IMAGES):
        pixels = 60 * (number % len(SHADES)) + chance.integers(0, 60, (8, 8))
        yield Image.fromarray(pixels.astype(np.uint8))


def save(folder: Path, name_of: Callable[[int], str]) -> Path:
    for number, picture in enumerate(pictures()):
        path = folder / name_of(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path)
    return folder


def listed(here: Path, header: str, label_of: Callable[[int], str]) -> Source:
    save(here, "{}.png".format)
    table(here / "list.csv", header, *(f"{number}.png,{label_of(number)}" for number in range(IMAGES)))
    return "list.csv", "digits.supsiam", []


def several_names(here: Path) -> Source:
    return listed(here, "path,label", lambda number: f"{shade(number)};{group(number)}")


def soft_names(here: Path) -> Source:
    return listed(here, "path,label", lambda number: f"{shade(number)}:0.7;{group(number)}:0.3")


def columns(here: Path) -> Source:
    rows = {name: ",".join(str(int(name == other)) for other in SHADES) for name in SHADES}
    return listed(here, f"path,{','.join(SHADES)},pale", lambda number: f"{rows[shade(number)]},{number % 4 // 2}")


def matrix(here: Path) -> Source:
    numbers = np.arange(IMAGES) % len(SHADES)
    weights = np.concatenate([np.eye(4)[numbers], 0.5 * np.eye(2)[numbers // 2]], axis=1)
    images = np.stack([np.asarray(picture) for picture in pictures()])
    archive(here / "made.npz", train_images=images, train_labels=weights, class_names=[*SHADES, "dark", "light"])
    return "made.npz", "digits.supsiam", []


def lists(here: Path) -> Source:
    names = datasets.ClassLabel(names=[*SHADES, "dark", "light"])
    content = {"image": list(pictures()), "labels": [[shade(i), group(i)] for i in range(IMAGES)]}
    features = datasets.Features({"image": datasets.Image(), "labels": datasets.Sequence(names)})
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(content, features).save_to_disk(here / "lists")
    return "hf:lists", "digits.supsiam", []


def voc(here: Path) -> Source:
    save(here / "VOC2012" / "JPEGImages", "{}.jpg".format)
    (here / "VOC2012" / "Annotations").mkdir()
    for number in range(IMAGES):
        objects = "".join(f"<object><name>{name}</name></object>" for name in (shade(number), group(number)))
        table(here / "VOC2012" / "Annotations" / f"{number}.xml", f"<annotation>{objects}</annotation>")
    (here / "VOC2012" / "ImageSets" / "Main").mkdir(parents=True)
    table(here / "VOC2012" / "ImageSets" / "Main" / "train.txt", *map(str, range(IMAGES)))
    return "VOC2012", "digits.supsiam", []


def nested(here: Path) -> Source:
    save(here / "photos", lambda number: f"{group(number)}/{shade(number)}/{number}.png")
    return "photos", "digits.supsiam", NESTED


def few(here: Path) -> Source:
    save(here / "photos", lambda number: f"{'unlabelled' if number % 20 > 7 else shade(number)}/{number}.png")
    return "photos", "digits.semi", ["--set", "loss.warmup=2"]


@pytest.mark.parametrize("make", [several_names, soft_names, columns, matrix, lists, voc, nested, few])
def test_a_file_becomes_an_encoder_that_is_better_than_chance(make, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source, recipe, words = make(tmp_path)
    trained = supancl(capsys, "pretrain", recipe, "--data", source, *TINY, *words, "--out", "run")
    assert trained.code == 0, trained.err
    figure = "accuracy" if make in (nested, few) else "map"
    for protocol in ("knn", "linear"):
        said = supancl(capsys, "evaluate", protocol, "run", "--device", "cpu", "--json", "found.json", "--no-baselines")
        assert said.code == 0, said.err
        found = json.loads((tmp_path / "found.json").read_text())
        assert found["tested_images"] > 0
        assert found[figure] > found["chance"]
        assert f"{found[figure]:.2f}%" in said.out
    assert len(found.get("levels", [])) == (2 if make is nested else 0)
