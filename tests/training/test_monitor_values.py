"""Every value that the monitor writes, worked out again by its definition; and how its count of low signs goes on."""

import math

import pytest
import torch
import torch.nn.functional as F

from supancl.core.pools import Queue
from supancl.probes import embed
from supancl.training.monitor import COLLAPSED_RANK, Monitor
from supancl.training.trainer import Trainer
from tests.tiny import tiny_data, tiny_recipe

CPU = torch.device("cpu")


def test_a_row_holds_its_definitions() -> None:
    data = tiny_data(120)
    encoder = Trainer(tiny_recipe("supsiam"), data, CPU).model.branches.encoder
    pool = Queue(10, 8, len(data.classes))
    for labels in (torch.zeros(6, dtype=torch.long), torch.ones(6, dtype=torch.long)):
        pool.push(torch.randn(6, 8), labels)
    targets = torch.randn(50, 8, generator=torch.Generator().manual_seed(0)) * 3 + 1
    row = Monitor(data, True).measure(encoder, targets, pool, CPU)

    alike = F.normalize(targets, dim=1)
    assert row["std"] == pytest.approx(float((alike - alike.mean(0)).square().sum(1).mean().sqrt()), rel=1e-5)
    found, reference = embed(encoder, data.held_out), embed(encoder, data.train)
    values, labels = F.normalize(found.values.double(), dim=1), found.labels
    within = [float((z - values[labels == y].mean(0)).square().sum()) for z, y in zip(values, labels, strict=True)]
    total = [float((z - values.mean(0)).square().sum()) for z in values]
    assert row["s_w"] == pytest.approx(sum(within) / len(within))
    assert row["s_t"] == pytest.approx(sum(total) / len(total))
    assert row["s_w/s_t"] == pytest.approx(sum(within) / sum(total))
    near = values @ F.normalize(reference.values.double(), dim=1).T
    right = []
    for similarity, label in zip(near, labels.tolist(), strict=True):
        votes = torch.zeros(len(data.classes), dtype=torch.float64)
        for at in similarity.topk(20).indices.tolist():
            votes[reference.labels[at]] += math.exp(float(similarity[at]) / 0.1)
        right.append(int(votes.argmax()) == label)
    assert row["knn"] == pytest.approx(100 * sum(right) / len(right))
    assert row["pool_coverage"] == pytest.approx(2 / len(data.classes))
    assert row["pool_staleness"] == pytest.approx(4 / 10)  # ten slots: four of the first push, six of the second


@pytest.mark.parametrize(
    ("supervised", "size", "least"), [(False, 1000, COLLAPSED_RANK), (False, 60, 6.0), (True, 60, 1.0)]
)
def test_the_least_rank_follows_the_batch_and_the_classes(supervised: bool, size: int, least: float) -> None:
    data = tiny_data(60, 3)
    monitor = Monitor(data, supervised)
    encoder = Trainer(tiny_recipe("supsiam"), data, CPU).model.branches.encoder
    monitor.measure(encoder, torch.randn(size, 64, generator=torch.Generator().manual_seed(0)), None, CPU)
    assert monitor.least_rank == least
    assert monitor.low_ranks == 0
