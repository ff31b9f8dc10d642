"""What `data show` knows: counts, sizes, bytes, and pictures of the images and of the recipe's views."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image

from supancl.data.opening import open_source
from supancl.data.splits import DataSpec, full_split
from supancl.data.store.memory import PackedImages
from supancl.reports.listings import describe_source
from supancl.reports.pictures import (
    CAPTION,
    GAP,
    TILE,
    draw_image_sheet,
)
from tests.files import picture


def of(path, channels=3, **options):
    spec = DataSpec(source=str(path), skip_bad_images=True, **options)
    found = open_source(spec, channels)
    return found, describe_source(found, spec)


def folder(root):
    for split, kind, count in (("train", "cat", 5), ("train", "dog", 2), ("val", "cat", 1), ("train", "unlabelled", 3)):
        for i in range(count):
            picture(root / split / kind / f"{i}.png", seed=i, size=(20 + 10 * i, 40), mode="RGB")
    return root


def test_counts_histogram_sizes_and_bytes_of_a_folder(tmp_path):
    (folder(tmp_path / "data") / "train" / "dog" / "bad.png").write_bytes(b"bad")
    _, facts = of(tmp_path / "data", short_side=30)
    assert facts["splits"] == {
        "train": {"images": 10, "labelled": 7, "classes": 2},
        "val": {"images": 1, "labelled": 1, "classes": 1},
    }
    assert facts["histogram"] == {
        "cat": {"train": 5, "val": 1},
        "dog": {"train": 2, "val": 0},
        "(unlabelled)": {"train": 3, "val": 0},
    }
    assert facts["sizes"] == {"height": [20, 30, 60], "width": [40, 40, 40], "short side": [20, 30, 40]}
    assert facts["unreadable"] == {str(tmp_path / "data" / "train" / "dog" / "bad.png"): "no known image format"}


# --- contact sheets ---------------------------------------------------------------------------------------------------


def coloured(count=12):
    """Images of one colour each: class 0 red, 1 green, 2 blue; sizes differ."""
    pixels = []
    for i in range(count):
        image = torch.zeros(3, 10 + i, 20, dtype=torch.uint8)
        image[i % 3] = 250
        pixels.append(image)
    return full_split(PackedImages.from_images(pixels), torch.arange(count) % 3, [str(i) for i in range(count)])


def tile(sheet, row, column):
    left, top = GAP + column * (TILE + GAP), GAP + row * (TILE + CAPTION + GAP)
    return np.array(sheet)[top : top + TILE, left : left + TILE]


def test_an_image_sheet_shows_each_class_in_its_own_colours(tmp_path):
    draw_image_sheet(coloured(), ["red", "green", "blue"], tmp_path / "sheet.png", count=9, columns=3)
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size == (3 * (TILE + GAP) + GAP, 3 * (TILE + CAPTION + GAP) + GAP)
        for row in range(3):
            for column in range(3):
                middle = tile(sheet, row, column)[TILE // 2, TILE // 2]
                assert middle.tolist() == [250 if channel == row else 0 for channel in range(3)]
        captions = np.array(sheet)[GAP + TILE + 1 : GAP + TILE + CAPTION]
        assert (captions < 128).any(), "the class is written below"
