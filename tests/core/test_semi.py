"""The method `semi`: targets of samples without a label against a loop, and the limits in which it is SupSiam."""

from __future__ import annotations

import math

import pytest
import torch

from supancl.core.labels import Labels
from supancl.core.losses import Align, SemiAlign
from supancl.core.pools import PoolSpec
from tests.core.references import POOLS, mean_of_class, pool_and_reference
from tests.core.test_label_weights import CLASSES as PAIR_CLASSES
from tests.core.test_label_weights import pushed, some_pairs
from tests.helpers import some_labels, units

CLASSES, WIDTH, BATCH = 5, 6, 9
close = {"rtol": 1e-10, "atol": 1e-10}
every_pool = pytest.mark.parametrize("kind", POOLS)
EAGER = {"warmup": 0, "temperature": 0.2, "confidence": 0.5}


def filled(kind: str, size: int = 8):
    """A pool, and the same as lists; the last class was never seen."""
    pool, reference = pool_and_reference(kind, size, WIDTH, CLASSES)
    for n in range(3):
        targets, labels = units(6, WIDTH, seed=20 + n), some_labels(6, CLASSES - 1, seed=20 + n)
        pool.push(targets, labels)
        reference.push(targets, labels)
    return pool, reference


def batch(labels: torch.Tensor | None = None):
    labels = some_labels(BATCH, CLASSES, seed=3) if labels is None else labels
    return units(2, BATCH, WIDTH, seed=1), units(2, BATCH, WIDTH, seed=2), labels


def likely_target(loss: SemiAlign, own: torch.Tensor, means: dict[int, torch.Tensor]) -> torch.Tensor:
    """z_sup of one sample without a label: a softmax, sharpened, over the classes with a mean."""
    sharpening = 0.25  # as PAWS writes it: a temperature, then a power
    shares = {
        label: math.exp(float(own @ mean / mean.norm()) / (loss.temperature / sharpening)) ** (1 / sharpening)
        for label, mean in means.items()
    }
    weights = {label: share / sum(shares.values()) for label, share in shares.items()}
    if not weights or max(weights.values()) < loss.confidence:
        return own
    return sum(weights[label] * mean for label, mean in means.items())


@every_pool
@pytest.mark.parametrize("confidence", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("local", [0, 2])
def test_targets_are_those_of_a_loop_over_samples_and_classes(kind, confidence, local):
    loss = SemiAlign(alpha=0.3, **{**EAGER, "confidence": confidence})
    anchors, targets, labels = units(2 + local, BATCH, WIDTH, seed=1), *batch()[1:]
    pool, reference = filled(kind)
    means = {label: mean for label in range(CLASSES) if (mean := mean_of_class(reference.held(), label)) is not None}
    assert len(means) < CLASSES
    total, unsure = [], 0
    for view in range(2 + local):
        for other in [1 - view] if view < 2 else [0, 1]:
            for i, label in enumerate(labels.tolist()):
                own = targets[other, i]
                z_sup = likely_target(loss, own, means) if label < 0 else means.get(label, own)
                unsure += label < 0 and z_sup is own
                total.append(-(anchors[view, i] * (0.3 * own + 0.7 * z_sup)).sum())
    assert unsure > 0 or confidence < 0.9
    torch.testing.assert_close(loss(anchors, targets, labels, pool).total, torch.stack(total).mean(), **close)


@every_pool
def test_with_several_labels_the_means_are_the_weighted_ones(kind):
    pool, reference = pushed(kind)
    means = {c: mean for c in range(PAIR_CLASSES) if (mean := reference.mean(c)) is not None}
    pairs = some_pairs(BATCH, seed=5)
    is_labelled = Labels.of(pairs).is_labelled
    loss, own = SemiAlign(alpha=0.5, **EAGER), units(2, BATCH, 5, seed=7)
    found = loss.supervised_target(own, pairs, pool)
    assert torch.equal(found[:, is_labelled], Align().supervised_target(own, pairs, pool)[:, is_labelled])
    for view in range(2):
        for i in (~is_labelled).nonzero()[:, 0].tolist():
            torch.testing.assert_close(found[view, i], likely_target(loss, own[view, i], means), **close)


def assert_same(semi: SemiAlign, labels: torch.Tensor, kind: str) -> None:
    """The same terms and gradients as SupSiam's, to the last bit."""
    results = []
    for loss in (semi, Align(alpha=semi.alpha, form=semi.form, samples=semi.samples)):
        anchors, targets, _ = batch()
        anchors.requires_grad_()
        torch.manual_seed(0)
        terms = loss(anchors, targets, labels, filled(kind)[0])
        results.append((*terms, *torch.autograd.grad(terms.total, anchors)))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@every_pool
@pytest.mark.parametrize("setting", [{"confidence": 1.01}, {"warmup": 4}])
def test_if_no_sample_is_sure_or_the_warm_up_lasts_it_is_supsiam(kind, setting):
    labels = some_labels(BATCH, CLASSES, seed=3)
    assert_same(SemiAlign(alpha=0.5, **{**EAGER, **setting}), labels, kind)
    with pytest.raises(AssertionError):
        assert_same(SemiAlign(alpha=0.5, **EAGER), labels, kind)


@every_pool
@pytest.mark.parametrize("pairs", [None, 2])
def test_all_means_are_the_class_means(kind, pairs):
    pool = PoolSpec(kind, 8).build(WIDTH, CLASSES, pairs=pairs or 0).double()
    for n in range(3):
        labels = some_labels(6, CLASSES - 1, seed=20 + n) if pairs is None else some_pairs(6, 20 + n, CLASSES - 1, 2)
        pool.push(units(6, WIDTH, seed=20 + n), labels)
    means, is_held = pool.all_means()
    asked = torch.arange(CLASSES) if pairs is None else torch.stack([torch.arange(5.0), torch.ones(5)], 1)[:, None]
    fallback = torch.full((CLASSES, WIDTH), 7.0, dtype=torch.float64)
    expected = pool.class_mean(asked, fallback)
    assert is_held.tolist() == (pool.counts > 0).tolist() == (expected != 7).all(1).tolist()
    torch.testing.assert_close(means[is_held], expected[is_held], **close)


def test_the_first_step_after_the_warm_up_counts_without_gradient_and_an_empty_pool_does_not() -> None:
    own, labels = units(2, BATCH, WIDTH, seed=2).requires_grad_(), torch.full((BATCH,), -1)
    found = SemiAlign(**{**EAGER, "warmup": 3}).supervised_target(own, labels, filled("queue")[0])  # of three pushes
    is_sure = (found != own).any(-1)
    assert is_sure.any()
    (gradient,) = torch.autograd.grad(found[is_sure].sum() + 0 * own.sum(), own)
    assert not gradient.any()
    eager = SemiAlign(**{**EAGER, "confidence": 0.01})
    assert eager.needs_pool
    assert torch.equal(eager.supervised_target(own, labels, PoolSpec("queue", 8).build(WIDTH, CLASSES).double()), own)
