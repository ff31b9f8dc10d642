"""`Labels` against Python dictionaries: what a sample has, how it is counted, and what of several stands for it."""

from __future__ import annotations

import pytest
import torch

from supancl.core.labels import Labels
from supancl.errors import BadInput
from tests.core.test_label_weights import as_dicts, some_pairs

PAIRS = some_pairs(40, 3)
LABELS, DICTS = Labels.of(PAIRS), as_dicts(PAIRS)
COUNTS = LABELS.counts()


def test_several_labels_are_pairs_and_back():
    assert torch.equal(LABELS.tensor, PAIRS)
    assert [dict(row) for row in LABELS.entries()] == DICTS
    assert LABELS.is_labelled.tolist() == [bool(labels) for labels in DICTS]
    assert COUNTS.tolist() == [sum(number in labels for labels in DICTS) for number in range(len(COUNTS))]
    hidden = LABELS.hidden(torch.arange(40) < 20)
    assert (hidden.entries()[:20], hidden.entries()[20:]) == ([[]] * 20, LABELS.entries()[20:])
    with pytest.raises(BadInput, match="several or soft"):
        LABELS.single  # noqa: B018 - reading it is what is refused


def test_one_label_each_needs_no_weights():
    numbers = torch.tensor([2, -1, 0])
    labels = Labels.of(numbers)
    assert (labels.has_one_each, labels.weights[:, 0].tolist()) == (True, [1, 0, 1])
    for tensor in (labels.tensor, labels.single, labels.rarest, labels.heaviest(labels.counts())):
        assert torch.equal(tensor, numbers)


def test_the_rarest_and_the_heaviest_class_stand_for_a_sample():
    rarest = [min(labels, key=lambda c: (int(COUNTS[c]), c), default=-1) for labels in DICTS]
    assert LABELS.rarest.tolist() == LABELS.with_rarest(COUNTS).rarest.tolist() == rarest
    heaviest = [max(labels, key=lambda c: labels[c], default=-1) for labels in DICTS]
    assert LABELS.heaviest(COUNTS).tolist() == heaviest


def test_a_hierarchy_has_a_label_among_some_of_its_classes_and_a_finest_one():
    paths = Labels(torch.tensor([[0, 1], [0, -1], [-1, -1], [2, 3]]), torch.tensor([[1.0, 2], [1, 0], [0, 0], [1, 2]]))
    assert paths.finest().single.tolist() == [1, 0, -1, 3]
    assert paths.among(torch.tensor([-1, 0, -1, 1])).single.tolist() == [0, -1, -1, 1]
