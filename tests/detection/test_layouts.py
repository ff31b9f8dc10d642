"""Reading VOC and COCO annotations, and refusing what is wrong in them."""

import pytest
import torch
from torchvision.datasets import VOCDetection
from torchvision.transforms.functional import pil_to_tensor

from supancl.detection import detect_spec
from supancl.detection.scenes import (
    Batches,
    DetectData,
    flip_boxes,
    open_scenes,
    open_split,
    prepare_for_training,
    read_coco,
    read_voc,
)
from supancl.errors import BadInput
from tests.helpers import mentions

from .drawn import SIDE, TINY, annotation, write_coco, write_voc

LIST = (("2012", "train"),)
ONE = [("disc", 10.0, 20.0, 40.0, 60.0)]


def rewrite(folder, text, seed=0):
    (folder / "Annotations" / f"{seed:06d}.xml").write_text(text)


def test_the_union_of_both_years_is_tested_on_the_earlier(tmp_path):
    write_voc(tmp_path, {"trainval": [0, 1], "test": [2]}, "2007")
    write_voc(tmp_path, {"trainval": [3, 4, 5]}, "2012")
    train, test = open_scenes(DetectData(str(tmp_path), "07+12"))
    assert [each.path.stem for each in train.scenes] == ["000000", "000001", "000003", "000004", "000005"]
    assert [each.path.stem for each in test.scenes] == ["000002"]
    assert len(open_scenes(DetectData(str(tmp_path / "VOCdevkit"), "2007"))[0]) == 2
    assert len(open_scenes(DetectData(str(tmp_path / "VOCdevkit" / "VOC2007"), "2007"))[0]) == 2


@pytest.mark.parametrize(("year", "name"), [("2007", "trainval"), ("2007", "test"), ("2012", "train"), ("2012", "val")])
def test_lists_and_annotations_are_those_of_torchvision(tmp_path, year, name):
    write_voc(tmp_path, {name: [4, 0, 2], "other": [1]}, year, difficult=[1])
    rewrite(tmp_path / "VOCdevkit" / f"VOC{year}", annotation([]), 2)
    ours, theirs = read_voc(tmp_path, ((year, name),)), VOCDetection(tmp_path, year, name)
    assert [str(each.path) for each in ours.scenes] == theirs.images
    for position, each in enumerate(ours.scenes):
        picture, told = theirs[position]
        size, objects = told["annotation"]["size"], told["annotation"]["object"]
        assert (each.height, each.width) == (int(size["height"]), int(size["width"]))
        assert [ours.classes[label] for label in each.labels.tolist()] == [one["name"] for one in objects]
        assert each.difficult.tolist() == [one["difficult"] == "1" for one in objects]
        corners = [[float(one["bndbox"][side]) for side in ("xmin", "ymin", "xmax", "ymax")] for one in objects]
        assert each.boxes.tolist() == [[left - 1, top - 1, right, bottom] for left, top, right, bottom in corners]
        assert torch.equal(ours.image(position), pil_to_tensor(picture))
    assert [len(each.boxes) for each in ours.scenes] == [2, 2, 0]


def test_a_coco_file_gives_the_same_scenes_as_voc(tmp_path):
    write_voc(tmp_path, {"train": [0, 1, 2]})
    voc, coco = read_voc(tmp_path, LIST), read_coco(write_coco(tmp_path / "all.json", [0, 1, 2], crowd=[1]))
    assert coco.classes == voc.classes
    for one, other in zip(voc.scenes, coco.scenes, strict=True):
        assert torch.equal(one.boxes, other.boxes)
        assert torch.equal(one.labels, other.labels)
        assert other.crowd.tolist() == [False, True]


def test_a_missing_image_is_named_before_any_work(tmp_path):
    folder, file = write_voc(tmp_path, {"train": [0, 1, 2]}), write_coco(tmp_path / "a.json", [0, 1, 2])
    (folder / "JPEGImages" / "000001.jpg").unlink()
    with pytest.raises(BadInput, match=mentions("000001.jpg")):
        open_split(DetectData(str(tmp_path), "2012"), "train")
    with pytest.raises(BadInput, match=mentions("a.json")):
        open_split(DetectData(str(file), images=str(tmp_path / "elsewhere")), "train")


def test_what_is_trained_on(tmp_path):
    folder = write_voc(tmp_path, {"train": [0, 1, 2]}, difficult=[1])
    rewrite(folder, annotation([]), 1)
    scenes = read_voc(tmp_path, LIST)
    assert [len(each.boxes) for each in prepare_for_training(scenes, True, False, 0).scenes] == [2, 2]
    assert [len(each.boxes) for each in prepare_for_training(scenes, False, True, 0).scenes] == [1, 0, 1]
    rewrite(folder, annotation([]), 0)
    rewrite(folder, annotation([]), 2)
    with pytest.raises(BadInput, match=mentions("no box")):
        prepare_for_training(read_voc(tmp_path, LIST), True, True, 0)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_depend_on_seed_and_step_alone(tmp_path, workers):
    write_voc(tmp_path, {"train": range(5)})
    scenes = prepare_for_training(read_voc(tmp_path, LIST), True, False, 0)
    spec = detect_spec("c4", {**TINY, "workers": workers, "batch_size": 3, "iters": 6})
    device = torch.device("cpu")
    with Batches(scenes, spec, device, 6) as forward, Batches(scenes, spec, device, 6) as late:
        seen = [forward(step) for step in range(6)]
        images, targets = late(4)
    for one, other in zip(images, seen[4][0], strict=True):
        assert torch.equal(one, other)
    for one, other in zip(targets, seen[4][1], strict=True):
        assert torch.equal(one["boxes"], other["boxes"])
    taken = [position for step in range(5) for position in forward.positions(step)]
    assert sorted(taken) == sorted(list(range(5)) * 3)  # no image is left out of an epoch


def test_a_mirrored_image_has_its_shapes_where_the_boxes_say(tmp_path):
    write_voc(tmp_path, {"train": range(4)})
    scenes = prepare_for_training(read_voc(tmp_path, LIST), True, False, 0)
    spec = detect_spec("c4", {**TINY, "flip": 1.0, "iters": 4})
    with Batches(scenes, spec, torch.device("cpu"), 4) as batches:
        images, targets = batches(0)
    for image, target in zip(images, targets, strict=True):
        for x1, y1, x2, y2 in target["boxes"].round().int().tolist():
            inside = image[:, y1 + 8 : y2 - 8, x1 + 8 : x2 - 8]
            assert float((inside.amax(0) - inside.amin(0)).median()) > 0.4  # a strong colour, where the rest is grey
    assert torch.equal(flip_boxes(flip_boxes(targets[0]["boxes"], SIDE), SIDE), targets[0]["boxes"])
