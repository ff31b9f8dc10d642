"""Each loss against its definition written as a loop, its gradients, and what it must not depend on."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from supancl.core.losses import Align, Contrast, CrossEntropy, GlobalBatch
from supancl.core.pools import Queue
from supancl.distributed import RowRange
from tests.core.references import (
    AGAINST,
    POOLS,
    POSITIVES,
    align_by_definition,
    contrast_by_definition,
    mean_of_class,
    pool_and_reference,
)
from tests.helpers import property_test, some_labels, units

CLASSES, WIDTH = 4, 6
every_contrast = pytest.mark.parametrize(
    "loss",
    [Contrast(positives=p, against=a, temperature=0.2) for p in POSITIVES for a in AGAINST],
    ids=lambda loss: f"{loss.positives}/{loss.against}",
)
every_form = pytest.mark.parametrize("form", ["cosine", "squared"])
close = {"rtol": 1e-10, "atol": 1e-10}


def filled(kind, size, pushes=3, batch=5, unlabelled=False, seed=50):
    pool, reference = pool_and_reference(kind, size, WIDTH, CLASSES, unlabelled)
    for n in range(pushes):
        targets, labels = units(batch, WIDTH, seed=seed + n), some_labels(batch, CLASSES - 1, seed=seed + n)
        pool.push(targets, labels)
        reference.push(targets, labels)
    return pool, reference


@every_form
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("kind", [None, *POOLS])
def test_align_is_eqs_1_to_3_anchor_by_anchor(form, alpha, kind):
    loss = Align(alpha=alpha, form=form)
    anchors, targets, labels = units(2, 7, WIDTH, seed=1), units(2, 7, WIDTH, seed=2), some_labels(7, CLASSES, seed=3)
    labels[2] = -1
    pool, reference = (None, None) if kind is None else filled(kind, 6)
    total, ssl, sup = align_by_definition(loss, anchors, targets, labels, None if kind is None else reference.held())
    terms = loss(anchors, targets, labels, pool)
    torch.testing.assert_close(terms.total, total, **close)
    torch.testing.assert_close(terms.ssl, ssl, **close)
    # without supervision and without a pool there is no supervised term to log; a pool has one at alpha = 1 too
    torch.testing.assert_close(terms.sup, ssl if alpha == 1 and kind is None else sup, **close)


@every_form
@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_align_takes_an_alpha_for_every_sample(form, alpha):
    anchors, targets, labels = units(2, 5, WIDTH, seed=1), units(2, 5, WIDTH, seed=2), some_labels(5, CLASSES, seed=3)
    alphas = torch.tensor([0.0, 0.25, 0.5, 1.0, 0.1], dtype=torch.float64)
    pool, reference = filled("queue", 6)
    loss = Align(alpha=alpha, form=form)
    total, ssl, sup = align_by_definition(loss, anchors, targets, labels, reference.held(), alphas.tolist())
    terms = loss(anchors, targets, labels, pool, alpha=alphas)
    torch.testing.assert_close((terms.total, terms.ssl, terms.sup), (total, ssl, sup), **close)


@every_form
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("kind", [None, *POOLS])
@pytest.mark.parametrize("local", [1, 2, 3])
def test_local_anchors_are_compared_with_both_targets_and_pairs_count_alike(form, alpha, kind, local):
    loss = Align(alpha=alpha, form=form)
    anchors, targets = units(2 + local, 5, WIDTH, seed=1), units(2, 5, WIDTH, seed=2)
    labels = some_labels(5, CLASSES, seed=3)
    pool, reference = (None, None) if kind is None else filled(kind, 6)
    total = torch.zeros((), dtype=torch.float64)
    for view in range(2 + local):
        for other in [1 - view] if view < 2 else [0, 1]:
            for i, label in enumerate(labels.tolist()):
                if kind is None:  # the class's targets of that view in the batch, the own one included
                    held = [(targets[other, j], 0) for j in range(5) if j == i or (label >= 0 and labels[j] == label)]
                    z_sup = mean_of_class(held, 0)
                else:
                    z_sup = mean_of_class(reference.held(), label)
                z_sup = targets[other, i] if z_sup is None else z_sup
                for z, weight in ((targets[other, i], alpha), (z_sup, 1 - alpha)):
                    p = anchors[view, i]
                    total += weight * (((p - z) ** 2).sum() if form == "squared" else -(p * z).sum())
    terms = loss(anchors, targets, labels, pool)
    torch.testing.assert_close(terms.total, total / (5 * (2 + 2 * local)), **close)


def test_align_draws_m_members_of_the_class_and_averages_them():
    pool = Queue(8, WIDTH, CLASSES).double()
    members = units(3, WIDTH, seed=4)
    pool.push(members, torch.tensor([1, 1, 2]))
    anchors, targets, labels = units(2, 6, WIDTH, seed=1), units(2, 6, WIDTH, seed=2), torch.tensor([1] * 6)
    torch.manual_seed(0)
    z_sup = Align(alpha=0.0, samples=2).supervised_target(targets.flip(0), labels, pool)
    possible = torch.stack([members[i] / 2 + members[j] / 2 for i, j in ((0, 0), (0, 1), (1, 1))])
    nearest = torch.cdist(z_sup.reshape(-1, WIDTH), possible).amin(1)
    assert nearest.max() < 1e-7
    torch.manual_seed(0)
    terms = Align(alpha=0.0, samples=2)(anchors, targets, labels, pool)
    torch.testing.assert_close(terms.total, -(anchors * z_sup).sum(-1).mean(), **close)


@every_contrast
@pytest.mark.parametrize("kind", POOLS)
def test_contrast_is_its_definition_and_so_is_its_gradient(loss, kind):
    labels = torch.tensor([0, 2, -1, 0, 3, -1])
    pool, reference = filled(kind, 7, unlabelled=True)
    anchors, targets = units(2, 6, WIDTH, seed=1).requires_grad_(), units(2, 6, WIDTH, seed=2).requires_grad_()
    expected = contrast_by_definition(loss, anchors, targets, labels, reference.held())
    total = loss(anchors, targets, labels, pool).total
    torch.testing.assert_close(total, expected, **close)
    torch.testing.assert_close(
        torch.autograd.grad(total, [anchors, targets]), torch.autograd.grad(expected, [anchors, targets]), **close
    )


@every_contrast
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "labels",
    [[0, 1, 2, 3], [0, 0, 0, 0], [-1, -1, -1, -1], [0, 0, -1, 3]],
    ids=["one sample a class", "one class", "unlabelled", "mixed"],
)
@pytest.mark.parametrize("full", [False, True], ids=["empty pool", "filled pool"])
def test_contrast_is_finite_at_low_temperature_in_low_precision(loss, dtype, labels, full):
    anchors = units(2, 4, WIDTH, seed=1).to(dtype).requires_grad_()
    targets = units(2, 4, WIDTH, seed=2).to(dtype).requires_grad_()
    pool = Queue(5, WIDTH, CLASSES, unlabelled=True)
    if full:
        pool.push(units(3, WIDTH, seed=3), torch.tensor([0, 1, -1]))
    terms = replace(loss, temperature=0.01)(anchors, targets, torch.tensor(labels), pool)
    terms.total.backward()
    assert terms.total.isfinite()
    assert anchors.grad.isfinite().all()
    assert targets.grad.isfinite().all()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_its_definition_over_the_labelled_samples(smoothing):
    logits = units(2, 5, CLASSES, seed=1, dtype=torch.float32) * 4
    labels = [0, 3, -1, 1, -1]
    summed = 0.0
    for view in logits.tolist():
        for row, label in zip(view, labels, strict=True):
            logs = [x - math.log(sum(map(math.exp, row))) for x in row]
            if label >= 0:
                summed -= (1 - smoothing) * logs[label] + smoothing * sum(logs) / CLASSES
    terms = CrossEntropy(smoothing=smoothing)(logits, logits, torch.tensor(labels))
    assert terms.total.item() == pytest.approx(summed / 6, rel=1e-5)
    assert terms.sup.item() == terms.total.item()


def test_cross_entropy_without_any_label_is_zero_with_zero_gradient():
    logits = units(2, 3, CLASSES, dtype=torch.float32).requires_grad_()
    total = CrossEntropy()(logits, logits.detach(), torch.full((3,), -1)).total
    total.backward()
    assert total.item() == 0
    assert logits.grad.abs().max() == 0


@pytest.mark.parametrize("kind", [None, "queue"])
@pytest.mark.parametrize(
    "loss", [Align(), Align(alpha=0.5), CrossEntropy(), *(Contrast(against=a) for a in AGAINST)], ids=repr
)
def test_a_loss_that_does_not_see_the_batch_is_the_mean_of_its_parts(loss, kind):
    pool = filled("queue", 6)[0] if kind or "pool" in getattr(loss, "against", "") else None
    anchors, targets, labels = units(2, 4, WIDTH, seed=1), units(2, 4, WIDTH, seed=2), torch.tensor([0, 1, 0, 2])
    whole = loss(anchors, targets, labels, pool).total
    parts = [loss(anchors[:, h], targets[:, h], labels[h], pool).total for h in (slice(0, 2), slice(2, 4))]
    additive = bool((whole - (parts[0] + parts[1]) / 2).abs() < 1e-6)
    assert additive == (not loss.sees_batch(pool))


# --- invariances ---------------------------------------------------------------------------------------------------

losses = st.sampled_from(
    [Align(alpha=a, form=f) for a in (0.0, 0.4, 1.0) for f in ("cosine", "squared")]
    + [Contrast(positives=p, against=a, temperature=0.3) for p in POSITIVES for a in AGAINST]
)
kinds, seeds = st.sampled_from(POOLS), st.integers(0, 10**6)
sizes = st.integers(1, 12)


def case(seed, batch):
    shape = 2, batch, WIDTH
    return units(*shape, seed=seed), units(*shape, seed=seed + 1), some_labels(batch, CLASSES, seed=seed)


@property_test
@given(losses, kinds, seeds, sizes, sizes, sizes)
def test_any_batch_and_any_pool_size_follow_the_definition(loss, kind, seed, batch, size, pushed_batch):
    anchors, targets, labels = case(seed, batch)
    pool, reference = pool_and_reference(kind, size, WIDTH, CLASSES, unlabelled=isinstance(loss, Contrast))
    for n in range(2):
        row = units(pushed_batch, WIDTH, seed=seed + n), some_labels(pushed_batch, CLASSES, seed=seed + n)
        pool.push(*row)
        reference.push(*row)
    if isinstance(loss, Contrast):
        expected = contrast_by_definition(loss, anchors, targets, labels, reference.held())
    else:
        expected = align_by_definition(loss, anchors, targets, labels, reference.held())[0]
    torch.testing.assert_close(loss(anchors, targets, labels, pool).total, expected, **close)


def test_what_the_package_reads_of_a_loss():
    assert [loss.normalizes for loss in (Align(), Contrast(), CrossEntropy())] == [True, True, False]
    batch = GlobalBatch.from_all_rows(units(2, 3, WIDTH), some_labels(3, CLASSES))
    assert batch.row_range == RowRange(0, 3, 3)


@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_terms_for_the_log_have_no_gradient(alpha):
    anchors, targets, labels = units(2, 5, WIDTH).requires_grad_(), units(2, 5, WIDTH, seed=1), some_labels(5, CLASSES)
    terms = Align(alpha=alpha)(anchors, targets, labels)
    assert [term.requires_grad for term in terms] == [True, False, False]
