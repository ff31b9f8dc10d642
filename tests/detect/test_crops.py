"""Objects cut out of their images."""

import numpy as np
import pytest
import torch
from PIL import Image

from supancl.cli import main
from supancl.data.opening import open_data
from supancl.data.splits import DataSpec
from supancl.detect.crops import boxes_to_crop, expand_box, write_crops
from supancl.detect.layouts import DetectData, open_scenes

from .drawn import write_coco, write_voc


@pytest.fixture
def place(tmp_path):
    write_voc(tmp_path, {"train": range(5), "val": range(5, 7)}, difficult=(1,))
    return tmp_path


def opened(place):
    return open_scenes(DetectData(str(place), "2012"))


def test_a_crop_is_the_box_and_its_margin(place):
    train, test = opened(place)
    result = write_crops(train, test, place / "crops", margin=0.25, difficult=True)
    assert result["train"]["crops"] == result["train"]["boxes"] == 10
    assert result["val"]["crops"] == 4
    for position, scene in enumerate(train.scenes):
        with Image.open(scene.path) as whole:
            pixels = np.asarray(whole.convert("RGB")).astype(int)
        for number, (left, top, right, bottom) in enumerate(scene.boxes.tolist()):
            x, y = (right - left) / 4, (bottom - top) / 4
            wanted = pixels[
                max(0, int(np.floor(top - y))) : int(np.ceil(bottom + y)),
                max(0, int(np.floor(left - x))) : int(np.ceil(right + x)),
            ]
            kind = train.classes[int(scene.labels[number])]
            with Image.open(place / "crops" / "train" / kind / f"{scene.path.stem}-{position}-{number}.jpg") as crop:
                found = np.asarray(crop).astype(int)
            assert found.shape == wanted.shape
            assert np.abs(found - wanted).mean() < 5  # a JPEG of a JPEG


def test_the_folder_can_be_pretrained_on(place):
    write_crops(*opened(place), place / "crops")
    data = open_data(DataSpec(str(place / "crops")), 3)
    assert data.classes == ("disc", "square")
    assert len(data.train) == 5  # the second box of every scene is a difficult one
    assert len(data.held_out) == 2


def test_what_is_left_out(place):
    scene = opened(place)[0].scenes[0]
    sides = (scene.boxes[:, 2:] - scene.boxes[:, :2]).amin(1)
    assert boxes_to_crop(scene, 1, difficult=False).tolist() == [True, False]
    assert boxes_to_crop(scene, 1, difficult=True).tolist() == [True, True]
    assert boxes_to_crop(scene, int(sides[0]) + 1, difficult=False).tolist() == [False, False]
    write_coco(place / "a.json", [0, 1], crowd=(0,))
    scenes = open_scenes(DetectData(str(place / "a.json"), test=str(place / "a.json")))[0]
    assert [boxes_to_crop(each, 1, difficult=True).tolist() for each in scenes.scenes] == [[False, True], [False, True]]
    assert not len(boxes_to_crop(scene.select(torch.zeros(2, dtype=torch.bool)), 1, True))


def test_a_box_grows_inside_its_image():
    box = torch.tensor([10.0, 20.0, 30.0, 60.0])
    assert expand_box(box, 0.0, 100, 100) == (10, 20, 30, 60)
    assert expand_box(box, 0.5, 100, 100) == (0, 0, 40, 80)
    assert expand_box(box, 2.0, 90, 70) == (0, 0, 70, 70)
    assert expand_box(torch.tensor([1.5, 1.5, 2.5, 2.5]), 0.0, 9, 9) == (1, 1, 3, 3)  # never empty


def test_as_typed(place):
    words = ["detect", "crops", "--data", str(place), "--year", "2012", "--out", str(place / "new" / "crops")]
    assert main(words) == 0
    assert len(list((place / "new" / "crops" / "train").glob("*/*.jpg"))) == 5
    assert main(words) == 2  # the folder is not empty
