"""The encoder that ships as an example is small, opens, and does what its card says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from supancl import embed, knn_accuracy, linear_accuracy, load_encoder, open_data, recipe

FOLDER = Path(__file__).parents[1] / "examples" / "digits-encoder"


@pytest.fixture(scope="module")
def card() -> str:
    return (FOLDER / "README.md").read_text(encoding="utf-8")


def test_its_accuracy_is_the_cards(card):
    digits = recipe("digits.supsiam")
    data = open_data(digits.data, digits.encoder.channels)
    encoder = load_encoder(FOLDER)
    train, held_out = (embed(encoder, split) for split in (data.train, data.held_out))
    assert f"On {len(data.held_out)} held-out images" in card
    assert f"to {encoder.width} features" in card
    two_images = 200 / len(data.held_out)  # other processors round differently
    for name, value in (("k-NN", knn_accuracy(train, held_out)), ("Linear", linear_accuracy(train, held_out))):
        reported = float(re.search(rf"\| {name}.* \| ([0-9.]+) % \|", card)[1])
        assert value == pytest.approx(reported, abs=two_images)
        assert value > 95
