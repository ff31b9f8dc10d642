"""The toy study: the batched trainer against the shipped modules, the trends, the tables, the figure."""

from __future__ import annotations

import argparse
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from supancl.core.branches import Branches
from supancl.core.losses import Align
from supancl.core.pools import Queue
from supancl.data.views.specs import Masks
from supancl.paper import toy_study as toy
from supancl.paper.toy_study import (
    DECAY,
    FULL,
    MOMENTUM,
    PEAK,
    READINGS,
    BatchedQueue,
    Networks,
    Size,
    draw_views,
    make_optimizer,
    step,
)

SMALL = Size(dimensions=256, train=160, test=60, width=32, epochs=40, batch=64)
TINY = Size(dimensions=40, train=40, test=10, width=6, epochs=2, batch=16)
NEAR = replace(READINGS["near"], encoder=32)


def linear(weight: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
    layer.weight.data.copy_(weight)
    return layer


def shipped(
    weights: list[Tensor], alpha: float, batches: list[tuple[Tensor, Tensor]], rates: list[float]
) -> list[Tensor]:
    """The same run with the package's own Branches, Align, Queue and torch's SGD; gives the weights and the terms."""
    branches = Branches(*(linear(weight) for weight in weights), target="stop-gradient")
    body = [*branches.encoder.parameters(), *branches.projector.parameters()]
    groups = [{"params": body}, {"params": list(branches.predictor.parameters())}]
    optimizer = torch.optim.SGD(groups, lr=PEAK, momentum=MOMENTUM, weight_decay=DECAY)
    pool, loss = Queue(48, TINY.width, 3).double(), Align(alpha=alpha)
    logged = []
    for (views, labels), rate in zip(batches, rates, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        anchors, targets = branches(views)
        terms = loss(anchors, targets, labels, pool)
        logged.append(torch.stack([terms.ssl, terms.sup]))
        optimizer.zero_grad()
        terms.total.backward()
        optimizer.step()
        pool.push(targets[1], labels)
    return [*(p.detach() for p in branches.parameters()), torch.stack(logged)]


def test_a_batched_run_equals_the_shipped_modules() -> None:
    """Seven steps, so that the pool of three batches wraps; a class is missing at first and falls back."""
    alphas, seeds, steps = (0.0, 0.3, 1.0), (0, 1), 7
    reading = replace(READINGS["literal"], encoder=10)
    networks = Networks(TINY, reading, len(alphas), seeds, dtype=torch.float64)
    queue = BatchedQueue(networks, 48, TINY.batch, 3)
    generator = torch.Generator().manual_seed(0)
    views = torch.randn(steps, len(seeds), 2, TINY.batch, TINY.dimensions, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (steps, len(seeds), TINY.batch), generator=generator)
    labels[0].clamp_(max=1)
    assert (labels[1] == 2).any()
    rates = [PEAK * (1 - index / steps) for index in range(steps)]
    first = [
        networks.encoder.detach().clone().view(6, 10, -1),
        networks.projector.detach().clone(),
        networks.predictor.detach().clone(),
    ]
    optimizer = make_optimizer(networks)
    alpha = torch.tensor(alphas, dtype=torch.float64).repeat(len(seeds))
    terms = []
    for index in range(steps):
        optimizer.param_groups[0]["lr"] = rates[index]
        terms.append(torch.stack(step(networks, queue, optimizer, views[index], labels[index], alpha)))
    last = [networks.encoder.detach().view(6, 10, -1), networks.projector.detach(), networks.predictor.detach()]
    for run in range(6):
        batches = [(views[index, run // 3], labels[index, run // 3]) for index in range(steps)]
        *wanted, logged = shipped([weight[run] for weight in first], alphas[run % 3], batches, rates)
        for ours, theirs, start in zip(last, wanted, first, strict=True):
            assert not torch.allclose(theirs, start[run], atol=1e-4), "nothing was trained"
            torch.testing.assert_close(ours[run], theirs, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(torch.stack(terms)[..., run], logged, rtol=1e-10, atol=1e-12)


def test_views_mask_exactly_the_share_the_shipped_masks_do() -> None:
    vectors = torch.ones(32, 50)
    for share in (0.0, 0.3, 0.6):
        views = draw_views(vectors, share, torch.Generator().manual_seed(0))
        assert views.shape == (2, 32, 50)
        assert ((views == 0).sum(-1) == round(share * 50)).all()
    shipped = Masks(share=0.6)(argparse.Namespace(pixels=vectors), (), (), torch.Generator())
    assert ((shipped == 0).sum(-1) == (views == 0).sum(-1)).all()
    assert not torch.equal(views[0], views[1])
    assert not torch.equal(views[0, 0], views[0, 1])


def test_the_trends_of_the_paper_in_small() -> None:
    result, panels = toy.run(NEAR, SMALL, [0, 1])
    assert result["trends"] == dict.fromkeys(result["trends"], True)
    assert len(result["trends"]) == 6
    assert list(panels) == [f"alpha = {alpha:g}" for alpha in result["alphas"]]
    assert len(result["rows"]) == 5 * 2
    for row in result["rows"]:
        assert 0 < row["S_W"] <= 1
        assert row["k-NN"] > 33


@pytest.mark.slow
def test_the_full_study() -> None:
    """Seeds 0, 1, 2 at full size: what the paper concludes, and the levels that docs/toy.md says are met."""
    result, _ = toy.run(READINGS["near"], FULL, [0, 1, 2])
    assert result["trends"] == dict.fromkeys(result["trends"], True)
    missed = {(row["measure"], row["alpha"]) for row in result["levels"] if not row["met"]}
    assert missed <= {("S_W/S_T", 0.0), ("S_W/S_T", 0.2)}
