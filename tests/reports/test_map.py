"""Maps: thumbnails on sheets, which images are shown, the size of the page."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from supancl.data.splits import full_split
from supancl.data.store.memory import ArrayImages
from supancl.probes import Features
from supancl.reports.map import map_page, predict_by_neighbours
from supancl.reports.page import BYTES_PER_IMAGE, draw_sprites
from supancl.reports.pictures import Panel, draw_panels
from tests.helpers import noise
from tests.reports.made import NASTY, made_images, made_map, smooth_images


def tile(sprites: dict, index: int) -> np.ndarray:
    """The pixels of one thumbnail, as sprites.js finds them."""
    columns, side = sprites["columns"], sprites["side"]
    sizes = np.frombuffer(base64.b64decode(sprites["sizes"]["base64"]), np.uint8).reshape(-1, 2)
    content = base64.b64decode(sprites["sheets"][index // columns**2])
    sheet = np.array(Image.open(io.BytesIO(content)).convert("RGB"))
    slot, (width, height) = index % columns**2, sizes[index].tolist()
    top, left = slot // columns * side, slot % columns * side
    return sheet[top : top + height, left : left + width].transpose(2, 0, 1)


def split_of(pixels: np.ndarray):
    labels = torch.zeros(len(pixels), dtype=torch.long)
    return full_split(ArrayImages(torch.from_numpy(pixels)), labels, [str(i) for i in range(len(pixels))])


def test_every_image_is_found_on_its_sheet():
    pixels = smooth_images(150)
    sprites = draw_sprites([split_of(pixels[:100]), split_of(pixels[100:])], "", side=256)  # 64 per sheet
    assert len(sprites["sheets"]) == 3
    for index in (0, 63, 64, 99, 100, 149):
        differences = np.abs(pixels.astype(int) - tile(sprites, index)).mean((1, 2, 3))
        assert differences.argmin() == index


def test_a_page_has_at_most_so_many_bytes_per_image(monkeypatch):
    count = 400
    monkeypatch.setattr("supancl.reports.page.USUAL_BYTES", 0)
    monkeypatch.setattr("supancl.reports.page.SIDES", {})
    images = made_images(count, ("a", "b"), noise(count, 3, 32, 32))
    maps = [made_map(str(seed), count, seed, exact=False)[0] for seed in range(3)]
    empty = len(map_page(made_images(2, ("a", "b")), []))  # scripts and style
    assert len(map_page(images, maps)) - empty < 1.02 * BYTES_PER_IMAGE * count


def test_names_are_text():
    images = made_images(20, (NASTY, "b"), source=NASTY)
    maps = [made_map(NASTY, 20, 0)[0]]
    page = map_page(images, maps)
    assert "<img" not in page
    data = json.loads(re.search(r'id="data-map">(.*?)</script>', page)[1])
    assert data["classes"][0] == NASTY
    assert data["prefix"] == "photos/"


def test_a_label_is_predicted_by_the_other_labelled_images():
    random = np.random.default_rng(0)
    labels = np.where(np.arange(60) % 10 == 9, -1, np.arange(60) % 3)
    values = random.normal(size=(60, 4)) + 2 * np.eye(4)[np.arange(60) % 3]
    features = Features(torch.from_numpy(values).float(), torch.from_numpy(labels))
    predicted, share = predict_by_neighbours(features, 3)
    unit = values / np.linalg.norm(values, axis=1, keepdims=True)
    similarity = unit @ unit.T - 9 * np.eye(60) - 9 * (labels < 0)[None]
    for row in range(60):
        nearest = np.argsort(-similarity[row])[:4]  # a quarter of the 17 other references of a class
        weights = np.exp(similarity[row][nearest] / 0.1)
        votes = np.bincount(labels[nearest], weights, 3)
        assert (predicted[row], share[row]) == (votes.argmax(), pytest.approx(votes.max() / votes.sum(), abs=1e-4))
    alone = predict_by_neighbours(Features(features.values, torch.full((60,), -1)), 3)
    assert set(alone[0].tolist()) == {-1}


@pytest.mark.parametrize("suffix", [".svg", ".pdf"])
def test_a_drawing_of_many_points_is_small(tmp_path, suffix):
    path = Path(tmp_path / f"map{suffix}")
    points = np.random.default_rng(0).normal(size=(12_000, 2))
    draw_panels([Panel("a", points, np.arange(12_000) % 2)], ("a", "b"), path)
    assert path.stat().st_size < 600_000
