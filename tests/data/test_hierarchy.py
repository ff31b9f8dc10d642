"""Labels on several levels: classes that are paths, from every source; and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from supancl import from_arrays
from supancl.data.labels import CLASSES, SUPERCLASSES, label_texts
from supancl.data.opening import open_data
from supancl.data.spec import DataSpec
from tests.helpers import class_folders, noise, picture

PATHS = ("animal/cat", "animal/dog", "animal", "plant/rose", "")
CLASSES_OF_PATHS = ("animal", "animal/cat", "animal/dog", "plant", "plant/rose")


def opened(path: object, **settings: object):
    settings = {"hierarchy": "paths", "holdout": 0, **settings}
    return open_data(DataSpec(source=str(path), **settings), channels=1)


def texts_of(split, classes) -> list[str]:
    return label_texts(split.all_labels, torch.arange(len(split)), classes, "")


def nested_folder(root: Path, each: int = 3) -> Path:
    for number, name in enumerate(PATHS[:4]):
        class_folders(root, (name,), each)
        picture(root / name / "one.png", seed=1000 + number)
    picture(root / "unlabelled" / "a.png", seed=7)
    return root


def naive_labels(path: str, weights: tuple[float, ...]) -> dict[str, float]:
    """The reference: every prefix of a path, one after the other."""
    labels, parts = {}, path.split("/") if path else []
    for level in range(len(parts)):
        labels["/".join(parts[: level + 1])] = weights[level]
    return labels


@pytest.mark.parametrize("weights", [(), (2.0, 0.5)])
def test_a_folder_of_folders_has_a_class_per_folder(tmp_path, weights):
    data = opened(nested_folder(tmp_path / "photos"), level_weights=weights)
    assert data.classes == CLASSES_OF_PATHS
    assert data.levels == (0, 1, 1, 0, 1)
    for name, row in zip(
        data.train.names_at(torch.arange(len(data.train))), data.train.all_labels.pairs.tolist(), strict=True
    ):
        folder = Path(name).parent.relative_to(tmp_path / "photos").as_posix()
        wanted = naive_labels("" if folder == "unlabelled" else folder, weights or (1.0, 1.0))
        assert {data.classes[int(number)]: weight for number, weight in row if number >= 0} == wanted
    assert data.train.num_labelled == len(data.train) - 1


def test_images_are_held_out_by_their_finest_class(tmp_path):
    labels = np.repeat([0, 1, 2], [40, 10, 10])
    names = ("animal/cat", "animal/dog", "plant/rose")
    data = from_arrays(noise(60, 8, 8), labels, classes=names, spec=DataSpec("arrays", holdout=0.2, hierarchy="paths"))
    assert texts_of(data.held_out, data.classes) == (
        ["animal;animal/cat"] * 8 + ["animal;animal/dog"] * 2 + ["plant;plant/rose"] * 2
    )


# --- CIFAR-100 --------------------------------------------------------------------------------------------------------


def test_the_superclasses_are_those_of_cifar100():
    assert len(SUPERCLASSES) == 20
    assert all(len(names) == 5 and list(names) == sorted(names) for names in SUPERCLASSES.values())
    assert len(CLASSES) == 100
    assert (CLASSES[0], CLASSES[23], CLASSES[57], CLASSES[99]) == ("apple", "cloud", "pear", "worm")
