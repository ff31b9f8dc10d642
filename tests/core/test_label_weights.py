"""Several and soft labels: targets, pools and losses against loops over samples, labels and classes."""

from __future__ import annotations

import math
from collections import deque

import pytest
import torch
import torch.nn.functional as F

from supancl.core.labels import Labels
from supancl.core.losses import Align, Contrast, CrossEntropy, GlobalBatch
from supancl.core.pools import PoolSpec, Prototypes
from supancl.distributed import RowRange
from supancl.distributed.ranks import Ranks
from tests.core.references import POOLS
from tests.helpers import seeded, some_labels, units

WIDTH, CLASSES, L = 5, 6, 3
every_pool = pytest.mark.parametrize("kind", POOLS)


def some_pairs(size: int, seed: int = 0, classes: int = CLASSES - 1, most: int = L) -> torch.Tensor:
    """Up to `most` labels each, some samples without any; the last class never comes."""
    generator = seeded(seed + 77)
    pairs = torch.zeros(size, most, 2)
    pairs[..., 0] = -1
    for row in pairs:
        count = int(torch.randint(0, most + 1, (), generator=generator))
        row[:count, 0] = torch.randperm(classes, generator=generator)[:count].float()
        row[:count, 1] = 0.05 + torch.rand(count, generator=generator)
    return pairs


def as_pairs(labels: torch.Tensor, most: int = 1) -> torch.Tensor:
    """One label of weight 1 as pairs."""
    pairs = torch.zeros(len(labels), most, 2)
    pairs[..., 0] = -1
    pairs[:, 0, 0] = labels.float()
    pairs[:, 0, 1] = (labels >= 0).float()
    return pairs


def as_dicts(pairs: torch.Tensor) -> list[dict[int, float]]:
    return [{int(c): float(w) for c, w in row if c >= 0} for row in pairs.tolist()]


def build(kind: str, size: int = 7, pairs: int = L, **settings):
    return PoolSpec(kind, size, **settings).build(WIDTH, CLASSES, pairs=pairs).double()


class LoopPool:
    """Entries (target, {class: weight}) in lists; prototypes as a dictionary."""

    def __init__(self, kind: str, size: int, rate: float = 0.9) -> None:
        self.kind, self.rate, self.prototypes = kind, rate, {}
        count = CLASSES if kind == "class-queues" else 1
        self.queues = [deque(maxlen=size) for _ in range(count)]

    def push(self, targets: torch.Tensor, pairs: torch.Tensor) -> None:
        rows = list(zip(targets, as_dicts(pairs), strict=True))
        if self.kind == "prototypes":
            for c in range(CLASSES):
                members = [(target, labels[c]) for target, labels in rows if c in labels]
                if members:
                    mean = sum(w * target for target, w in members) / sum(w for _, w in members)
                    old = self.prototypes.get(c, mean)
                    self.prototypes[c] = self.rate * old + (1 - self.rate) * mean
        for target, labels in rows:
            if self.kind == "queue" and labels:
                self.queues[0].append((target, labels))
            for c, w in labels.items() if self.kind == "class-queues" else ():
                self.queues[c].append((target, {c: w}))

    def mean(self, c: int) -> torch.Tensor | None:
        if self.kind == "prototypes":
            return self.prototypes.get(c)
        entries = [(target, labels[c]) for queue in self.queues for target, labels in queue if c in labels]
        return sum(w * target for target, w in entries) / sum(w for _, w in entries) if entries else None

    def count(self, c: int) -> int:
        if self.kind == "prototypes":
            return int(c in self.prototypes)
        return sum(c in labels for queue in self.queues for _, labels in queue)

    def target(self, labels: dict[int, float], own: torch.Tensor) -> torch.Tensor:
        total, result = sum(labels.values()), torch.zeros_like(own)
        for c, w in labels.items():
            mean = self.mean(c)
            result = result + w / total * (own if mean is None else mean)
        return result if labels else own


def pushed(kind: str, size: int = 7, seed: int = 0):
    """A pool and its reference after some pushes, of which the first held a class that is gone by now."""
    pool, reference = build(kind, size), LoopPool(kind, size)
    for n, batch in enumerate((4, 9, 1, 6)):
        targets, pairs = units(batch, WIDTH, seed=seed + n), some_pairs(batch, seed + n, CLASSES if n == 0 else 4)
        pool.push(targets, pairs)
        reference.push(targets, pairs)
    return pool, reference


