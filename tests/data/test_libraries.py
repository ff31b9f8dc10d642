"""torchvision's and Hugging Face's data sets as sources: their images and labels, from files made here."""

from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
import torchvision

from supancl.data.labels import label_texts
from supancl.data.opening import open_source, peek_data
from supancl.data.spec import DataSpec
from supancl.errors import BadInput
from tests.data.benchmark_trees import BUILDERS
from tests.helpers import png


def opened(source: str, channels: int = 3, **options):
    return open_source(DataSpec(source=source, **options), channels)


# --- torchvision ------------------------------------------------------------------------------------------------------


def test_a_data_set_of_files_gives_its_splits_images_and_classes(tmp_path, monkeypatch):
    # torchvision compares md5 sums with those of the real files
    monkeypatch.setattr(torchvision.datasets.flowers102, "check_integrity", lambda path, md5=None: Path(path).is_file())
    BUILDERS["flowers102"](tmp_path)
    found = opened(f"torchvision:Flowers102@{tmp_path}")
    assert {name: len(split) for name, split in found.splits.items()} == {"train": 6, "val": 3, "test": 9}
    assert len(found.classes) == 102
    for name in ("train", "val", "test"):
        theirs = torchvision.datasets.Flowers102(str(tmp_path), split=name)
        split = found.splits[name]
        assert split.labels.tolist() == [theirs[i][1] for i in range(len(theirs))]
        ours = split.batch(torch.arange(len(split))).pixels.permute(0, 2, 3, 1).numpy()
        assert np.array_equal(ours, np.stack([theirs[i][0] for i in range(len(theirs))]))
    assert found.splits["train"].names_at(torch.tensor([0]))[0].endswith("image_00001.jpg"), "messages name the file"


# --- Hugging Face -----------------------------------------------------------------------------------------------------


NAMES = datasets.ClassLabel(names=["owl", "cat", "dog"])


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
    datasets.disable_progress_bars()
    content = {"image": [{"bytes": png(i, (6 + i % 2, 5)), "path": None} for i in range(6)], "labels": labels}
    features = datasets.Features({"image": datasets.Image(), "labels": datasets.Sequence(kind)})
    datasets.Dataset.from_dict(content, features).save_to_disk(tmp_path / "lists")
    found = opened(f"hf:{tmp_path / 'lists'}")
    train = found.splits["train"]
    assert found.classes == classes
    assert label_texts(train.all_labels, torch.arange(6), classes, "") == wanted
    assert (train.all_labels.pairs is None) == all(len(row or []) < 2 for row in labels)


def test_what_a_run_names_is_not_looked_up_in_the_network(monkeypatch):
    calls = []
    monkeypatch.setattr("socket.getaddrinfo", lambda *names, **more: calls.append(names) or [])
    with pytest.raises(BadInput, match="nobody/nothing"):
        peek_data(DataSpec(source="hf:nobody/nothing"), 3)
    assert calls == []
