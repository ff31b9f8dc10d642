"""That steps taken side by side show what is different, and nothing else."""

import pytest
import torch

from supancl.trainer import Trainer
from tests.steps import side_by_side, without_tf32
from tests.tiny import tiny_data, tiny_recipe


def trainer(method: str = "supsiam", **settings: object) -> Trainer:
    return Trainer(tiny_recipe(method).with_set(settings), tiny_data(), torch.device("cpu"))


@pytest.mark.parametrize("method", ["supsiam", "supbyol", "supmoco", "crossentropy"])
def test_the_same_trainer_is_not_apart(method: str) -> None:
    ours, theirs, apart = side_by_side(trainer(method), trainer(method), 6)
    assert ours == theirs
    assert apart == [0.0] * 6


def test_a_rate_that_is_off_is_seen_by_as_much() -> None:
    rate = tiny_recipe().optimizer.lr
    ours, theirs, apart = side_by_side(trainer(), trainer(**{"optimizer.lr": 1.01 * rate}), 6)
    assert ours == theirs  # each begins where the first one was
    assert apart == pytest.approx([0.01] * 6, rel=1e-2)


def test_other_draws_are_seen() -> None:
    ours, theirs, apart = side_by_side(trainer(), trainer(**{"train.seed": 1}), 6)
    assert ours != pytest.approx(theirs, abs=1e-3)
    assert min(apart[1:]) > 0.02  # the first one has other weights as well


def test_tf32_is_off_for_a_while_and_comes_back() -> None:
    settings = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [each.allow_tf32 for each in settings]
    assert any(before)  # else there is nothing to see
    with without_tf32():
        assert [each.allow_tf32 for each in settings] == [False, False]
    assert [each.allow_tf32 for each in settings] == before