@every_pool
@pytest.mark.parametrize("size", [1, 3, 30])
def test_the_target_is_the_weighted_mean_of_class_means_and_the_own_target_for_missing_classes(kind, size):
    for seed in range(4):
        pool, reference = pushed(kind, size, 10 * seed)
        own, pairs = units(2, 12, WIDTH, seed=seed), some_pairs(12, seed, CLASSES)
        found = pool.class_mean(pairs, own)
        for view in range(2):
            for b, labels in enumerate(as_dicts(pairs)):
                torch.testing.assert_close(found[view, b], reference.target(labels, own[view, b]))
        assert pool.counts.tolist() == [reference.count(c) for c in range(CLASSES)]


@every_pool
def test_one_label_of_weight_1_gives_the_bits_of_the_pool_for_one_label(kind):
    weighted, plain = build(kind, pairs=1).float(), PoolSpec(kind, 7).build(WIDTH, CLASSES).float()
    for n, batch in enumerate((4, 9, 1, 6)):
        targets, labels = units(batch, WIDTH, seed=n).float(), some_labels(batch, CLASSES - 1, seed=n)
        weighted.push(targets, as_pairs(labels))
        plain.push(targets, labels)
    own, labels = units(2, 9, WIDTH, seed=50).float(), some_labels(9, CLASSES, seed=50)
    assert torch.equal(weighted.class_mean(as_pairs(labels), own), plain.class_mean(labels, own))
    assert torch.equal(weighted.class_mean(as_pairs(labels, 2), own), plain.class_mean(labels, own))
    assert torch.equal(weighted.counts, plain.counts)
    stored, expected = weighted.stored(), plain.stored()
    assert torch.equal(stored.targets[stored.valid], expected.targets[expected.valid])
    assert torch.equal(Labels.of(stored.labels[stored.valid]).classes[:, 0], expected.labels[expected.valid])
    assert float(weighted.staleness()) == float(plain.staleness())


def test_what_leaves_a_queue_leaves_nothing_behind():
    """Sums of float64 lose digits of .1 next to 1e8; the number of entries loses none."""
    weights = (1e8, 0.1, 0.2, 0.7)
    pool = build("queue", size=4, pairs=1)
    for weight in weights:
        pool.push(units(1, WIDTH, seed=1), torch.tensor([[[0.0, weight]]]))
    left = float(pool.mass[0])
    for weight in weights:
        left -= float(torch.tensor(weight))
    assert left != 0
    pool.push(units(4, WIDTH, seed=2), torch.tensor([[[1.0, 1.0]]] * 4))
    assert pool.counts.tolist()[:2] == [0, 4]
    assert float(pool.mass[0]) == 0
    assert not pool.sums[0].any()
    own = units(1, 1, WIDTH, seed=3)
    assert torch.equal(pool.class_mean(torch.tensor([[[0.0, 0.3]]]), own), own)


@pytest.mark.parametrize("kind", ["queue", "class-queues"])
def test_the_mean_of_samples_has_the_target_over_all_positives_as_its_expectation(kind):
    pool, reference = pushed(kind)
    own, pairs = units(2, 10, WIDTH, seed=8), some_pairs(10, 8, CLASSES)
    torch.manual_seed(0)
    samples = 40_000
    found = pool.class_mean(pairs, own, samples)
    for b, labels in enumerate(as_dicts(pairs)):
        expected = torch.stack([reference.target(labels, own[view, b]) for view in range(2)])
        assert (found[:, b] - expected).abs().max() < 5 / math.sqrt(samples)
    assert (found - pool.class_mean(pairs, own)).abs().max() > 0


def test_without_a_pool_means_are_over_the_batch():
    targets, anchors, pairs = units(2, 9, WIDTH, seed=1), units(2, 9, WIDTH, seed=2), some_pairs(9, 4)
    found = Align(alpha=0.5).supervised_target(targets.flip(0), pairs, None)
    for view in range(2):
        reference = LoopPool("queue", 100)
        reference.push(targets[1 - view], pairs)
        for b, labels in enumerate(as_dicts(pairs)):
            torch.testing.assert_close(found[view, b], reference.target(labels, targets[1 - view, b]))
    rows = RowRange(2, 4, 9)
    part = Align(alpha=0.5)(
        anchors[:, 2:6], targets[:, 2:6], pairs[2:6], global_batch=GlobalBatch(targets, pairs, rows)
    )
    expected = -(anchors * (0.5 * targets.flip(0) + 0.5 * found)).sum(-1)[:, 2:6].mean()
    torch.testing.assert_close(part.total, expected)


# --- contrast and cross-entropy ---------------------------------------------------------------------------------------


def cosine(one: dict[int, float], other: dict[int, float]) -> float:
    product = sum(w * other.get(c, 0.0) for c, w in one.items())
    norms = [math.sqrt(sum(w * w for w in labels.values())) for labels in (one, other)]
    return product / (norms[0] * norms[1]) if product else 0.0


