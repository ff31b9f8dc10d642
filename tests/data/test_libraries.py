"""torchvision's and Hugging Face's data sets as sources: their images and labels, from files made here."""

from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
import torchvision
from scipy.io import savemat

from supancl.data.labels import label_texts
from supancl.data.opening import open_source, peek_data
from supancl.data.spec import DataSpec
from supancl.errors import BadInput
from tests.helpers import picture, png


def opened(source: str, channels: int = 3, **options):
    return open_source(DataSpec(source=source, **options), channels)


def pixels(split, position: int) -> np.ndarray:
    return split.batch(torch.tensor([position])).pixels[0].permute(1, 2, 0).numpy()


# --- torchvision ------------------------------------------------------------------------------------------------------


def flowers(root: Path) -> Path:
    """Flowers102 in its own layout: ten images, labels 1 to 5, three splits."""
    folder = root / "flowers-102"
    for i in range(1, 11):
        picture(folder / "jpg" / f"image_{i:05d}.jpg", seed=i, size=(8 + i % 2, 9), mode="RGB")
    savemat(folder / "imagelabels.mat", {"labels": np.arange(1, 11)[None] % 5 + 1})
    savemat(folder / "setid.mat", {"trnid": [[1, 4, 3, 2, 5]], "valid": [[6, 7]], "tstid": [[8, 9, 10]]})
    return root


def test_a_data_set_of_files_gives_its_splits_images_and_classes(tmp_path, monkeypatch):
    # torchvision compares md5 sums with those of the real files
    monkeypatch.setattr(torchvision.datasets.flowers102, "check_integrity", lambda path, md5=None: Path(path).is_file())
    found = opened(f"torchvision:Flowers102@{flowers(tmp_path)}")
    assert {name: len(split) for name, split in found.splits.items()} == {"train": 5, "val": 2, "test": 3}
    assert len(found.classes) == 102
    for name in ("train", "val", "test"):
        theirs = torchvision.datasets.Flowers102(str(tmp_path), split=name)
        split = found.splits[name]
        assert split.labels.tolist() == [theirs[i][1] for i in range(len(theirs))]
        for i in range(len(theirs)):
            assert np.array_equal(pixels(split, i), np.array(theirs[i][0]))
    assert found.splits["train"].names_at(torch.tensor([0]))[0].endswith("image_00001.jpg"), "messages name the file"


# --- Hugging Face -----------------------------------------------------------------------------------------------------


def rows(count: int = 6, first: int = 0, labels: list | None = None, kind: object = None, column: str = "label"):
    content: dict = {"image": [{"bytes": png(first + i, (6 + i % 2, 5)), "path": None} for i in range(count)]}
    features: dict = {"image": datasets.Image()}
    if labels is not None:
        content[column], features[column] = labels, kind
    return datasets.Dataset.from_dict(content, datasets.Features(features))


@pytest.fixture(autouse=True)
def quiet_bars():
    datasets.disable_progress_bars()


NAMES = datasets.ClassLabel(names=["owl", "cat", "dog"])


def several(split, classes) -> list[str]:
    return label_texts(split.all_labels, torch.arange(len(split)), classes, "")


@pytest.mark.parametrize(
    ("labels", "kind", "classes", "wanted"),
    [
        ([[0, 2], [1], [], [1, 1], None, [2, 1, 0]], NAMES, ("owl", "cat", "dog"),
         ["owl;dog", "cat", "", "cat", "", "owl;cat;dog"]),
        ([["b;c", "a"], ["a"], [], ["b;c"], [""], ["a"]], datasets.Value("string"), ("a", "b;c"),
         ["a;b;c", "a", "", "b;c", "", "a"]),
        ([[10, 2], [9], [], [2], [-1, -1], [2]], datasets.Value("int64"), ("2", "9", "10"),
         ["2;10", "9", "", "2", "", "2"]),
        ([[0], [1], [], [1], [2], [2]], NAMES, ("owl", "cat", "dog"), ["owl", "cat", "", "cat", "dog", "dog"]),
    ],
)  # fmt: skip
def test_lists_of_classes_are_several_labels(tmp_path, labels, kind, classes, wanted):
    rows(6, 0, labels, datasets.Sequence(kind), column="labels").save_to_disk(tmp_path / "lists")
    found = opened(f"hf:{tmp_path / 'lists'}")
    train = found.splits["train"]
    assert found.classes == classes
    assert several(train, classes) == wanted
    assert (train.all_labels.pairs is None) == all(len(row or []) < 2 for row in labels)


def test_what_a_run_names_is_not_looked_up_in_the_network(monkeypatch):
    calls = []
    monkeypatch.setattr("socket.getaddrinfo", lambda *names, **more: calls.append(names) or [])
    with pytest.raises(BadInput, match="nobody/nothing"):
        peek_data(DataSpec(source="hf:nobody/nothing"), 3)
    assert calls == []
