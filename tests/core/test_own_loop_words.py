"""Pieces for an own training loop refuse a value that they do not know, as recipes do."""

from __future__ import annotations

import pytest
from torch import nn

from supancl import MLP, Align, BadInput, Branches, Contrast, CrossEntropy, SemiAlign
from tests.files import mentions


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Align(form="mse"), ("Align.form", "mse", "cosine", "squared")),
        (lambda: Align(alpha=2), ("Align.alpha", "2.0", "[0, 1]")),
        (lambda: SemiAlign(temperature=0), ("SemiAlign.temperature", "0")),
        (lambda: Contrast(positives="class"), ("Contrast.positives", "class", "own-class")),
        (lambda: Contrast(against="all"), ("Contrast.against", "all", "both-views")),
        (lambda: CrossEntropy(form="sigmoid"), ("CrossEntropy.form", "sigmoid", "binary")),
        (lambda: MLP((4,), 8, last_norm="bn"), ("MLP.last_norm", "bn", "batch")),
        (lambda: Branches(nn.Flatten(), nn.Linear(4, 2), target="ema"), ("Branches", "target", "ema", "momentum")),
    ],
)
def test_an_unknown_value_is_refused(make, words):
    with pytest.raises(BadInput, match=mentions(*words)):
        make()
