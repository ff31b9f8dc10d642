"""Each pool against Python lists: what it holds, its means, its draws, its state, its cost."""

from __future__ import annotations

import io
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from supancl.core.losses import Align, Contrast, SemiAlign
from supancl.core.pools import PoolSpec, Queue
from supancl.distributed import RowRange
from tests.core.references import POOLS, mean_by_loop, pool_and_reference
from tests.helpers import mentions, property_test, seeded, some_labels, units

WIDTH, CLASSES = 5, 4
every_pool = pytest.mark.parametrize("kind", POOLS)


def build(kind, size=6, classes=CLASSES, width=WIDTH):
    return PoolSpec(kind, size).build(width, classes)


def held(pool):
    """What a pool holds as a sorted list, the same way for a pool and for its reference."""
    if hasattr(pool, "stored"):
        stored = pool.stored()
        rows = list(zip(stored.targets[stored.valid], stored.labels[stored.valid].tolist(), strict=True))
    else:
        rows = pool.held()
    return sorted((label, *target.tolist()) for target, label in rows)


@property_test
@given(
    kind=st.sampled_from([*POOLS, "queue with unlabelled"]),
    size=st.integers(1, 9),
    batches=st.lists(st.integers(0, 20), min_size=1, max_size=8),
    seed=st.integers(0, 10**6),
)
def test_any_pushes_into_any_size_leave_what_lists_would_hold(kind, size, batches, seed):
    unlabelled = kind == "queue with unlabelled"
    pool, reference = pool_and_reference(kind.split()[0], size, WIDTH, CLASSES, unlabelled)
    for n, batch in enumerate(batches):
        # the last class never comes, so that there is always an empty one
        targets, labels = units(batch, WIDTH, seed=seed + n), some_labels(batch, CLASSES - 1, seed=seed + n)
        pool.push(targets, labels)
        reference.push(targets, labels)
        if kind == "prototypes":
            torch.testing.assert_close(torch.tensor(held(pool)), torch.tensor(held(reference)))
        else:
            assert held(pool) == held(reference)
        labels_held = [label for _, label in reference.held()]
        assert pool.counts.tolist() == [labels_held.count(label) for label in range(CLASSES)]
        assert float(pool.coverage()) == len(set(labels_held) - {-1}) / CLASSES
        assert float(pool.coverage(range(CLASSES - 1))) == len(set(labels_held) - {-1}) / (CLASSES - 1)
        query, fallback = torch.arange(-1, CLASSES), units(2, CLASSES + 1, WIDTH, seed=seed + 99)
        expected = mean_by_loop(reference.held(), query.tolist(), fallback)
        torch.testing.assert_close(pool.class_mean(query, fallback), expected, rtol=1e-12, atol=1e-12)
        ages = reference.ages()
        assert float(pool.staleness()) == pytest.approx(sum(ages) / max(1, len(ages)))


@every_pool
@pytest.mark.parametrize("samples", [None, 3])
def test_an_absent_class_falls_back_to_the_own_target_of_each_view(kind, samples):
    pool = build(kind)
    pool.push(units(3, WIDTH, dtype=torch.float32), torch.tensor([0, 0, 2]))
    fallback = units(2, 4, WIDTH, seed=1, dtype=torch.float32)
    mean = pool.class_mean(torch.tensor([1, 0, 3, 2]), fallback, samples)
    assert torch.equal(mean[:, [0, 2]], fallback[:, [0, 2]])
    assert not torch.eq(mean[:, [1, 3]], fallback[:, [1, 3]]).any()


@every_pool
def test_a_label_beyond_the_classes_is_refused(kind):
    pool = build(kind)
    with pytest.raises(ValueError, match=mentions("label 4", "4 classes")):
        pool.push(torch.zeros(2, WIDTH), torch.tensor([0, 4]))
    with pytest.raises(ValueError, match="label 4"):
        pool.class_mean(torch.tensor([4]), torch.zeros(1, WIDTH))


# --- M draws -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["queue", "class-queues"])
def members(request):
    """A pool of basis vectors: 8 of class 1, 4 of class 0, class 2 empty; a draw tells which slot it is."""
    pool = build(request.param, size=12, classes=3, width=12)
    labels = torch.tensor([0, 1, 1] * 4)
    for part in torch.arange(12).split(5):
        pool.push(torch.eye(12)[part], labels[part])
    return pool, labels


def drawn(pool, samples, anchors=200):
    torch.manual_seed(3)
    mean = pool.class_mean(torch.ones(anchors, dtype=torch.long), torch.zeros(2, anchors, 12), samples)
    return (mean * samples).round()  # (2, anchors, 12): how often each was drawn


@pytest.mark.parametrize("samples", [1, 4, 16])
def test_draws_are_m_members_of_the_class_with_equal_chance(members, samples):
    pool, labels = members
    counts = drawn(pool, samples)
    assert torch.equal(counts.sum(-1), torch.full((2, 200), float(samples)))
    assert counts[..., labels != 1].abs().max() == 0
    total = counts[..., labels == 1].sum((0, 1))
    assert stats.chisquare(total.numpy()).pvalue > 1e-4


