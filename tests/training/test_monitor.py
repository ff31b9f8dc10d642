"""The monitor: values as the contract defines them, loud on a collapse, silent on a healthy run."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from supancl import Collapsed, effective_rank, pretrain, recipe
from supancl.core.pools import Queue
from supancl.probes import embed
from supancl.training.monitor import (
    COLLAPSED_STD,
    LOW_RANK_IN_A_ROW,
    LOW_STD_IN_A_ROW,
    Monitor,
    relative_std,
)
from supancl.training.trainer import Trainer
from tests.helpers import Notes, tiny_data, tiny_recipe

CPU = torch.device("cpu")


def test_relative_std_is_one_on_the_sphere_and_zero_when_collapsed() -> None:
    torch.manual_seed(0)
    assert float(relative_std(torch.randn(4000, 16))) == pytest.approx(1.0, abs=0.01)
    assert float(relative_std(torch.ones(100, 16))) == 0.0


@pytest.mark.parametrize(("size", "width"), [(64, 256), (256, 64), (50, 50), (256, 2048), (2, 7)])
def test_effective_rank_is_that_of_the_singular_values(size: int, width: int) -> None:
    torch.manual_seed(0)
    values = F.normalize(torch.randn(size, width) * torch.linspace(0.1, 2, width), dim=1)
    singular = torch.linalg.svdvals(values.double() - values.double().mean(0))
    share = singular / singular.sum()
    share = share[share > 1e-12]
    assert effective_rank(values) == pytest.approx(float((-(share * share.log()).sum()).exp()), rel=1e-9)


def test_one_low_reading_is_no_collapse_but_several_in_a_row_are() -> None:
    monitor, flat, spread = Monitor(tiny_data(), True), torch.ones(8, 4), torch.eye(8)
    for targets in [flat] * (LOW_STD_IN_A_ROW - 1) + [spread] + [flat] * (LOW_STD_IN_A_ROW - 1):
        monitor.note(float(relative_std(targets)))
    assert not monitor.collapsed
    monitor.note(float(relative_std(flat)))
    assert monitor.collapsed


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


COLLAPSING = {
    # weight decay shrinks the weights faster than the loss keeps the targets apart: lr .7 and wd 5e-4 on CIFAR-100,
    # made quick for small data
    "optimizer.weight_decay": 0.3,
    "optimizer.lr": 0.5,
    "schedule.warmup_epochs": 0,
    "train.epochs": 10,
    "train.batch_size": 16,
    "optimizer.reference_batch": 16,
    "data.limit": 256,
    "encoder.width": 8,
    "train.device": "cpu",
    "train.monitor_every": 0,
}


def test_a_collapse_is_said_once_and_at_once(tmp_path: Path) -> None:
    notes = Notes()
    run = pretrain(recipe("digits.simsiam").with_set(COLLAPSING), out=tmp_path / "run", reporter=notes)
    assert run.collapsed
    assert len(notes.warnings) == 1
    step = int(notes.warnings[0].split("by step ")[1].split(":")[0])
    stds = [row["std"] for row in run.metrics if row["step"] <= step]
    low = [std < COLLAPSED_STD for std in stds]
    runs = [all(low[i : i + LOW_STD_IN_A_ROW]) for i in range(len(low) - LOW_STD_IN_A_ROW + 1)]
    assert runs == [False] * (len(runs) - 1) + [True]  # said at the first moment it was sure
    assert stds[0] > 0.9


def test_on_collapse_stop_ends_the_run_after_saving(tmp_path: Path) -> None:
    chosen = recipe("digits.simsiam").with_set({**COLLAPSING, "train.on_collapse": "stop"})
    with pytest.raises(Collapsed):
        pretrain(chosen, out=tmp_path / "run")
    assert list((tmp_path / "run" / "checkpoints").glob("*.pt"))


@pytest.mark.parametrize("name", ["digits.simsiam", "digits.supsiam", "digits.byol", "digits.supbyol"])
def test_healthy_runs_stay_silent(name: str, tmp_path: Path) -> None:
    notes = Notes()
    settings = {
        "train.epochs": 6,
        "train.batch_size": 32,
        "optimizer.reference_batch": 32,
        "train.log_every": 1,
        "train.device": "cpu",
        "data.limit": 256,
        "train.monitor_every": 0,
    }
    run = pretrain(recipe(name).with_set(settings), out=tmp_path / "run", reporter=notes)
    assert notes.warnings == []
    assert not run.collapsed
    assert min(row["std"] for row in run.metrics) > 2 * COLLAPSED_STD


def test_of_partly_labelled_images_the_monitor_takes_the_labelled_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth has a label: 20 images at random would hold two of them."""
    monkeypatch.setattr("supancl.training.monitor.MAX_IMAGES", 20)
    partly = tiny_data(400, unlabelled=0.9)
    monitor = Monitor(partly, True)
    assert partly.train.num_labelled > 20
    assert (len(monitor.reference), monitor.reference.num_labelled) == (20, 20)
    assert 0 < len(monitor.held_out) == monitor.held_out.num_labelled == min(20, partly.held_out.num_labelled)
    whole = tiny_data(400)
    assert torch.equal(Monitor(whole, True).reference.index, whole.train.sample(20).index)


def of_rank(rank: int, size: int = 256, width: int = 64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(size, rank, generator=generator) @ torch.randn(rank, width, generator=generator)


@pytest.mark.parametrize(
    ("supervised", "classes", "rank", "collapsed"),
    [
        (False, 3, 4, True),  # what CIFAR-100 SimSiam fell to
        (False, 3, 40, False),
        (True, 3, 2, False),  # three classes drawn to their means need two directions
        (True, 40, 4, True),
        (True, 40, 39, False),
    ],
)
def test_targets_that_use_few_directions_are_a_collapse_though_they_are_spread_out(
    supervised: bool, classes: int, rank: int, collapsed: bool
) -> None:
    data = tiny_data(4 * classes, classes)
    monitor = Monitor(data, supervised)
    trainer = Trainer(tiny_recipe("supsiam"), data, CPU)
    for _ in range(LOW_RANK_IN_A_ROW):
        assert not monitor.collapsed
        assert monitor.note(float(relative_std(of_rank(rank)))) > 0.9
        monitor.measure(trainer.model.branches.encoder, of_rank(rank), None, CPU)
    assert monitor.collapsed == collapsed


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize(("half", "close"), [(False, 5e-3), (True, 0.03)])
def test_on_a_gpu_the_values_are_those_of_a_cpu(half: bool, close: float) -> None:
    data, device = tiny_data(600), torch.device("cuda")
    encoder = Trainer(tiny_recipe("supsiam"), data, CPU).model.branches.encoder
    expected = Monitor(data, True).measure(encoder, of_rank(9), None, CPU)
    found = Monitor(data, True).measure(encoder.to(device), of_rank(9).to(device), None, device, half)
    assert found.pop("knn") == pytest.approx(expected.pop("knn"), abs=10 if half else 5)
    assert len(found.pop("knn_interval")) == len(expected.pop("knn_interval"))  # it follows knn
    assert found.pop("effective_rank") == pytest.approx(expected.pop("effective_rank"), rel=1e-6)
    assert found == pytest.approx(expected, rel=close)
