"""Who takes which rows, and what a process does with a part of a batch, without any other process."""

import math
import threading

import pytest
import torch
from torch import nn

from supancl import BadInput, recipe
from supancl.core.branches import Branches
from supancl.core.losses import Align, Contrast, CrossEntropy, GlobalBatch
from supancl.core.pools import ClassQueues, Prototypes, Queue
from supancl.data.store.memory import Batch
from supancl.data.views.specs import Masks, views_for_rows
from supancl.distributed import (
    Ranks,
    RowRange,
    from_environment,
    join_ranks,
    processes,
    should_print,
)
from supancl.distributed.norms import CpuCrossRankBatchNorm, GpuCrossRankBatchNorm, synchronize_norms

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
TORCHRUN = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.mark.parametrize(("total", "size"), [(8, 1), (8, 2), (7, 2), (11, 4), (4, 4), (3, 4)])
def test_parts_cover_a_batch_once_and_evenly(total: int, size: int) -> None:
    parts = [Ranks(size, rank).row_range(total) for rank in range(size)]
    rows = torch.arange(total)
    assert torch.cat([part.select(rows) for part in parts]).tolist() == rows.tolist()
    counts = [part.count for part in parts]
    assert max(counts) - min(counts) <= 1
    assert counts == sorted(counts, reverse=True)  # the first one has the most, and all pad to it
    assert all(part.is_whole_batch == (size == 1) for part in parts)


@pytest.mark.parametrize("name", ["digits.supsiam", "cifar100.supsiam", "imagenet100.supbyol"])
def test_an_image_gets_the_same_views_wherever_it_is(name: str) -> None:
    local = {"count": 3, "size": 8, "scale": (0.2, 0.5)}
    views = recipe(name).with_set({"views.size": 16, "views.local": local, "views.solarize": [0.2, 0.8]}).views
    channels = recipe(name).encoder.channels
    pixels = (torch.arange(11 * channels * 20 * 24) * 7919 % 256).to(torch.uint8).view(11, channels, 20, 24)
    sizes = torch.tensor([[20 - i % 5, 24 - i % 7] for i in range(11)])

    def made(rows: torch.Tensor, part: RowRange) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        generator, spec = torch.Generator().manual_seed(3), views_for_rows(views, part)
        batch = Batch(pixels[rows], sizes[rows])
        pair = spec(batch, (0.5,), (0.2,), generator)
        return pair, spec.local_views(batch, (0.5,), (0.2,), generator), generator.get_state()

    rows = torch.arange(11)
    pair, small, state = made(rows, RowRange(0, 11, 11))
    for part in Ranks(4).row_ranges(11):
        own, own_small, own_state = made(part.select(rows), part)
        assert torch.equal(own, part.select(pair, 1))
        assert torch.equal(own_small, part.select(small, 1))
        assert torch.equal(own_state, state)  # the next batch goes on alike
    assert views_for_rows(views, RowRange(0, 11, 11)) is views


def test_masks_are_the_same_wherever_a_vector_is() -> None:
    vectors, part = torch.randn(7, 10), RowRange(4, 3, 7)
    whole = Masks()(Batch(vectors), (), (), torch.Generator().manual_seed(0))
    own = views_for_rows(Masks(), part)(Batch(part.select(vectors)), (), (), torch.Generator().manual_seed(0))
    assert torch.equal(own, part.select(whole, 1))
    assert views_for_rows(Masks(), part).local_views(Batch(vectors), (), ()) is None


