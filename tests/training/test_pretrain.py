"""The loop: the contract's step order, schedules that really act, partial labels, and what happens to a bad number."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from supancl import BadInput, NonFinite, Recipe, pretrain
from supancl.data.splits import Data
from supancl.training.step import Step
from supancl.training.trainer import Trainer
from tests.helpers import SIDE, assert_same_bits, final_state, flat, mentions, poisoned, tiny_data, tiny_recipe

CPU = torch.device("cpu")


def trainer_of(recipe, data: Data | None = None) -> Trainer:
    return Trainer(recipe, data or tiny_data(), CPU)


def take_step(trainer: Trainer):
    return trainer.advance()


# --- step order -------------------------------------------------------------------------------------------------------


def recorded_order(monkeypatch: pytest.MonkeyPatch, recipe) -> list[str]:
    trainer, calls = trainer_of(recipe), []

    def watch(owner: object, name: str, label: str) -> None:
        original = getattr(owner, name)

        def call(*args, **kwargs):
            calls.append(label)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    watch(trainer.model.branches, "forward", "forward")
    watch(torch.Tensor, "backward", "backward")
    watch(trainer.model.optimizer, "step", "optimizer")
    watch(trainer.model.branches, "update_target", "ema")
    watch(trainer.model.pool, "push", "push")
    take_step(trainer)
    return calls


def test_step_order_is_forward_backward_optimizer_ema_push(monkeypatch: pytest.MonkeyPatch) -> None:
    order = recorded_order(monkeypatch, tiny_recipe("supbyol", train__accumulate=2))
    assert order == ["forward", "backward", "forward", "backward", "optimizer", "ema", "push"]


def test_released_code_moves_the_target_before_its_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = replace(tiny_recipe("supbyol"), compat="released-code")
    assert recorded_order(monkeypatch, recipe) == ["ema", "forward", "backward", "optimizer", "push"]


@pytest.mark.parametrize(("compat", "view"), [("paper", 1), ("released-code", 0)])
def test_the_pool_gets_z2_and_under_the_released_code_z1(compat: str, view: int, monkeypatch) -> None:
    trainer, seen, pushed = trainer_of(replace(tiny_recipe("supsiam"), compat=compat)), [], []
    forward = trainer.model.branches.forward

    def keep(views, local=None):
        anchors, targets = forward(views)
        seen.append(targets.detach().clone())
        return anchors, targets

    monkeypatch.setattr(trainer.model.branches, "forward", keep)
    monkeypatch.setattr(trainer.model.pool, "push", lambda targets, labels: pushed.append(targets.clone()))
    take_step(trainer)
    assert torch.equal(pushed[0], seen[0][view])
    assert not torch.equal(pushed[0], seen[0][1 - view])


def test_micro_batches_push_once_in_sample_order(monkeypatch) -> None:
    trainer, pushed = trainer_of(tiny_recipe("supsiam", train__accumulate=4)), []
    monkeypatch.setattr(trainer.model.pool, "push", lambda targets, labels: pushed.append((targets, labels)))
    positions = trainer.inputs.schedule.order.positions(trainer.step)
    take_step(trainer)
    assert len(pushed) == 1
    assert pushed[0][0].shape == (8, 16)
    assert torch.equal(pushed[0][1], trainer.inputs.labels[positions])


# --- schedules --------------------------------------------------------------------------------------------------------


def test_the_ema_schedule_is_really_applied() -> None:
    """Fault 1 of the released code: its momentum never leaves 0.996."""
    trainer = trainer_of(tiny_recipe("byol", branches__momentum=0.5))
    for _ in range(3):
        before = [p.clone() for p in trainer.model.branches.target_encoder.parameters()]
        momentum = trainer.inputs.schedule.momentum(trainer.step)
        take_step(trainer)
        online = list(trainer.model.branches.encoder.parameters())
        for old, new, now in zip(before, trainer.model.branches.target_encoder.parameters(), online, strict=True):
            torch.testing.assert_close(new, momentum * old + (1 - momentum) * now)
    assert 0.5 < momentum < 1.0


def test_the_predictors_rate_is_constant_while_the_rest_decays(tmp_path: Path) -> None:
    rows = pretrain(tiny_recipe("supsiam", train__monitor_every=0), tiny_data(), tmp_path / "run").metrics
    assert len({row["predictor_lr"] for row in rows}) == 1
    rates = [row["lr"] for row in rows]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.1 * rates[0]


@pytest.mark.parametrize("scale", [0.0, 0.25])
def test_the_encoder_has_its_own_rate_if_it_is_scaled(scale: float) -> None:
    trainer = trainer_of(tiny_recipe("supsiam", optimizer__encoder_lr_scale=scale))
    before = [p.detach().clone() for p in trainer.model.branches.encoder.parameters()]
    take_step(trainer)
    heads, _, encoder = trainer.model.optimizer.param_groups
    assert float(heads["lr"]) > 0
    assert float(encoder["lr"]) == pytest.approx(scale * float(heads["lr"]))
    parameters = list(trainer.model.branches.encoder.parameters())
    assert {id(p) for p in encoder["params"]} == {id(p) for p in parameters}
    assert all(torch.equal(old, new) for old, new in zip(before, parameters, strict=True)) == (scale == 0)
    again = trainer_of(trainer.recipe)
    again.load(trainer.state())
    assert len(again.model.optimizer.param_groups) == 3


@pytest.mark.parametrize("warmup", [0, 2])
@pytest.mark.parametrize("decay", ["cosine", "constant"])
@pytest.mark.parametrize("predictor", ["constant", "follows"])
@pytest.mark.parametrize("granularity", ["step", "epoch"])
def test_the_step_reads_the_schedules_to_the_bit_epoch_by_epoch(warmup, decay, predictor, granularity) -> None:
    settings = {
        "schedule.warmup_epochs": warmup,
        "schedule.decay": decay,
        "schedule.predictor": predictor,
        "schedule.granularity": granularity,
        "train.epochs": 5,
        "branches.momentum": 0.9,
    }
    trainer = trainer_of(tiny_recipe("byol").with_set(settings))
    schedule = trainer.inputs.schedule
    whole = [[rate(step) for step in range(trainer.steps)] for rate in (*schedule.rates, schedule.momentum)]
    made = torch.cat([trainer.inputs.schedule.values(epoch) for epoch in range(5)], dim=1)
    assert made.dtype == torch.float64
    assert made.tolist() == whole  # to the bit
    for step in (0, trainer.steps_per_epoch - 1, trainer.steps_per_epoch, 3 * trainer.steps_per_epoch + 1):
        trainer.step = step  # as where a run goes on
        take_step(trainer)
        rates = [group["lr"] for group in trainer.model.optimizer.param_groups]
        assert rates == [torch.tensor(row[step]) for row in whole[:2]]
        assert float(trainer.inputs.momentum) == whole[2][step]


# --- accumulation -----------------------------------------------------------------------------------------------------


def without_batch_norm(method: str, **overrides) -> Recipe:
    recipe = tiny_recipe(method, **overrides)
    heads = replace(recipe.heads, projector=replace(recipe.heads.projector, norm="none"))
    if heads.predictor is not None:
        heads = replace(heads, predictor=replace(heads.predictor, norm="none"))
    encoder = replace(recipe.encoder, name="linear", size=SIDE * SIDE, width=16)
    return replace(recipe, heads=heads, encoder=encoder, views=replace(recipe.views, size=SIDE * SIDE))


@pytest.mark.parametrize("method", ["supsiam", "supbyol", "moco2", "crossentropy"])
def test_accumulation_changes_nothing_where_the_loss_does_not_see_the_batch(method: str, monkeypatch) -> None:
    weights = []
    for accumulate in (1, 4):
        recipe = without_batch_norm(method, train__accumulate=accumulate)
        trainer = trainer_of(recipe, tiny_data(unlabelled=0.5))  # micro-batches with unequally many labels
        # the views must not depend on how the batch is cut: no randomness, plain pixels
        monkeypatch.setattr(
            type(recipe.views),
            "__call__",
            lambda self, batch, mean, std, generator, **_: torch.stack([batch.pixels / 255, 1 - batch.pixels / 255]),
        )
        trainer.model.branches.double()
        if trainer.model.pool is not None:
            trainer.model.pool.double()
        forward = trainer.model.branches.forward
        double = lambda views, local=None, forward=forward: forward(views.double())  # noqa: E731
        monkeypatch.setattr(trainer.model.branches, "forward", double)
        assert not recipe.loss.sees_batch(trainer.model.pool)
        for _ in range(4):
            take_step(trainer)
        state = trainer.state()
        weights.append(flat(state["branches"]) | flat(state["pool"]) | {"losses": state["interval"].clone()})
    close = {"rtol": 1e-6, "atol": 1e-9} if method == "crossentropy" else {"rtol": 1e-9, "atol": 1e-12}
    for name, value in weights[0].items():  # shares of the labelled images are in single precision
        torch.testing.assert_close(weights[1][name], value, **close)


# --- labels -----------------------------------------------------------------------------------------------------------


def test_training_learns(tmp_path: Path) -> None:
    recipe = tiny_recipe("supsiam", train__epochs=4, optimizer__lr=0.1)
    run = pretrain(recipe, tiny_data(200), tmp_path / "run")
    knn = [row["knn"] for row in run.metrics if row["kind"] == "monitor"]
    losses = [row["loss"] for row in run.metrics if row["kind"] == "train"]
    assert np.mean(losses[-10:]) < np.mean(losses[:5]) - 0.2
    assert knn[-1] >= 60  # chance is 33


# --- what a run leaves ------------------------------------------------------------------------------------------------


def test_init_starts_both_branches_from_the_file(monkeypatch, tmp_path: Path) -> None:
    data = tiny_data()
    first = pretrain(tiny_recipe("byol"), data, tmp_path / "first")
    seen = {}

    take = Step.__call__

    def look(self, batch=None):
        if not seen:
            seen.update({name: value.clone() for name, value in self.model.branches.state_dict().items()})
        return take(self, batch)

    monkeypatch.setattr(Step, "__call__", look)
    pretrain(tiny_recipe("byol", train__seed=1), data, tmp_path / "second", init=first.folder)
    for name, value in first.encoder.state_dict().items():
        assert torch.equal(seen[f"encoder.{name}"], value)
        assert torch.equal(seen[f"target_encoder.{name}"], value)


def test_the_callers_random_state_is_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    pretrain(tiny_recipe(train__epochs=1), tiny_data(), tmp_path / "run")
    assert torch.equal(torch.rand(3), expected)


def test_equal_seeds_give_equal_bits_and_other_seeds_other_ones(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        pretrain(tiny_recipe(train__seed=seed), tiny_data(), tmp_path / name)
    assert_same_bits(final_state(tmp_path / "a"), final_state(tmp_path / "b"))
    with pytest.raises(AssertionError):
        assert_same_bits(final_state(tmp_path / "a"), final_state(tmp_path / "c"))


@pytest.mark.parametrize("method", ["supsiam", "supbyol", "supcon"])
def test_steps_traced_as_one_graph_and_eager_ones_agree(method: str, monkeypatch) -> None:
    """From views to loss, forward and backward, as the compiler is given it; who makes kernels of it is left out."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager", fullgraph=True))
    trained = {}
    for compiled in (False, True):
        torch.compiler.reset()
        trainer = trainer_of(tiny_recipe(method, train__compile=compiled))
        assert trainer.model.branches.join_views()  # as on a GPU
        for _ in range(3):
            trainer.advance()
        trained[compiled] = {name: value.clone() for name, value in trainer.model.branches.state_dict().items()}
    for name, value in trained[False].items():
        torch.testing.assert_close(trained[True][name], value, rtol=1e-4, atol=1e-5, msg=name)