# --- running sums --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "size"), [("queue", 2048), ("class-queues", 128)])
def test_the_mean_is_right_to_1e_6_after_a_million_targets(kind, size):
    classes, generator = 20, seeded(0)
    pool = build(kind, size=size, classes=classes, width=8)
    pushed = 0
    while pushed < 1_000_000:
        # sizes below and above the pool's, scales that would not cancel in single precision
        batch = int(torch.randint(1, 20_000, (), generator=generator))
        scale = 10 ** (4 * torch.rand(batch, 1, generator=generator) - 2)
        labels = torch.randint(-1, classes, (batch,), generator=generator)
        pool.push(torch.randn(batch, 8, generator=generator) * scale + 1, labels)
        pushed += batch
    stored = pool.stored()
    entries = list(zip(stored.targets.double(), stored.labels.tolist(), strict=True))
    fallback = torch.full((classes, 8), torch.nan, dtype=torch.float64)
    exact = mean_by_loop(entries, range(classes), fallback)
    running = pool.class_mean(torch.arange(classes), fallback)
    error = (running - exact).norm(dim=1) / exact.norm(dim=1)
    assert error.max() <= 1e-6


def test_the_sums_are_exactly_zero_where_a_class_has_left():
    pool = Queue(7, WIDTH, CLASSES, unlabelled=True)
    for n in range(40):
        labels = some_labels(5, 2, seed=n) if n % 2 else torch.full((5,), 2)
        pool.push(units(5, WIDTH, seed=n, dtype=torch.float32) * 10.0 ** (n % 7 - 3), labels)
        assert pool.sums[:-1][pool.counts == 0].abs().sum() == 0
    pool.push(units(7, WIDTH, dtype=torch.float32), torch.full((7,), -1))
    assert pool.counts.tolist() == [0] * CLASSES
    assert pool.sums.abs().sum() == 0


# --- state ---------------------------------------------------------------------------------------------------------


@every_pool
def test_a_saved_pool_continues_bit_for_bit(kind):
    pool, twin = build(kind, size=7), build(kind, size=7)
    for n in range(5):
        pool.push(units(4, WIDTH, seed=n, dtype=torch.float32), some_labels(4, CLASSES, seed=n))
    file = io.BytesIO()
    torch.save(pool.state_dict(), file)
    file.seek(0)
    twin.load_state_dict(torch.load(file, weights_only=True))
    for n in range(5, 12):
        for one, other in zip(pool.state_dict().items(), twin.state_dict().items(), strict=True):
            assert one[0] == other[0]
            assert torch.equal(one[1], other[1]), one[0]
        for samples in (None, 3):
            means = []
            for p in (pool, twin):
                torch.manual_seed(n)
                means.append(p.class_mean(torch.arange(-1, CLASSES), units(2, 5, WIDTH, dtype=torch.float32), samples))
            assert torch.equal(*means)
        for p in (pool, twin):
            p.push(units(6, WIDTH, seed=n, dtype=torch.float32), some_labels(6, CLASSES, seed=n))
        assert torch.equal(pool.staleness(), twin.staleness())


# --- small things -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["queue", "class-queues"])
def test_rows_of_a_batch_get_the_draws_they_have_in_the_whole_batch(kind):
    pool, rows = build(kind, size=9), RowRange(2, 3, 8)
    pool.push(units(30, WIDTH, dtype=torch.float32), torch.arange(30) % CLASSES)
    labels, fallback = torch.arange(8) % CLASSES, torch.zeros(2, 8, WIDTH)
    torch.manual_seed(1)
    whole = pool.class_mean(labels, fallback, samples=2)
    torch.manual_seed(1)
    found = pool.class_mean(rows.select(labels), rows.select(fallback, 1), 2, rows)
    assert torch.equal(found, rows.select(whole, 1))


@every_pool
@pytest.mark.parametrize("pairs", [0, 3])
def test_pushes_and_means_are_traced_without_a_break(kind, pairs):
    """What a GPU captures: a break in the graph would show on a GPU only, as a slow step."""
    pool = PoolSpec(kind, 8).build(WIDTH, CLASSES, pairs=pairs)
    labels = torch.tensor([[[0.0, 0.5], [3.0, 1.0], [-1.0, 0.0]]] * 4) if pairs else some_labels(4, CLASSES)
    targets = units(2, 4, WIDTH, dtype=torch.float32)
    losses = (Align(alpha=0.5), SemiAlign(alpha=0.5), Contrast(positives="own-class", against="both-views+pool"))
    calls = [lambda: pool.push(targets[1], labels), *(partial(loss, targets, targets, labels, pool) for loss in losses)]
    for call in calls:
        torch._dynamo.reset()
        torch.compile(call, backend="eager", fullgraph=True)()
