"""The encoder that is evaluated, and on which images: none that it was trained on."""

import pytest
import torch

from supancl.data.opening import from_arrays
from supancl.data.spec import DataSpec
from supancl.errors import BadInput
from supancl.evaluation.data import data_for, few_shot_split, open_evaluation_data, read_source, spec_for, three_splits
from tests.evaluation.made import (
    bright,
    run_folder,
    source,
    subject,
)

CPU = torch.device("cpu")


def pixels_of(split) -> set[bytes]:
    return {image.numpy().tobytes() for image in split.batch(torch.arange(len(split))).pixels}


# --- which images -----------------------------------------------------------------------------------------------------


def test_a_run_is_judged_on_what_it_held_out(tmp_path):
    path = source(tmp_path / "x.npz", train=100)
    run = subject(run_folder(tmp_path / "run", source=str(path), data__holdout=0.3, data__limit=20))
    images, labels = bright(100)
    trained = from_arrays(images, labels, spec=DataSpec(source="x", holdout=0.3, limit=20))
    own = data_for(run, None)
    assert pixels_of(own.train) == pixels_of(trained.train)
    assert pixels_of(own.held_out) == pixels_of(trained.held_out)
    named = data_for(run, str(path))  # all of it, but what was held out stays so
    assert pixels_of(named.held_out) == pixels_of(trained.held_out)
    assert len(named.train) == 70


def test_a_source_of_train_alone_is_tested_on_what_every_run_on_it_holds_out(tmp_path):
    path = str(source(tmp_path / "x.npz", train=100))
    images, labels = bright(100)
    trained = from_arrays(images, labels, spec=DataSpec(source="x"))
    run = subject(run_folder(tmp_path / "run", source=path))
    spec = spec_for(run, path)
    train, val, test = three_splits(read_source(run, spec, "whole"), spec)
    assert pixels_of(test) == pixels_of(trained.held_out)
    assert pixels_of(train) | pixels_of(val) == pixels_of(trained.train)
    assert not pixels_of(train) & pixels_of(val)
    assert set(val.labels.tolist()) == {0, 1, 2}
    name, split = few_shot_split(run, read_source(run, spec, "whole"), spec)
    assert (name, pixels_of(split)) == ("held out of train", pixels_of(trained.held_out))
    other = subject(run_folder(tmp_path / "other", source="digits"))
    assert few_shot_split(other, read_source(other, spec, "whole"), spec)[0] == "train"  # it has seen none of them


def test_the_test_split_is_judged_only_when_asked_for(tmp_path):
    run = subject(run_folder(tmp_path / "run"))
    both = str(source(tmp_path / "x.npz", val=9, test=12))
    found = [open_evaluation_data(run, both, split) for split in ("held-out", "test")]
    assert [(each.taken_from, len(each.images), each.split) for each in found] == [
        ("val", 9, "held-out"),
        ("test", 12, "test"),
    ]
    alone = str(source(tmp_path / "y.npz"))
    assert open_evaluation_data(run, alone, "held-out").taken_from == "train"
    with pytest.raises(BadInput):
        open_evaluation_data(run, alone, "test")


# --- images that were trained on --------------------------------------------------------------------------------------
