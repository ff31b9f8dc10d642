"""What RESULTS.md says of pixels; tests/real/test_pixels_of_results.py looks at the photographs themselves."""

from itertools import pairwise

import torch

from experiments.evidence.plans import CIFAR_FINAL, PILOT
from supancl.data.store.memory import Batch
from supancl.data.views.evaluation import evaluation_view
from supancl.evaluate.naming import DEFAULT_SETTINGS


def test_no_column_is_of_the_crop_that_was_half_a_pixel_off() -> None:
    """The page says so: only CIFAR's squares, as large as the input, go through the evaluation crop.

    A task that sends other images through it has to be named on the page, or marked where it was measured before
    version 2 of the features.
    """
    for task in (*CIFAR_FINAL, *PILOT):
        named = dict(pairwise(task.words))
        if DEFAULT_SETTINGS[task.words[0]]["view"] != "whole":
            assert named.get("--data", "data/cifar100.npz") in ("data/cifar100.npz", "data/cifar10.npz")
            assert "--root" not in named
    squares = Batch(torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8))
    seen = evaluation_view(squares, 32, (0.0,) * 3, (1.0,) * 3) * 255
    assert torch.equal(seen.round().byte(), squares.pixels)
