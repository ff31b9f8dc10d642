"""`data.imbalance`: a long tail on purpose."""

from __future__ import annotations

import numpy as np
import torch

from supancl.data.opening import open_data, survey_data, survey_source
from supancl.data.preparing import draw_long_tail, long_tail_sizes
from supancl.data.spec import DataSpec
from tests.helpers import archive, noise


def test_the_sizes_are_those_of_the_published_long_tail():
    published = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]  # CIFAR10-LT, ratio 100
    assert long_tail_sizes([5000] * 10, 100.0) == published
    labels = torch.cat([torch.arange(10).repeat(5000), torch.full((40,), -1)])
    kept = labels[draw_long_tail(labels, 100.0)]
    assert torch.bincount(kept + 1).tolist() == [40, *published]  # unlabelled images stay


def test_a_run_trains_on_a_tail_and_is_held_out_as_before(tmp_path):
    labels = np.arange(400) % 4
    source = archive(tmp_path / "x.npz", train_images=noise(400, 8, 8), train_labels=labels)
    whole, tail = (open_data(DataSpec(str(source), imbalance=ratio), 1) for ratio in (1.0, 10.0))
    sizes = torch.bincount(tail.train.labels).tolist()
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 10 * sizes[-1]
    assert torch.equal(whole.held_out.index, tail.held_out.index)
    assert torch.equal(tail.train.index, open_data(DataSpec(str(source), imbalance=10.0), 1).train.index)
    assert survey_source(DataSpec(str(source), imbalance=10.0), 1) == survey_data(tail)