@pytest.mark.parametrize(
    ("loss", "pool"),
    [
        (Align(alpha=0.5), None), (Align(alpha=0.3), "queue"), (Align(alpha=0.3, samples=2), "queue"),
        (Align(alpha=0.3, samples=2), "class-queues"), (Contrast(), None), (Contrast(positives="own-class"), None),
        (Contrast(positives="own-class", against="other-view+pool"), "queue"), (Contrast(against="pool"), "queue"),
        (CrossEntropy(smoothing=0.1), None),
    ],
)  # fmt: skip
def test_shares_of_the_loss_add_up_to_the_loss_and_to_its_gradient(loss, pool) -> None:
    """Each rank's rows in turn, as if the others' targets had been gathered."""
    torch.manual_seed(0)
    held = None
    if pool is not None:
        held = (Queue(20, 6, 3) if pool == "queue" else ClassQueues(5, 6, 3)).double()
        held.push(torch.nn.functional.normalize(torch.randn(20, 6).double(), dim=-1), torch.arange(20) % 3)
    labels = torch.tensor([0, 1, -1, 2, 0, -1, 1, 2, 2, 0, -1])
    anchors, targets = (
        torch.nn.functional.normalize(torch.randn(2, 11, 6).double(), dim=-1).requires_grad_() for _ in range(2)
    )
    torch.manual_seed(5)
    expected = loss(anchors, targets, labels, held)
    wanted = torch.autograd.grad(expected.total, [anchors, targets], allow_unused=True, materialize_grads=True)
    terms = torch.zeros(3).double()
    found = [torch.zeros_like(anchors), torch.zeros_like(targets)]
    for part in Ranks(4).row_ranges(11):
        torch.manual_seed(5)
        own = part.select(labels)
        made = loss(
            part.select(anchors, 1), part.select(targets, 1), own, held, global_batch=GlobalBatch(targets, labels, part)
        )
        weight = loss.batch_weight(own, labels)
        terms += torch.stack([term.detach() * weight for term in made])
        found = [
            a + b
            for a, b in zip(
                found,
                torch.autograd.grad(made.total * weight, [anchors, targets], allow_unused=True, materialize_grads=True),
                strict=True,
            )
        ]
    torch.testing.assert_close(terms, torch.stack([term.detach() for term in expected]))
    for own, whole in zip(found, wanted, strict=True):
        torch.testing.assert_close(own, whole)
    assert wanted[0].abs().max() > 0


def test_a_share_without_any_label_counts_nothing() -> None:
    labels = torch.tensor([-1, -1, 0, 1])
    assert [float(CrossEntropy().batch_weight(labels[i : i + 2], labels)) for i in (0, 2)] == [0.0, 1.0]
    assert float(CrossEntropy().batch_weight(labels[:2], labels[:2])) == 0.0  # none in the batch: not 0/0
    assert Align().batch_weight(labels[:1], labels) == 0.25


# --- what one process sees of ranks -----------------------------------------------------------------------------------


def test_ranks_come_from_torchruns_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TORCHRUN:
        monkeypatch.delenv(name, raising=False)
    assert from_environment().size == 1
    assert should_print()
    monkeypatch.setenv("RANK", "1")  # some schedulers set it for single processes
    assert from_environment().size == 1
    assert should_print()
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    ranks = from_environment()
    assert (ranks.size, ranks.rank, ranks.local_rank, ranks.is_rank0) == (2, 1, 1, False)
    assert not should_print()
    monkeypatch.setenv("RANK", "0")
    assert should_print()
    monkeypatch.setenv("WORLD_SIZE", "1")
    with join_ranks(cuda=False) as alone:
        assert alone.size == 1
        assert not torch.distributed.is_initialized()
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(BadInput):
        from_environment()


def test_a_rank_that_has_failed_does_not_wait_for_the_others_to_part(monkeypatch: pytest.MonkeyPatch) -> None:
    parted, others = threading.Event(), threading.Event()

    def destroy() -> None:
        assert others.wait(60)
        parted.set()

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", destroy)
    processes._disconnect(timeout=0.05)
    assert not parted.is_set()
    others.set()
    processes._disconnect()  # an end that all share is waited for
    assert parted.is_set()


