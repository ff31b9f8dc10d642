"""Each kind of label from a file to an evaluated encoder: nested, few."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.files import supancl

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


def nested(here: Path) -> Source:
    save(here / "photos", lambda number: f"{group(number)}/{shade(number)}/{number}.png")
    return "photos", "digits.supsiam", NESTED


def few(here: Path) -> Source:
    save(here / "photos", lambda number: f"{'unlabelled' if number % 20 > 7 else shade(number)}/{number}.png")
    return "photos", "digits.semi", ["--set", "loss.warmup=2"]


@pytest.mark.parametrize("make", [nested, few])
def test_a_file_becomes_an_encoder_that_is_better_than_chance(make, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source, recipe, words = make(tmp_path)
    trained = supancl(capsys, "pretrain", recipe, "--data", source, *TINY, *words, "--out", "run")
    assert trained.code == 0, trained.err
    for protocol in ("knn", "linear"):
        said = supancl(capsys, "evaluate", protocol, "run", "--device", "cpu", "--json", "found.json", "--no-baselines")
        assert said.code == 0, said.err
        found = json.loads((tmp_path / "found.json").read_text())
        assert found["tested_images"] > 0
        assert found["accuracy"] > found["chance"]
        assert f"{found['accuracy']:.2f}%" in said.out
    assert len(found.get("levels", [])) == (2 if make is nested else 0)