def contrast_by_loop(loss, anchors, targets, labels, pool):
    """-sum_p weight_p log softmax_p / sum_p weight_p, averaged over anchors."""
    total, count = 0.0, anchors.shape[1]
    stored = pool.stored() if pool is not None else None
    held_labels = (
        [] if stored is None else as_dicts(as_pairs(stored.labels) if stored.labels.ndim == 1 else stored.labels)
    )
    for view in range(2):
        for b in range(count):
            candidates = []  # (target, weight as a positive)
            for n in range(count):
                weight = 1.0 if n == b else cosine(labels[b], labels[n])
                if loss.against != "pool" or n == b:
                    candidates.append((targets[1 - view, n], weight))
                if loss.against.startswith("both-views") and n != b:
                    candidates.append((targets[view, n], weight))
            if stored is not None:
                for target, held, valid in zip(stored.targets, held_labels, stored.valid, strict=True):
                    if valid:
                        candidates.append((target, cosine(labels[b], held)))
            logits = torch.stack([anchors[view, b] @ target / loss.temperature for target, _ in candidates])
            weights = torch.tensor([weight for _, weight in candidates], dtype=torch.float64)
            total -= float((weights * logits.log_softmax(0)).sum() / weights.sum())
    return total / (2 * count)


@pytest.mark.parametrize("against", ["both-views", "pool", "other-view", "other-view+pool", "both-views+pool"])
@pytest.mark.parametrize("kind", ["queue", "prototypes"])
def test_positives_count_by_the_overlap_of_their_labels(against, kind):
    loss = Contrast("contrast", "own-class", against, 0.2)
    pool = pushed(kind)[0] if loss.needs_pool else None
    anchors, targets, pairs = units(2, 7, WIDTH, seed=1), units(2, 7, WIDTH, seed=2), some_pairs(7, 3)
    expected = contrast_by_loop(loss, anchors, targets, as_dicts(pairs), pool)
    assert float(loss(anchors, targets, pairs, pool).total) == pytest.approx(expected, rel=1e-6)


def test_one_label_of_weight_1_gives_the_bits_of_contrast_and_batch_means_for_one_label():
    anchors, targets = units(2, 9, WIDTH, seed=1).float(), units(2, 9, WIDTH, seed=2).float()
    labels = some_labels(9, 3)
    for loss in (Contrast(positives="own-class"), Contrast(), Align(alpha=0.5)):
        assert torch.equal(loss(anchors, targets, as_pairs(labels)).total, loss(anchors, targets, labels).total)


@pytest.mark.parametrize("form", ["softmax", "binary"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_with_weights_is_that_of_a_loop(form, smoothing):
    loss, logits, pairs = (
        CrossEntropy(smoothing=smoothing, form=form),
        units(2, 9, CLASSES, seed=4) * 3,
        some_pairs(9, 6),
    )
    total, count = 0.0, 0
    for b, labels in enumerate(as_dicts(pairs)):
        for view in range(2 if labels else 0):
            count += 1
            for c in range(CLASSES):
                if form == "binary":
                    wanted = labels.get(c, 0.0) * (1 - smoothing) + smoothing / 2
                    value = F.logsigmoid(logits[view, b, c]), F.logsigmoid(-logits[view, b, c])
                    total -= float(wanted * value[0] + (1 - wanted) * value[1]) / CLASSES
                else:
                    wanted = labels.get(c, 0.0) / sum(labels.values()) * (1 - smoothing) + smoothing / CLASSES
                    total -= wanted * float(logits[view, b].log_softmax(0)[c])
    found = loss(logits, logits, pairs)
    assert float(found.total) == pytest.approx(total / count, rel=1e-6)
    assert float(loss.batch_weight(pairs[:4], pairs)) == pytest.approx(
        sum(map(bool, as_dicts(pairs[:4]))) / sum(map(bool, as_dicts(pairs)))
    )


class Half(Ranks):
    """One of two ranks that does not meet the other: the test adds up what both have."""

    def all_reduce(self, value: torch.Tensor) -> torch.Tensor:
        return value


def test_shards_of_prototypes_add_up_to_one_pool() -> None:
    pools = [Prototypes(WIDTH, CLASSES, 0.9, ranks).double() for ranks in (Ranks(), Half(2, 0), Half(2, 1))]
    for n in range(3):
        for pool in pools:
            pool.push(units(9, WIDTH, seed=n), some_labels(9, CLASSES - 1, seed=n))
    fallback = units(CLASSES, WIDTH, seed=9)
    whole, *parts = (pool.class_mean(torch.arange(CLASSES), fallback) for pool in pools)
    assert torch.equal(whole[-1], fallback[-1])  # of a class that never came
    torch.testing.assert_close(parts[0] + parts[1], whole)
