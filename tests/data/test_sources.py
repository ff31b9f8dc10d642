"""A source becomes data: folders, archives, tables and arrays; labels and their absence; what is held out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from supancl.data.decode import decode
from supancl.data.opening import open_data, open_source
from supancl.data.preparing import draw_stratified
from supancl.data.spec import DataSpec
from supancl.errors import BadInput
from tests.helpers import archive, class_folders, mentions, noise, picture, property_test, table


def source(path, channels=3, **fields):
    return open_source(DataSpec(source=str(path), **fields), channels)


def data_of(path, channels=1, **fields):
    return open_data(DataSpec(source=str(path), **fields), channels)


def every(split):
    return torch.arange(len(split))


def pixels(split):
    return split.batch(every(split)).pixels


def folders(split):
    """(folder, label) of every image"""
    return [(Path(name).parent.name, y) for name, y in zip(names_of(split), split.labels.tolist(), strict=True)]


def names_of(split):
    return split.names_at(every(split))


def names(split):
    return set(names_of(split))


# --- images in memory and on disk -------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", [{}, {"memory_gb": 1e-9, "cache": "never"}, {"cache": "always"}])
def test_unreadable_images_are_refused_or_skipped_and_counted(tmp_path, store):
    class_folders(tmp_path)
    whole = (tmp_path / "cat" / "1.png").read_bytes()
    torn, text = tmp_path / "cat" / "1.png", tmp_path / "dog" / "text.jpg"
    torn.write_bytes(whole[: len(whole) // 2])
    text.write_text("not an image")
    with pytest.raises(BadInput, match=mentions("1.png", "images: 2")):
        source(tmp_path, **store)
    found = source(tmp_path, skip_bad_images=True, **store)
    assert list(found.skipped) == [str(torn), str(text)]
    train = found.splits["train"]
    assert len(train) == 11
    assert not names(train) & {str(torn), str(text)}
    for image, name in zip(pixels(train), train.names_at(every(train)), strict=True):
        assert torch.equal(image, decode(Path(name)))  # the others kept their own pixels
    assert data_of(tmp_path, skip_bad_images=True).summary["skipped"] == 2


# --- tables -----------------------------------------------------------------------------------------------------------


def test_a_parquet_table_is_read_as_the_same_csv(tmp_path):
    paths = [picture(tmp_path / f"{i}.png", i).name for i in range(8)]
    columns = {"path": paths, "label": ["10", None, "9", "a;b:0.5"] * 2, "split": ["train"] * 6 + ["val"] * 2}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    rows = [",".join(value or "" for value in row) for row in zip(*columns.values(), strict=True)]
    table(tmp_path / "t.csv", "path,label,split", *rows)
    one, other = (data_of(tmp_path / name) for name in ("t.parquet", "t.csv"))
    assert one.classes == other.classes == ("10", "9", "a", "b")
    assert one.summary["fingerprint"] == other.summary["fingerprint"]


def with_sizes(path, sizes):
    """An archive of classes with so many images each (-1: unlabelled), and the label of every image."""
    labels = np.repeat(list(sizes), list(sizes.values()))
    labels = np.random.default_rng(0).permutation(labels)
    return archive(path, train_images=noise(len(labels), 8, 8), train_labels=labels), torch.from_numpy(labels)


# --- held out ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [None, 0.1, 0.9])
def test_held_out_images_are_stratified_fixed_and_never_trained_on(tmp_path, share):
    sizes = {0: 50, 1: 20, 2: 10, 3: 1, -1: 30}
    path, labels = with_sizes(tmp_path / "a.npz", sizes)
    data = data_of(path, holdout=share)
    again = data_of(path, holdout=share, limit=5, labelled=0.5)
    assert names(data.train).isdisjoint(names(data.held_out))
    assert len(names(data.train) | names(data.held_out)) == len(labels)
    assert names(again.held_out) == names(data.held_out)
    assert names(again.train).isdisjoint(names(data.held_out))
    counts = Counter(data.held_out.labels.tolist())
    expected = {label: min(count - 1, max(1, round((share or 0.2) * count))) for label, count in sizes.items()}
    # an image without a label can judge nothing
    assert {label: counts[label] for label in sizes} == {**expected, -1: 0}


@property_test
@given(st.lists(st.integers(-1, 4), min_size=1, max_size=60), st.floats(0, 1), st.integers(0, 3))
def test_a_stratified_draw_takes_about_its_share_of_each_class_and_leaves_one(labels, share, seed):
    drawn = torch.tensor(labels)
    chosen = draw_stratified(drawn, share, seed)
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    assert torch.equal(chosen, draw_stratified(drawn, share, seed))
    for label, count in Counter(labels).items():
        taken = int((drawn[chosen] == label).sum())
        assert taken <= count - 1
        assert abs(taken - share * count) <= 1
        assert taken >= 1 or share == 0 or count == 1


@pytest.mark.parametrize(
    ("sizes", "share", "kept"),
    [
        ({0: 1, 1: 100, -1: 40}, 0.9, {0: 1, 1: 90}),
        ({0: 4, 1: 4}, 0.9, {0: 3, 1: 3}),
        ({0: 3, 1: 1}, 0.0, {}),
        (dict.fromkeys(range(10), 14), 0.1, dict.fromkeys(range(10), 1)),
    ],
)
def test_hidden_labels_leave_every_class_one(tmp_path, sizes, share, kept):
    path, labels = with_sizes(tmp_path / "a.npz", sizes)
    found = data_of(path, labelled=share, holdout=0).train.labels
    assert dict(Counter(found[found >= 0].tolist())) == kept
    assert bool(((found == labels) | (found < 0)).all())
    assert torch.equal(found, data_of(path, labelled=share, holdout=0).train.labels)


# --- left-out classes -------------------------------------------------------------------------------------------------


def test_left_out_classes_are_kept_from_training_and_relabelled_for_transfer(tmp_path):
    root = class_folders(tmp_path, ("ant", "bee", "cat", "dog"), 10)
    picture(tmp_path / "unlabelled" / "x.png")
    picture(tmp_path / "unlabelled" / "y.png", 1)
    data = data_of(root, leave_out=("dog", "bee"))
    assert data.classes == ("ant", "cat")
    assert data.transfer_classes == ("bee", "dog")
    fit, judged = data.transfer
    assert Counter(folders(data.train)) == {("ant", 0): 8, ("cat", 1): 8, ("unlabelled", -1): 2}
    assert Counter(folders(data.held_out)) == {("ant", 0): 2, ("cat", 1): 2}
    assert Counter(folders(fit)) == {("bee", 0): 8, ("dog", 1): 8}
    assert Counter(folders(judged)) == {("bee", 0): 2, ("dog", 1): 2}
    assert len(set.union(*map(names, (data.train, data.held_out, fit, judged)))) == 42
    assert data.summary["classes"] == 2
