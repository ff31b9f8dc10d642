"""Where one method becomes another: the same number must come out of both rows of the table."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from supancl.core.branches import Branches
from supancl.core.losses import Align
from supancl.core.methods import METHODS
from supancl.core.pools import PoolSpec
from tests.core.references import POOLS, pool_and_reference
from tests.helpers import some_labels, units

BATCH, WIDTH, CLASSES = 6, 5, 8
same = {"rtol": 1e-12, "atol": 1e-12}


def batch(labels=None):
    anchors, targets = units(2, BATCH, WIDTH, seed=1).requires_grad_(), units(2, BATCH, WIDTH, seed=2).requires_grad_()
    return anchors, targets, torch.arange(BATCH) if labels is None else torch.tensor(labels)


def assert_equal_with_gradients(one, other, anchors, targets):
    torch.testing.assert_close(one, other, **same)
    gradients = [torch.autograd.grad(total, [anchors, targets], retain_graph=True) for total in (one, other)]
    torch.testing.assert_close(*gradients, **same)


def empty(kind="queue"):
    return pool_and_reference(kind, 16, WIDTH, CLASSES, unlabelled=True)[0]


@pytest.mark.parametrize("labels", [[0, 1, 2, 3, 4, 5], [-1] * BATCH], ids=["unique", "unlabelled"])
def test_supcon_without_class_mates_is_simclr(labels):
    anchors, targets, labels = batch(labels)
    supcon, simclr = METHODS["supcon"].loss, METHODS["simclr"].loss
    assert_equal_with_gradients(
        supcon(anchors, targets, labels).total, simclr(anchors, targets, labels).total, anchors, targets
    )


def test_simclr_is_cross_entropy_over_the_other_2b_minus_1_vectors():
    anchors, targets, labels = batch()
    flat = targets.reshape(-1, WIDTH)
    logits = (anchors.reshape(-1, WIDTH) @ flat.T / 0.1).masked_fill(torch.eye(2 * BATCH, dtype=torch.bool), -torch.inf)
    expected = F.cross_entropy(logits, torch.arange(2 * BATCH).roll(BATCH))
    assert_equal_with_gradients(METHODS["simclr"].loss(anchors, targets, labels).total, expected, anchors, targets)


@pytest.mark.parametrize(("supervised", "plain"), [("supsiam", "simsiam"), ("supbyol", "byol")])
@pytest.mark.parametrize("how", ["alpha = 1", *(f"empty {kind}" for kind in POOLS)])
def test_without_supervision_the_supervised_method_is_the_plain_one(supervised, plain, how):
    anchors, targets, labels = batch([0, 0, 1, 1, -1, 2])
    loss, pool = METHODS[supervised].loss, empty(how.split()[-1] if "empty" in how else "queue")
    assert loss.alpha < 1
    if how == "alpha = 1":
        loss = replace(loss, alpha=1.0)
        pool.push(units(9, WIDTH, seed=3), some_labels(9, CLASSES))
    expected = METHODS[plain].loss(anchors, targets, labels).total
    assert_equal_with_gradients(loss(anchors, targets, labels, pool).total, expected, anchors, targets)


@pytest.mark.parametrize("labels", [[0, 1, 2, 3, 4, 5], [0, 0, 1, 1, -1, 2]])
@pytest.mark.parametrize("name", ["moco2", "supmoco"])
def test_a_queue_that_starts_random_is_negatives_and_nothing_else(name, labels):
    """The released code's first step: -log softmax of the positives, with every random vector in the denominator."""
    anchors, targets, labels = batch(labels)
    loss = METHODS[name].loss
    pool = PoolSpec("queue", 16, start="random").build(WIDTH, CLASSES, unlabelled=True).double()
    totals = []
    for view in range(2):
        for i in range(BATCH):
            facing = targets[1 - view]
            candidates = facing[i : i + 1] if name == "moco2" else facing
            own = [j for j in range(BATCH) if j == i or (labels[i] >= 0 and labels[j] == labels[i])]
            logits = torch.cat([candidates, pool.stored().targets]) @ anchors[view, i] / loss.temperature
            logs = F.log_softmax(logits, 0)
            totals.append(-logs[[0] if name == "moco2" else own].mean())
    assert_equal_with_gradients(
        loss(anchors, targets, labels, pool).total, torch.stack(totals).mean(), anchors, targets
    )


def branches(target):
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
    return Branches(encoder, nn.Linear(8, WIDTH), nn.Linear(WIDTH, WIDTH), target).double()


def test_byol_with_momentum_zero_tracks_the_online_branch_and_is_simsiam():
    byol, simsiam = branches("momentum"), branches("stop-gradient")
    optimizers = [torch.optim.SGD([p for p in b.parameters() if p.requires_grad], lr=0.5) for b in (byol, simsiam)]
    for step in range(4):
        views = torch.randn(2, BATCH, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        totals = []
        for net, optimizer in zip((byol, simsiam), optimizers, strict=True):
            total = Align()(*net(views), torch.zeros(BATCH)).total
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
            net.update_target(0.0)
            totals.append(total.detach())
        torch.testing.assert_close(*totals, **same)
        assert byol.target_encoder is not byol.encoder
        online = [*byol.encoder.parameters(), *byol.projector.parameters()]
        copied = [*byol.target_encoder.parameters(), *byol.target_projector.parameters()]
        assert all(torch.equal(a, b) for a, b in zip(online, copied, strict=True))
