"""That steps taken side by side show what is different, and nothing else."""

import pytest
import torch

from supancl.training.trainer import Trainer
from tests.steps import side_by_side, without_tf32
from tests.tiny import tiny_data, tiny_recipe


def trainer(method: str = "supsiam", **settings: object) -> Trainer:
    return Trainer(tiny_recipe(method).with_set(settings), tiny_data(), torch.device("cpu"))


@pytest.mark.parametrize("method", ["supsiam", "supbyol", "supmoco", "crossentropy"])
def test_the_same_trainer_is_not_apart(method: str) -> None:
    ours, theirs, apart = side_by_side(trainer(method), trainer(method), 6)
    assert ours == theirs
    assert apart == {name: [0.0] * 6 for name in apart}
    pool = {"targets", "labels", "born", "clock"} if method != "crossentropy" else set()
    assert {"weights", "running_mean", "running_var", "num_batches_tracked"} | pool <= set(apart)


def test_a_rate_that_is_off_is_seen_by_as_much() -> None:
    rate = tiny_recipe().optimizer.lr
    ours, theirs, apart = side_by_side(trainer(), trainer(**{"optimizer.lr": 1.01 * rate}), 6)
    assert ours == theirs  # each begins where the first one was
    assert apart["weights"] == pytest.approx([0.01] * 6, rel=1e-2)


def test_other_draws_are_seen() -> None:
    ours, theirs, apart = side_by_side(trainer(), trainer(**{"train.seed": 1}), 6)
    assert ours != pytest.approx(theirs, abs=1e-3)
    assert min(apart["weights"][1:]) > 0.02  # the first one has other weights as well


def test_a_pool_that_is_not_filled_is_seen() -> None:
    idle = trainer()
    idle.model.pool.push = lambda targets, labels: None
    ours, theirs, apart = side_by_side(trainer(), idle, 6)
    assert ours == theirs  # it gets the first one's pool for each step
    assert apart["weights"] == [0.0] * 6
    assert min(apart["targets"]) >= 0.9  # nearly all of the change is missing
    assert apart["clock"] == [1.0] * 6


def test_statistics_that_stand_still_are_seen() -> None:
    still = trainer()
    for module in still.model.branches.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.momentum = 0.0
    ours, theirs, apart = side_by_side(trainer(), still, 6)
    assert ours == theirs
    assert apart["running_mean"] == pytest.approx([1.0] * 6)
    assert apart["running_var"] == pytest.approx([1.0] * 6)


def test_tf32_is_off_for_a_while_and_comes_back() -> None:
    settings = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [each.allow_tf32 for each in settings]
    assert any(before)  # else there is nothing to see
    with without_tf32():
        assert [each.allow_tf32 for each in settings] == [False, False]
    assert [each.allow_tf32 for each in settings] == before
