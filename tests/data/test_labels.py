"""Several and soft labels in files: what is read, what is refused, which images are held out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from supancl import from_arrays
from supancl.data.labels import label_cell, label_texts, parse_label_set
from supancl.data.opening import open_data
from supancl.data.spec import DataSpec
from tests.helpers import noise, picture, table

WEIGHTS = np.eye(4)[np.arange(20) % 4] + 0.5 * np.eye(4)[np.arange(20) % 3]  # two classes, or one of weight 1.5


def opened(path: Path, **settings: object):
    return open_data(DataSpec(source=str(path), **settings), channels=1)


def label_table(folder: Path, *labels: str) -> Path:
    for i, _ in enumerate(labels):
        picture(folder / f"{i}.png", seed=i)
    return table(folder / "labels.csv", "path,label", *(f"{i}.png,{label}" for i, label in enumerate(labels)))


def texts_of(split, classes) -> list[str]:
    texts = label_texts(split.all_labels, torch.arange(len(split)), classes)
    return [text.removesuffix(";") for text in texts]  # a single weighted one


def test_a_table_names_several_classes_with_weights(tmp_path):
    labels = ["cat;dog:0.7", "dog", "", "cat", "bird:0.25; cat", "dog;dog", "cat;bird", "-1", "a:b"]
    data = opened(label_table(tmp_path, *labels), holdout=0)
    assert data.classes == ("a:b", "bird", "cat", "dog")
    assert texts_of(data.train, data.classes) == [
        "cat;dog:0.7", "dog", "", "cat", "bird:0.25;cat", "dog:2", "bird;cat", "", "a:b",
    ]  # fmt: skip
    assert data.train.all_labels.pairs.shape == (9, 2, 2)
    assert data.train.all_labels.pairs[2].tolist() == [[-1, 0], [-1, 0]]
    assert data.train.num_labelled == 7
    assert data.summary["labels_per_image"] == {"most": 2, "mean": 1.43, "least_weight": 0.25, "largest_weight": 2}


@pytest.mark.parametrize(
    "labels",
    [
        [("cat", 1.0)], [("cat", 0.3)], [("cat", 1.0), ("dog", 0.7)], [("disk:1", 1.0), ("disk:2", 0.5)],
        [("disk:", 1.0)], [("disk:2nd", 1.0), ("a:b", 2.0)], [("70%", 1.0)], [("a:70%", 1.0)],
    ],
)  # fmt: skip
def test_a_cell_reads_back_as_the_labels_it_was_made_of(labels):
    assert parse_label_set(label_cell(labels), "here") == dict(labels)


def test_images_are_held_out_by_their_rarest_class(tmp_path):
    weights = np.zeros((60, 3))
    weights[:, 0] = 1  # every image
    weights[:20, 1] = 1
    weights[:10, 2] = 1  # the rarest
    data = from_arrays(noise(60, 8, 8), weights, spec=DataSpec("arrays", holdout=0.2))
    assert data.held_out.labels.tolist() == [2, 2, 1, 1] + [0] * 8
    assert data.train.all_labels.pairs.shape[1] == data.held_out.all_labels.pairs.shape[1] == 3
    hidden = from_arrays(noise(60, 8, 8), weights, spec=DataSpec("arrays", holdout=0, labelled=0.5))
    kept = hidden.train.labels >= 0
    assert int(kept.sum()) == 30
    assert torch.equal(kept, (hidden.train.all_labels.pairs[..., 0] >= 0).any(1))
    assert not hidden.train.all_labels.pairs[~kept][..., 1].any()
