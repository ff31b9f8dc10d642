"""Kept features with several labels: written and read as they are, refused if labels and classes do not fit."""

from __future__ import annotations

import pytest
import torch

from supancl.errors import BadInput
from supancl.runs.encoder_file import FeatureFile, load_features, save_features
from tests.files import mentions

PAIRS = torch.tensor([[[0.0, 1.0], [2.0, 0.5]], [[1.0, 1.0], [-1.0, 0.0]]])


def content(pairs: torch.Tensor) -> FeatureFile:
    references, held_out = ((torch.ones(2, 3), torch.tensor([0, 1])) for _ in range(2))
    return FeatureFile(references, held_out, ("a", "b", "c"), "x", (pairs.clone(), PAIRS.clone()))


def test_pairs_are_read_as_they_were_written(tmp_path):
    save_features(tmp_path / "a.safetensors", content(PAIRS))
    read = load_features(tmp_path / "a.safetensors")
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(read.pairs, (PAIRS, PAIRS), strict=True))


def changed(row: int, place: int, values: tuple[float, float]) -> torch.Tensor:
    pairs = PAIRS.clone()
    pairs[row, place] = torch.tensor(values)
    return pairs


@pytest.mark.parametrize(
    "pairs",
    [
        PAIRS[:1],
        changed(0, 1, (3.0, 1.0)),
        changed(0, 1, (2.0, float("nan"))),
    ],
    ids=["fewer", "no class", "NaN"],
)
def test_labels_that_do_not_fit_are_refused(tmp_path, pairs):
    save_features(tmp_path / "a.safetensors", content(pairs))
    with pytest.raises(BadInput, match=mentions("a.safetensors")):
        load_features(tmp_path / "a.safetensors")
