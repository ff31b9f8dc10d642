"""What `data show` knows: counts, sizes, bytes, and pictures of the images and of the recipe's views."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from supancl import recipe
from supancl.data.opening import open_source
from supancl.data.show import describe_source, find_copies, histogram, image_sizes, summarize_sizes
from supancl.data.splits import DataSpec, full_split
from supancl.data.store.memory import ArrayImages, PackedImages
from supancl.files import digest
from supancl.reporter import ProgressFunction, report_to
from supancl.reports.samples import (
    CAPTION,
    GAP,
    TILE,
    draw_image_sheet,
    draw_view_sheet,
    pick_by_class,
)
from supancl.training.start import with_short_side
from tests import files as made
from tests.files import archive, noise, picture


def of(path, channels=3, **options):
    spec = DataSpec(source=str(path), skip_bad_images=True, **options)
    found = open_source(spec, channels)
    return found, describe_source(found, spec, channels, image_sizes(found))


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
    areas = [20 * 40, 30 * 40, 30 * 30, 37 * 30, 45 * 30]  # of the five cats, with a short side of at most 30
    assert facts["bytes"] == 3 * (sum(areas) + sum(areas[:2]) + areas[0] + sum(areas[:3]))
    assert facts["unreadable"] == {str(tmp_path / "data" / "train" / "dog" / "bad.png"): "no known image format"}
    assert facts["kept"] == "in memory"
    assert facts["remarks"] == [], "what is unreadable is told once"


def test_arrays_count_their_own_bytes_and_are_not_shrunk(tmp_path):
    path = archive(
        tmp_path / "a.npz", train_images=noise(20, 40, 30), test_images=noise(4, 40, 30), test_labels=np.zeros(4, int)
    )
    _, facts = of(path, 1, short_side=10)
    assert facts["bytes"] == 24 * 40 * 30
    assert facts["short_side"] is None
    assert facts["sizes"] == {"height": [40] * 3, "width": [30] * 3, "short side": [30] * 3}


def test_sizes_and_histogram_of_the_built_in_data():
    digits = open_source(DataSpec(source="digits"), 1)
    assert image_sizes(digits).shape == (1797, 2)
    counted = histogram(digits)
    assert sum(each["train"] for each in counted.values()) == 1797
    assert list(counted) == list("0123456789")
    assert summarize_sizes(np.array([[1, 5], [3, 3], [9, 2]])) == {
        "height": [1, 3, 9],
        "width": [2, 3, 5],
        "short side": [1, 2, 3],
    }


# --- copies -----------------------------------------------------------------------------------------------------------


def written(root, files):
    """{name: seed}: files of the same seed are the same."""
    for name, seed in files.items():
        picture(root / name, seed=seed, size=(4, 4))
    return open_source(DataSpec(source=str(root)), 1)


def test_copies_are_counted_by_content_and_by_what_they_contradict(tmp_path):
    files = {
        "train/a/0.bmp": 0,
        "train/a/1.bmp": 1,
        "train/a/2.bmp": 1,
        "train/b/3.bmp": 1,
        "train/b/4.bmp": 4,
        "val/b/5.bmp": 4,
        "train/unlabelled/6.bmp": 0,
        "val/a/7.bmp": 7,
    }
    found = find_copies(written(tmp_path, files))
    # by comparing every pair: 0 and 6; 1, 2 and 3; 4 and 5
    contents = {name: (tmp_path / name).read_bytes() for name in files}
    twice = [name for name in files if list(contents.values()).count(contents[name]) > 1]
    assert found["files"] == len(twice) == 7
    assert found["images"] == len({contents[name] for name in twice}) == 3
    assert found["in_several_splits"] == 1
    assert found["labels_differ"] == 1, "no label contradicts none"
    (pair,) = found["examples"]
    assert {Path(name).parent.name for name in pair} == {"a", "b"}
    assert {contents[str(Path(name).relative_to(tmp_path))] for name in pair} == {contents["train/b/3.bmp"]}


def test_only_files_of_equal_size_are_read_and_three_contradictions_are_named(tmp_path, monkeypatch):
    found = written(tmp_path, {f"{kind}/{i}.bmp": i for kind in "ab" for i in range(5)})
    picture(tmp_path / "a" / "9.bmp", size=(9, 9))
    opened, told = [], []
    monkeypatch.setattr("supancl.data.show.digest", lambda path, really=digest: opened.append(path) or really(path))
    source = open_source(DataSpec(source=str(tmp_path)), 1)
    with report_to(ProgressFunction(lambda *progress: told.append(progress))):
        counted = find_copies(source)
    assert len(found.items) == len(told) == 10
    assert told[-1] == ("comparing files of equal size", 10, 10)
    assert (counted["files"], counted["labels_differ"], len(counted["examples"])) == (10, 5, 3)
    assert opened.count(tmp_path / "a" / "9.bmp") == 0
    assert opened.count(tmp_path / "a" / "0.bmp") == 1


def test_a_table_that_lists_a_file_twice_has_no_copy_of_it(tmp_path):
    for name, seed in (("x", 0), ("y", 1), ("z", 1)):
        picture(tmp_path / f"{name}.bmp", seed=seed)
    path = made.table(tmp_path / "list.csv", "path,label", "x.bmp,a", "x.bmp,a", "y.bmp,a", "z.bmp,b")
    found = find_copies(open_source(DataSpec(source=str(path)), 1))
    assert (found["files"], found["images"], found["labels_differ"]) == (2, 1, 1)


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


def test_a_sheet_of_few_images_has_only_the_rows_it_needs(tmp_path):
    draw_image_sheet(coloured(5), ["r", "g", "b" * 200], tmp_path / "sheet.png", columns=8)
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size == (8 * (TILE + GAP) + GAP, TILE + CAPTION + GAP + GAP)
        assert (tile(sheet, 0, 6) == 255).all()


def test_grey_images_are_drawn_grey(tmp_path):
    split = full_split(ArrayImages(torch.full((2, 1, 8, 8), 77, dtype=torch.uint8)), torch.tensor([0, -1]), ["a", "b"])
    draw_image_sheet(split, ["only"], tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert tile(sheet, 0, 0)[TILE // 2, TILE // 2].tolist() == [77] * 3


@pytest.mark.parametrize("name", ["cifar100.supsiam", "imagenet100.supsiam"])
def test_a_view_sheet_has_a_row_per_image_with_its_views_in_true_colours(tmp_path, name):
    chosen = with_short_side(recipe(name)).with_set({"views.grey": 0.0, "views.jitter": 0.0})
    draw_view_sheet(coloured(), chosen, tmp_path / "views.png", count=3, views=4)
    with Image.open(tmp_path / "views.png") as sheet:
        assert sheet.size == (5 * (TILE + GAP) + GAP, 3 * (TILE + CAPTION + GAP) + GAP)
        for row in range(3):
            for column in range(5):
                middle = tile(sheet, row, column)[TILE // 2, TILE // 2]
                assert middle.argmax() == row
                assert abs(int(middle[row]) - 250) <= 2


def test_views_of_a_sheet_are_the_same_every_time(tmp_path):
    for name in ("a", "b"):
        draw_view_sheet(coloured(), recipe("cifar100.supsiam"), tmp_path / f"{name}.png", count=2)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_chosen_images_go_through_the_classes_in_turn():
    labels = torch.tensor([0] * 50 + [1] * 3 + [2] * 10 + [-1] * 4)
    chosen = pick_by_class(labels, 16)
    assert torch.equal(chosen, pick_by_class(labels, 16))
    assert len(set(chosen.tolist())) == 16
    counts = {label: int((labels[chosen] == label).sum()) for label in (-1, 0, 1, 2)}
    assert counts[1] == 3
    assert all(4 <= counts[label] <= 5 for label in (-1, 0, 2))
    assert labels[chosen].tolist() == sorted(labels[chosen].tolist())
    assert len(pick_by_class(labels[:3], 48)) == 3
