"""Which image comes when: a function of seed, epoch and position, and of nothing else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from supancl.data.order import Order, balanced_order, derive_seed, epoch_order

LABELS = torch.tensor([0] * 50 + [1] * 7 + [3] * 20 + [-1] * 5)


def label_tensors():
    """Labels with empty classes, classes of one image and unlabelled images among them."""
    return st.lists(st.integers(-1, 6), min_size=1, max_size=80).map(torch.tensor)


def test_a_seed_made_of_several_numbers_is_the_same_in_every_version():
    """A run goes on in the order it began in, and published losses come again."""
    assert derive_seed(5) == 5
    assert (derive_seed(0, 0), derive_seed(1, 0), derive_seed(2, 3)) == (1, 1_000_004, 2_000_010)
    assert derive_seed(2, 3, 4) == 2_000_010 * 1_000_003 + 5
    assert derive_seed(2**62, 0) == (2**62 * 1_000_003 + 1) % 2**63
    assert epoch_order(6, 3, 2).tolist() == [5, 2, 1, 3, 0, 4]
    labels = torch.tensor([0] * 5 + [1] * 2 + [2] * 3 + [-1] * 2)
    assert balanced_order(labels, 3, 2).tolist() == [9, 3, 5, 6, 11, 4, 6, 8, 10, 9, 7, 2]
    labels = torch.tensor([0] * 7 + [1] + [2] * 3 + [-1] * 2)
    assert balanced_order(labels, 3, 2).tolist() == [6, 2, 8, 7, 7, 8, 3, 11, 12, 0, 9, 10, 7]


@settings(max_examples=80, deadline=None)
@given(label_tensors(), st.integers(0, 5), st.integers(0, 5))
def test_a_balanced_epoch_gives_every_class_equally_often(labels, seed, epoch):
    chosen = balanced_order(labels, seed, epoch)
    assert len(chosen) == len(labels)
    assert torch.equal(chosen, balanced_order(labels, seed, epoch))
    times = torch.bincount(chosen, minlength=len(labels))
    assert (times[labels < 0] == 1).all(), "unlabelled images come once each"
    classes = labels[labels >= 0].unique().tolist()
    per_class = [int(times[labels == label].sum()) for label in classes]
    assert not classes or max(per_class) - min(per_class) <= 1
    for label in classes:
        own = times[labels == label]
        assert own.max() - own.min() <= 1, "no image of a class comes twice more often than another of it"


@pytest.mark.parametrize("balanced", [False, True])
def test_positions_of_a_step_are_those_of_its_epoch(balanced):
    ours = Order(LABELS, seed=3, batch_size=16, balanced=balanced)
    assert ours.steps_per_epoch == len(LABELS) // 16
    for step in (0, 7, 4, 5, 0, 12, 11):  # asked for in any order
        epoch, at = divmod(step, ours.steps_per_epoch)
        whole = balanced_order(LABELS, 3, epoch) if balanced else epoch_order(len(LABELS), 3, epoch)
        assert torch.equal(ours.positions(step), whole[at * 16 : at * 16 + 16])
    assert torch.equal(Order(LABELS, 3, 16, balanced).positions(11), ours.positions(11)), "resumed in the middle"
    assert len(ours.cached_orders) == 2  # of this epoch, and of the next, which a feed prepares


@pytest.mark.parametrize("balanced", [False, True])
def test_without_the_unlabelled_images_an_epoch_repeats_the_labelled_ones(balanced):
    labels = torch.tensor([0, 0, 0, 1, 1, *[-1] * 13])
    ours = Order(labels, 0, batch_size=4, balanced=balanced, unlabelled=False)
    assert ours.steps_per_epoch == len(labels) // 4, "an epoch has as many steps as with the other images"
    for epoch in range(4):
        order_of_epoch = ours.epoch(epoch)
        times = torch.bincount(order_of_epoch, minlength=len(labels))
        assert len(order_of_epoch) == len(labels)
        assert times[labels < 0].sum() == 0
        assert balanced or set(times[:5].tolist()) == {3, 4}
    assert not torch.equal(ours.epoch(0), ours.epoch(1))
    every_label = torch.arange(12) % 3
    assert torch.equal(
        Order(every_label, 3, 4, balanced, unlabelled=False).epoch(1), Order(every_label, 3, 4, balanced).epoch(1)
    )
