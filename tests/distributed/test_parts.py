"""Who takes which rows, and what a process does with a part of a batch, without any other process."""

import pytest
import torch
from torch import nn

from supancl.core.branches import Branches
from supancl.core.losses import Align, CrossEntropy
from supancl.distributed import (
    Ranks,
    from_environment,
    join_ranks,
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
    monkeypatch.setenv("RANK", "1")  # some schedulers set it for single processes
    assert from_environment().size == 1
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    ranks = from_environment()
    assert (ranks.size, ranks.rank, ranks.local_rank, ranks.is_rank0) == (2, 1, 1, False)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with join_ranks(cuda=False) as alone:
        assert alone.size == 1
        assert not torch.distributed.is_initialized()


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
