"""`data.label_noise`: wrong labels on purpose."""

from __future__ import annotations

import numpy as np
import torch

from supancl.data.opening import open_data
from supancl.data.preparing import flip_labels
from supancl.data.spec import DataSpec


def test_exactly_this_share_is_wrong_and_other_classes_are_equally_likely_or_the_next_one():
    labels, fraction = torch.arange(10).repeat(2000), 0.2
    noisy = flip_labels(labels, 10, fraction)
    shift = (noisy - labels) % 10
    assert int((shift > 0).sum()) == round(fraction * len(labels))
    counts = np.bincount(shift[shift > 0].numpy(), minlength=10)[1:]
    expected = fraction * len(labels) / 9
    assert np.abs(counts - expected).max() < 5 * expected**0.5
    paired = (flip_labels(labels, 10, fraction, "pair") - labels) % 10
    assert torch.bincount(paired).tolist() == [16_000, 4_000]


def test_the_seed_decides_and_unlabelled_images_stay_unlabelled():
    labels = torch.arange(4).repeat(50)
    labels[::3] = -1
    first, again, other = (flip_labels(labels, 4, 0.3, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(first < 0, labels < 0)
    assert int((first != labels).sum()) == round(0.3 * int((labels >= 0).sum()))


def test_a_run_sees_wrong_training_labels_and_clean_held_out_ones():
    clean, noisy = open_data(DataSpec("digits")), open_data(DataSpec("digits", label_noise=0.2))
    assert int((clean.train.labels != noisy.train.labels).sum()) == round(0.2 * len(clean.train))
    assert torch.equal(clean.held_out.labels, noisy.held_out.labels)
    assert clean.summary["fingerprint"] != noisy.summary["fingerprint"]