@pytest.mark.parametrize(("classes", "size"), [(7, 3), (6, 3), (2, 3), (5, 2)])
def test_prototypes_of_all_ranks_meet_in_the_first_ones_memory_alone(
    classes: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = torch.arange(classes * 4.0).view(classes, 4)
    pools = [Prototypes(4, classes, 0.9, Ranks(size, rank)) for rank in range(size)]
    brought: dict[int, list[torch.Tensor]] = {}

    def gather_on_rank0(self: Ranks, rows: torch.Tensor) -> list[torch.Tensor]:
        brought.setdefault(self.rank, []).append(rows)
        at = len(brought[self.rank]) - 1
        return [brought[rank][at] for rank in range(size)] if self.is_rank0 else []

    monkeypatch.setattr(Ranks, "gather_on_rank0", gather_on_rank0)
    for rank, pool in enumerate(pools):
        pool.prototypes[:-1], pool.seen[:-1] = whole[rank::size], True
    for pool in pools[:0:-1]:  # the first one comes last, to what the others have brought
        kept, held = pool.state_dict(), dict(pool.named_buffers())
        assert {name: value.shape for name, value in kept.items()} == {name: held[name].shape for name in kept}
    kept = pools[0].state_dict()
    assert torch.equal(kept["prototypes"][:-1], whole)
    assert bool(kept["seen"][:-1].all())
    again = Prototypes(4, classes, 0.9, Ranks(size, 1))
    again.load_state_dict(kept)
    assert torch.equal(again.prototypes[:-1], whole[1::size])


@pytest.mark.parametrize(("classes", "size"), [(7, 3), (2, 3), (5, 2)])
def test_shards_together_know_what_one_pool_of_prototypes_knows(
    classes: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Prototypes(4, classes, 0.7)
    shards = [Prototypes(4, classes, 0.7, Ranks(size, rank)) for rank in range(size)]
    for seed in range(3):
        torch.manual_seed(seed)
        targets, labels = torch.randn(6, 4), torch.randint(-1, classes - 1, (6,))  # the last class is never met
        for pool in (whole, *shards):
            pool.push(targets, labels)
    asked = torch.arange(-1, classes).repeat(2)
    fallback = torch.randn(2, len(asked), 4)
    brought: list[torch.Tensor] = []
    monkeypatch.setattr(Ranks, "all_reduce", lambda self, rows: brought.append(rows) or rows)
    for shard in shards:
        shard.class_mean(asked, fallback)
    monkeypatch.setattr(Ranks, "all_reduce", lambda self, rows: torch.stack(brought).sum(0))
    expected = whole.class_mean(asked, fallback)
    for shard in shards:
        torch.testing.assert_close(shard.class_mean(asked, fallback), expected)
        rows = RowRange(1, 2, len(asked))  # the labels of the others are gathered
        monkeypatch.setattr(Ranks, "gather", lambda self, labels, total: asked)
        found = shard.class_mean(rows.select(asked), rows.select(fallback, 1), row_range=rows)
        torch.testing.assert_close(found, rows.select(expected, 1))
    brought.clear()
    monkeypatch.setattr(Ranks, "all_reduce", lambda self, rows: brought.append(rows) or rows)
    for shard in shards:
        shard.all_means()
    monkeypatch.setattr(Ranks, "all_reduce", lambda self, rows: torch.stack(brought).sum(0))
    for shard in shards:
        torch.testing.assert_close(shard.all_means(), whole.all_means())
    possible = range(classes - 1)
    for rank, shard in enumerate(shards):
        mine = [int(whole.counts[label] > 0) for label in possible if label % size == rank]
        expected_share = sum(mine) / len(mine) if mine else math.nan
        assert float(shard.coverage(possible)) == pytest.approx(expected_share, nan_ok=True)
    held = {int(label): row for shard in shards for row, label, valid in zip(*shard.stored(), strict=True) if valid}
    assert sorted(held) == whole.counts.nonzero()[:, 0].tolist()
    for label, row in held.items():
        torch.testing.assert_close(row, whole.prototypes[label])


# --- batch norm -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("device", "kind"), [(CPU, CpuCrossRankBatchNorm), (CUDA, GpuCrossRankBatchNorm)])
def test_norms_become_synchronised(device: torch.device, kind: type) -> None:
    body = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Flatten())
    branches = Branches(body, nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)), None, "momentum")
    names = list(branches.state_dict())
    branches.join_views()
    synchronize_norms(branches, device)
    synchronize_norms(branches, device)  # a second time changes nothing
    norms = [module for module in branches.modules() if isinstance(module, kind)]
    assert len(norms) == 4
    assert {norm.views for norm in norms} == {2}
    assert list(branches.state_dict()) == names


def test_synchronised_norms_use_running_statistics_when_judged() -> None:
    norm = nn.Sequential(nn.BatchNorm1d(3)).eval()
    norm[0].running_mean.normal_()
    expected = norm(torch.ones(4, 3))
    synchronize_norms(norm, CPU)
    assert torch.equal(norm(torch.ones(4, 3)), expected)
