"""The two branches: where gradients stop, whose statistics are used, what the EMA touches."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from supancl.core.branches import Branches
from supancl.core.losses import Align, Contrast
from supancl.core.pools import Queue
from supancl.core.specs import MLP
from supancl.training.trainer import Trainer
from tests.helpers import tiny_data, tiny_recipe

BATCH, INPUT, WIDTH = 7, 4, 5
TARGETS = ("shared", "stop-gradient", "momentum")
every_target = pytest.mark.parametrize("target", TARGETS)


def build(target="momentum", predictor=True, normalize=True, seed=0):
    torch.manual_seed(seed)
    encoder = nn.Sequential(nn.Linear(INPUT, 8), nn.BatchNorm1d(8), nn.ReLU())
    projector = nn.Sequential(nn.Linear(8, WIDTH, bias=False), nn.BatchNorm1d(WIDTH))
    return Branches(encoder, projector, nn.Linear(WIDTH, WIDTH) if predictor else None, target, normalize)


def some_views(seed=0):
    views = torch.randn(2, BATCH, INPUT, generator=torch.Generator().manual_seed(seed))
    return views * torch.tensor([1.0, 3.0])[:, None, None] + torch.tensor([0.0, 5.0])[:, None, None]


def moved(branches, by=0.3):
    """The online branch elsewhere than its target copy, as after some training."""
    with torch.no_grad():
        for parameter in (*branches.encoder.parameters(), *branches.projector.parameters()):
            parameter += by * torch.randn_like(parameter)
    return branches


def target_modules(branches):
    return branches.target_encoder, branches.target_projector


def parameters(*modules):
    return [p for module in modules for p in module.parameters()]


def buffers(*modules):
    return [b.clone() for module in modules for b in module.buffers()]


@every_target
@pytest.mark.parametrize("predictor", [True, False])
def test_anchors_and_targets_are_pairs_of_unit_vectors(target, predictor):
    anchors, targets = build(target, predictor)(some_views())
    assert anchors.shape == targets.shape == (2, BATCH, WIDTH)
    for vectors in (anchors, targets):
        torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(2, BATCH))


@every_target
def test_batch_norm_statistics_are_per_view(target):
    views, branches = some_views(), build(target)
    alone = [copy.deepcopy(branches)(torch.stack([view, view])) for view in views]
    anchors, targets = branches(views)
    for view in range(2):
        torch.testing.assert_close(anchors[view], alone[view][0][0])
        torch.testing.assert_close(targets[view], alone[view][1][0])


def test_the_momentum_branch_normalises_by_its_own_batch_statistics_and_keeps_its_own_running_ones():
    views, branches = some_views(), moved(build("momentum"))
    online, target = branches.encoder, branches.target_encoder
    assert target.training
    assert target[1] is not online[1]
    branches(views)
    for encoder in (online, target):
        expected = torch.zeros(8)
        for view in views:
            expected = 0.9 * expected + 0.1 * encoder[0](view).mean(0)
        torch.testing.assert_close(encoder[1].running_mean, expected)
    assert (online[1].running_mean - target[1].running_mean).abs().max() > 1e-3
    # train mode: what comes out is normalised by the batch, whatever the running statistics say
    target[1].running_mean.fill_(1e6)
    _, targets = branches(views)
    hidden = target[0](views[0])
    normed = F.relu(F.batch_norm(hidden, None, None, target[1].weight, target[1].bias, training=True))
    projected = branches.target_projector(normed)
    torch.testing.assert_close(targets[0], F.normalize(projected, dim=-1))


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.5, 0.99, 0.996, 1.0])
def test_the_ema_is_an_exact_lerp_of_every_parameter(momentum):
    branches = moved(build("momentum"))
    online = parameters(branches.encoder, branches.projector)
    before = [p.clone() for p in parameters(*target_modules(branches))]
    branches.update_target(momentum)
    after = parameters(*target_modules(branches))
    assert len(after) == len(online) > 0
    for old, new, follow in zip(before, after, online, strict=True):
        assert torch.equal(new, torch.lerp(old, follow.detach(), 1.0 - momentum))
        expected = momentum * old.double() + (1 - momentum) * follow.detach().double()
        torch.testing.assert_close(new.double(), expected, rtol=1e-6, atol=1e-7)
    if momentum == 1:
        assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    if momentum == 0:
        assert all(torch.equal(new, p) for new, p in zip(after, online, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.996, 1.0])
def test_a_momentum_that_is_a_tensor_moves_the_target_as_the_number_does(momentum, dtype):
    branches = moved(build("momentum"))
    online = [p.detach().double() for p in parameters(branches.encoder, branches.projector)]
    before = [p.double() for p in parameters(*target_modules(branches))]
    assert not all(torch.equal(old, follow) for old, follow in zip(before, online, strict=True))
    branches.update_target(torch.tensor(momentum, dtype=dtype))
    for old, new, follow in zip(before, parameters(*target_modules(branches)), online, strict=True):
        assert new.dtype == torch.float32
        torch.testing.assert_close(new.double(), momentum * old + (1 - momentum) * follow, rtol=1e-6, atol=1e-6)


LOSSES = [
    Align(alpha=0.5),
    Align(alpha=0.5, form="squared"),
    Contrast(positives="own-class", against="other-view+pool"),
]


@pytest.mark.parametrize("target", ["stop-gradient", "momentum"])
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_no_gradient_reaches_targets_target_branch_or_pool(target, loss):
    branches, pool = moved(build(target)), Queue(10, WIDTH, 3)
    labels = torch.tensor([0, 0, 1, 1, 2, -1, 2])
    anchors, targets = branches(some_views())
    pool.push(targets[1], labels)
    assert not targets.requires_grad
    anchors.retain_grad()
    loss(anchors, targets, labels, pool).total.backward()
    assert anchors.grad.abs().max() > 0
    assert not any(b.requires_grad or b.grad is not None for b in pool.buffers())
    if target == "momentum":
        assert all(p.grad is None for p in parameters(*target_modules(branches)))


# --- local views ---------------------------------------------------------------------------------------------------


def some_local(views=3):
    return torch.randn(views, BATCH, INPUT, generator=torch.Generator().manual_seed(9)) + 2


@every_target
@pytest.mark.parametrize("predictor", [True, False])
def test_local_views_give_anchors_and_leave_the_others_as_they_are(target, predictor):
    views, branches = some_views(), build(target, predictor)
    twin, alone = copy.deepcopy(branches), copy.deepcopy(branches)
    anchors, targets = branches(views, some_local())
    expected = twin(views)
    assert anchors.shape == (5, BATCH, WIDTH)
    assert torch.equal(anchors[:2], expected[0])
    assert torch.equal(targets, expected[1])
    for view, anchor in zip(some_local(), anchors[2:], strict=True):
        torch.testing.assert_close(anchor, alone(torch.stack([view, view]))[0][0])


@pytest.mark.parametrize("method", ["supsiam", "supbyol", "simsiam", "crossentropy"])
def test_a_run_trains_with_local_crops_and_two_views_go_to_the_pool(method):
    made = tiny_recipe(method, views__local={"count": 2, "size": 5, "scale": [0.1, 0.4]})
    trainer = Trainer(made, tiny_data(), torch.device("cpu"))
    seen = []
    trainer.model.branches.register_forward_hook(
        lambda module, given, out: seen.append((given[1].shape, *map(len, out)))
    )
    before = [p.clone() for p in trainer.model.branches.encoder.parameters()]
    z2 = trainer.advance()
    assert seen == [((2, 8, 1, 5, 5), 4, 2)]
    after = trainer.model.branches.encoder.parameters()
    assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))
    if trainer.model.pool is not None:
        stored = trainer.model.pool.stored()
        assert torch.equal(stored.targets[stored.valid], z2)


@pytest.mark.parametrize("target", ["shared", "stop-gradient", "momentum"])
def test_views_in_one_batch_have_the_values_gradients_and_statistics_of_views_one_by_one(target: str) -> None:
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        encoder = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8))
        made.append(Branches(encoder, MLP((8,), 8).build(8), MLP((4,), 8).build(8), target).double())
    apart, together = made
    assert together.join_views()
    views = torch.randn(2, 5, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for branches in made:
        anchors, targets = branches(views)
        (anchors * targets.detach().flip(0)).sum().backward()
    for one, other in zip(apart(views), together(views), strict=True):
        assert torch.allclose(one, other, atol=1e-12)
    for one, other in zip(apart.parameters(), together.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        assert one.grad is None or torch.allclose(one.grad, other.grad, atol=1e-12)
    assert apart.state_dict().keys() == together.state_dict().keys()
    for one, other in zip(apart.buffers(), together.buffers(), strict=True):
        assert torch.allclose(one.double(), other.double(), atol=1e-12)


@every_target
def test_norms_are_unit_to_single_precision_when_layers_run_in_bf16(target):
    anchors, targets = build(target).bfloat16()(some_views().bfloat16())
    for vectors in (anchors, targets):
        assert vectors.dtype == torch.float32
        torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(2, BATCH), atol=1e-5, rtol=0)
