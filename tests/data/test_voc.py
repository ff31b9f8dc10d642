"""A folder in VOC's layout as a source: its splits, the classes of its objects, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from supancl.data.labels import label_texts
from supancl.data.opening import open_data
from supancl.data.spec import DataSpec
from supancl.errors import BadInput
from tests.detection.drawn import annotation
from tests.helpers import mentions, picture

Objects = list[tuple[str, bool]]  # class, and whether it is difficult


def write_year(folder: Path, **lists: dict[str, Objects]) -> Path:
    """A year of VOC: list -> image -> its objects."""
    (folder / "ImageSets" / "Main").mkdir(parents=True)
    (folder / "Annotations").mkdir()
    for name, images in lists.items():
        (folder / "ImageSets" / "Main" / f"{name}.txt").write_text("".join(f"{image}\n" for image in images))
        for image, objects in images.items():
            picture(folder / "JPEGImages" / f"{image}.jpg", seed=len(image) + ord(image[-1]))
            boxes = [(kind, 1.0, 1.0, 5.0, 5.0) for kind, _ in objects]
            difficult = [number for number, (_, is_difficult) in enumerate(objects) if is_difficult]
            (folder / "Annotations" / f"{image}.xml").write_text(annotation(boxes, (8, 8), difficult))
    return folder


def opened(path: Path, **settings: object):
    return open_data(DataSpec(source=str(path), **settings), channels=1)


def texts_of(split, classes) -> list[str]:
    return label_texts(split.all_labels, torch.arange(len(split)), classes, "")


TRAIN: dict[str, Objects] = {
    "a": [("dog", False), ("cat", False), ("dog", False)],
    "b": [("cat", False), ("sofa", True)],
    "c": [("dog", True), ("dog", False)],
    "d": [("sofa", True)],
    "e": [],
}


def test_the_labels_are_the_classes_of_the_objects(tmp_path):
    data = opened(write_year(tmp_path, train=TRAIN, val={"f": [("cat", False)]}, test={"g": [("sofa", False)]}))
    assert data.classes == ("cat", "dog", "sofa")
    assert texts_of(data.train, data.classes) == ["cat;dog", "cat", "dog", "", ""], (
        "each once, difficult ones alone never"
    )
    assert (data.summary["held_out_from"], texts_of(data.held_out, data.classes)) == ("val", ["cat"])
    assert texts_of(data.test, data.classes) == ["sofa"]


def test_what_is_missing_or_damaged_is_named(tmp_path):
    folder = write_year(tmp_path, train=TRAIN)
    annotations, lists = folder / "Annotations", folder / "ImageSets" / "Main"
    for text in ("<a>" * 100_000, '<!DOCTYPE a [<!ENTITY x SYSTEM "/etc/passwd">]><annotation>&x;</annotation>'):
        (annotations / "c.xml").write_text(text)
        with pytest.raises(BadInput, match=mentions("c.xml", "annotation")):
            opened(folder)
    (annotations / "c.xml").unlink()
    with pytest.raises(BadInput, match=mentions("c.xml", "list")):
        opened(folder)
    (lists / "train.txt").unlink()
    with pytest.raises(BadInput, match=mentions("ImageSets/Main")):
        opened(folder)
