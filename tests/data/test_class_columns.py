"""A .csv with one column of weights per class: what is read, what is refused, which columns are classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from supancl.data.labels import weight_matrix
from supancl.data.opening import open_data
from supancl.data.spec import DataSpec
from supancl.errors import BadInput
from tests.files import archive, mentions, picture, table


def weight_table(folder: Path, *lines: str, header: str = "path,cat,dog,bird") -> Path:
    for i, _ in enumerate(lines):
        picture(folder / f"{i}.png", seed=i)
    return table(folder / "weights.csv", header, *(f"{i}.png,{line}" for i, line in enumerate(lines)))


def opened(path: Path, **settings: object):
    return open_data(DataSpec(source=str(path), holdout=0, **settings), channels=1)


def test_a_table_and_an_archive_of_the_same_weights_are_the_same_labels(tmp_path):
    """The naive reference: each cell of the table, as a matrix."""
    random = np.random.default_rng(0)
    weights = random.integers(0, 3, (20, 4)) * random.random((20, 4)).round(2)
    weights[weights.sum(1) == 0] = 1
    lines = [",".join(map(str, row)) for row in weights.tolist()]
    listed = opened(weight_table(tmp_path, *lines, header="path,a,b,c,d"), columns="label=a+b+c+d")  # some are above 1
    packed = opened(archive(tmp_path / "some.npz", train_labels=weights, class_names=list("abcd")))
    assert listed.classes == packed.classes
    assert np.array_equal(weight_matrix(listed.train.all_labels, 4), weights.astype(np.float32))
    assert np.array_equal(listed.train.all_labels.pairs, packed.train.all_labels.pairs)
    assert np.array_equal(listed.train.labels, packed.train.labels)


def test_numbers_that_are_no_weights_are_no_classes_unless_they_are_named(tmp_path):
    """Without a column 'label', a width of 640 is more likely forgotten --columns than a class."""
    path = weight_table(tmp_path, *["640,480"] * 4, header="path,width,height")
    with pytest.raises(BadInput, match=mentions("width", "columns")):
        opened(path)
    assert opened(path, columns="label=width+height").classes == ("height", "width")