# --- numbers that are not numbers -------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_stops_and_names_the_images(monkeypatch, tmp_path: Path) -> None:
    poisoned(monkeypatch, {3})
    with pytest.raises(NonFinite, match=mentions("step 3")):
        pretrain(tiny_recipe(), tiny_data(), tmp_path / "run")


@pytest.mark.parametrize(
    ("value", "what"), [(1e37, ("features", "held-out images", "finite")), (np.inf, ("weights", "finite"))]
)
def test_an_encoder_that_gives_no_numbers_is_not_saved_over_a_good_one(value, what, tmp_path, monkeypatch) -> None:
    """The loss of the last step is finite, its gradient too, and yet what the step made is not."""
    original = Step.__call__

    def take(self, batch=None):
        targets = original(self, batch)
        with torch.no_grad():
            for weight in self.model.branches.encoder.parameters():
                weight.fill_(value)
        return targets

    monkeypatch.setattr(Step, "__call__", take)
    with pytest.raises(NonFinite, match=mentions(*what)):
        pretrain(tiny_recipe(train__epochs=1, train__batch_size=42), tiny_data(), tmp_path / "run")
    assert not (tmp_path / "run" / "encoder.safetensors").exists()
    assert not list((tmp_path / "run" / "checkpoints").glob("*.pt"))


def test_a_run_does_not_continue_on_other_data(tmp_path: Path) -> None:
    pretrain(tiny_recipe(), tiny_data(), tmp_path / "run")
    with pytest.raises(BadInput, match=mentions("data")):
        pretrain(None, tiny_data(60), tmp_path / "run", resume=True)
    with pytest.raises(BadInput, match=mentions("class names")):
        pretrain(None, replace(tiny_data(), classes=("x", "y", "z")), tmp_path / "run", resume=True)
