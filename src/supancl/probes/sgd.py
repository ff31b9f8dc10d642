"""The paper's linear evaluation: a linear classifier on frozen features, trained by SGD."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supancl.config import to_json
from supancl.errors import BadInput
from supancl.probes.features import Features, check_finite, check_splits
from supancl.reporter import track

EpochOfBatches = Callable[[int], Iterable[tuple[Tensor, Tensor]]]


@dataclass(frozen=True)
class SgdProbe:
    """Accuracy in percent after the last epoch, and the mean training loss of every epoch."""

    accuracy: float
    losses: tuple[float, ...]
    epochs: int
    batch_size: int
    lr: float
    classes: int
    is_correct: Tensor | None = field(default=None, compare=False, repr=False)  # of each labelled test image

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in to_json(self).items() if key != "is_correct"}


def shuffle_epochs(train: Features, batch_size: int = 256, seed: int = 0) -> EpochOfBatches:
    """Batches of cached features for each epoch, shuffled by seed and epoch; the last batch may be smaller."""

    def epoch_of(epoch: int) -> Iterable[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(train.labels), generator=torch.Generator().manual_seed(1_000_003 * seed + epoch))
        # moved once: copying each batch's rows would let the host wait for the GPU in every step
        for rows in order.to(train.values.device).split(batch_size):
            yield train.values[rows], train.labels[rows]

    return epoch_of


def sgd_probe(
    train: Features | EpochOfBatches,
    test: Features,
    classes: int | None = None,
    epochs: int = 100,
    batch_size: int = 256,
    lr: float = 30.0,
    milestones: Sequence[int] = (60, 80),
    momentum: float = 0.9,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> SgdProbe:
    """The paper's linear evaluation: SGD at lr * batch_size / 256, a tenth of it from epoch 60 and again from 80.

    `train` is cached features, or a function from the epoch to batches of (features, labels), for views that are
    augmented in every epoch; that needs `classes`. There is no weight decay. The test features are used only once,
    after the last epoch.
    """
    if isinstance(train, Features):
        splits, names = check_splits(train=train, test=test)
        cached_features = Features(*(chunk.to(device) for chunk in splits["train"]))
        classes, test, batches = len(names), splits["test"], shuffle_epochs(cached_features, batch_size, seed)
    elif classes is None:
        raise BadInput("classes: give the number of classes when `train` is a function")
    else:
        check_finite("test", test.values)
        test, batches = test.labelled(), train
    layer = nn.Linear(test.values.shape[1], classes, device=device)
    with torch.no_grad():  # MoCo's initialisation
        weight = torch.randn(layer.weight.shape, generator=torch.Generator().manual_seed(seed))
        layer.weight.copy_(0.01 * weight)
        layer.bias.zero_()
    optimizer = torch.optim.SGD(layer.parameters(), lr=lr * batch_size / 256, momentum=momentum)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, list(milestones), gamma=0.1)
    losses = []
    for epoch in track(range(epochs), "epochs of the linear classifier"):
        losses.append(_train_epoch(layer, optimizer, batches(epoch), epoch, torch.device(device)))
        schedule.step()
    with torch.no_grad():
        predictions = torch.cat(
            [layer(chunk.to(device, torch.float32)).argmax(1).cpu() for chunk in test.values.split(8192)]
        )
    is_correct = predictions == test.labels.cpu()
    accuracy = 100 * float(is_correct.double().mean())
    return SgdProbe(accuracy, tuple(losses), epochs, batch_size, lr, classes, is_correct)


def _train_epoch(
    layer: nn.Linear,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[tuple[Tensor, Tensor]],
    epoch: int,
    device: torch.device,
) -> float:
    total, count = torch.zeros((), device=device), 0
    for values, labels in batches:
        loss = F.cross_entropy(layer(values.to(device, torch.float32)), labels.to(device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total += loss.detach() * len(labels)
        count += len(labels)
    mean = float(total) / max(count, 1)
    if not count or not math.isfinite(mean):
        raise BadInput(f"epoch {epoch} of the probe has no images, or a loss that is not finite: lower lr?")
    return mean
