"""A run that takes over the step of the one before it trains as if it had been alone."""

from __future__ import annotations

import pytest
import torch

from supancl.training.start import pretrain
from supancl.training.trainer import Trainer, can_share_step, share_step, trainer_for
from tests.tiny import tiny_data, tiny_recipe

CPU = torch.device("cpu")


def losses_of(trainer, steps=4):
    found = []
    for _ in range(steps):
        trainer.advance()
        found.append(trainer.inputs.drain_log(torch.empty(0))[:3])
    return found


@pytest.mark.parametrize(("method", "pool"), [
    ("supsiam", "queue"), ("supbyol", "prototypes"), ("supbyol", "class-queues"), ("moco2", "queue"), ("supcon", None),
    ("crossentropy", None),
])  # fmt: skip
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_restarted_trainer_is_a_new_one(method, pool, optimizer):
    first = tiny_recipe(method, pool, optimizer__name=optimizer)
    changes = {"train.seed": 5, "optimizer.lr": 0.03, "schedule.warmup_epochs": 1}
    second = first.with_set(changes | ({"loss.alpha": 0.2} if method.startswith("sup") and pool else {}))
    data = tiny_data(unlabelled=0.2)
    used = Trainer(first, data, CPU)
    losses_of(used)
    used.restart(second, data)
    fresh = Trainer(second, data, CPU)
    torch.manual_seed(1)
    one = losses_of(used)
    torch.manual_seed(1)
    assert one == losses_of(fresh)
    for name, value in fresh.model.branches.state_dict().items():
        assert torch.equal(used.model.branches.state_dict()[name], value), name
    if fresh.model.pool is not None:
        for name, value in fresh.model.pool.state_dict().items():
            assert torch.equal(used.model.pool.state_dict()[name], value), name


def test_a_step_serves_what_differs_in_values_and_nothing_else():
    first, data = tiny_recipe("supsiam", "queue"), tiny_data()
    trainer = Trainer(first, data, CPU)
    for changes in ({"train.seed": 9}, {"optimizer.lr": 0.5}, {"schedule.decay": "constant"}, {"train.log_every": 3}):
        assert can_share_step(trainer, first.with_set(changes)), changes
    for changes in (
        {"optimizer.weight_decay": 0.5},
        {"pool.size": 32},
        {"train.epochs": 3},
        {"views.size": 12},
        {"train.batch_size": 4},
        {"loss.form": "squared"},
        {"optimizer.momentum": 0.5},
    ):
        assert not can_share_step(trainer, first.with_set(changes)), changes
    assert not can_share_step(trainer, first.with_set({"train.compile": True}))
    # on a CPU alpha is a number of the step itself; a captured one reads it from the device
    assert not can_share_step(trainer, first.with_set({"loss.alpha": 0.1}))
    trainer.inputs.alpha = torch.tensor(0.5)
    assert can_share_step(trainer, first.with_set({"loss.alpha": 0.1}))


def test_runs_in_one_block_share_a_trainer_and_the_first_ones_encoder_is_its_own(tmp_path, monkeypatch):
    built = []
    monkeypatch.setattr("supancl.training.trainer.Trainer", lambda *how: built.append(Trainer(*how)) or built[-1])
    data = tiny_data()
    first, second = (tiny_recipe("supsiam", "queue", train__seed=seed) for seed in (0, 1))
    alone = pretrain(second, data, tmp_path / "alone")
    with share_step():
        run = pretrain(first, data, tmp_path / "a")
        before = {name: value.clone() for name, value in run.encoder.state_dict().items()}
        other = pretrain(second, data, tmp_path / "b")
    assert len(built) == 2  # one alone, one for both
    for name, value in run.encoder.state_dict().items():
        assert torch.equal(value, before[name])
    for name, value in other.encoder.state_dict().items():
        assert torch.equal(value, alone.encoder.state_dict()[name])
    rows = [[{**row, "images_per_second": 0} for row in one.metrics] for one in (alone, other)]
    assert rows[0] == rows[1]


def test_other_data_get_a_trainer_of_their_own():
    made = tiny_recipe("supsiam", "queue")
    with share_step():
        one = trainer_for(made, tiny_data(), CPU)
        assert trainer_for(made, tiny_data(), CPU) is one
        assert trainer_for(made, tiny_data(unlabelled=0.5), CPU) is not one
