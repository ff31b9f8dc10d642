"""A linear classifier on frozen features: a fast convex probe, and the paper's SGD probe."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supancl.errors import BadInput
from supancl.evaluate.checks import check_finite, check_splits
from supancl.evaluate.features import Features
from supancl.evaluate.logistic import Problem, answers, onto_axes, path, predicted, principal_axes, solve

PROBE_WEIGHTS = tuple(10.0**power for power in range(-3, 6))
EpochOfBatches = Callable[[int], Iterable[tuple[Tensor, Tensor]]]


def linear_accuracy(fit: Features, test: Features, regularization: float = 1.0) -> float:
    """Accuracy in percent of multinomial logistic regression on standardised features.

    `regularization` is scikit-learn's C; it is a setting like any other and must not be chosen on `test`.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    fit, test = fit.labelled(), test.labelled()
    if len(np.unique(fit.labels.numpy())) < 2 or not len(test.labels):
        return float("nan")
    model = make_pipeline(StandardScaler(), LogisticRegression(C=regularization, max_iter=2000))
    model.fit(fit.values.double().numpy(), fit.labels.numpy())
    return 100 * float(model.score(test.values.double().numpy(), test.labels.numpy()))


@dataclass(frozen=True)
class LinearProbe:
    """Accuracy in percent on the test features, the ridge's weight and how it did on the part held out of training."""

    accuracy: float
    weight: float
    weights: tuple[float, ...]
    held_out: tuple[float, ...]  # accuracy by weight on the held-out part of the training features
    classes: int
    images: tuple[int, int, int]  # fitted while choosing, held out, test
    residual: float = 0.0  # of the tested classifier, as is the next: see `logistic.Solution`
    cut_off: bool = False

    def to_json(self) -> dict[str, Any]:
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


def hold_out(labels: Tensor, share: float = 0.1, seed: int = 0) -> Tensor:
    """True for a stratified random part of the images: `share` of each class, at least one and never all."""
    if not 0 < share < 1:
        raise BadInput(f"share = {share:g}: must lie between 0 and 1")
    names, row, sizes = torch.unique(labels, return_inverse=True, return_counts=True)
    if int(sizes.min()) < 2:
        raise BadInput(f"class {int(names[sizes.argmin()])} has 1 image; holding out a part of each class needs 2")
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    order = order[torch.argsort(row[order], stable=True)]
    rank = torch.empty_like(row)
    rank[order] = torch.arange(len(row)) - (sizes.cumsum(0) - sizes)[row[order]]
    count: Tensor = (share * sizes).round().long().clamp(min=1).minimum(sizes - 1)
    return rank < count[row]


def linear_probe(
    train: Features, test: Features, weights: Sequence[float] = PROBE_WEIGHTS, share: float = 0.1, seed: int = 0,
    tolerance: float = 0.05, device: torch.device | str = "cpu",
) -> LinearProbe:
    """Multinomial logistic regression by L-BFGS on standardised features.

    The ridge's weight is chosen on a stratified `share` held out of the training features (ties: the stronger), the
    classifier refitted on all of them, and the test features are looked at once. The objective is the one of
    `supancl.evaluate.logistic`, summed over images, the bias in the ridge.
    """
    splits, classes = check_splits(train=train, test=test)
    labels = splits["train"].labels.to(device)
    values = splits["train"].values.to(device, torch.float32)
    mean = values.mean(0)
    scale = values.std(0, correction=0)
    scale = torch.where(scale > 1e-6 * scale.max(), scale, torch.ones_like(scale))  # a dead unit stays dead
    values = (values - mean) / scale
    held = hold_out(splits["train"].labels.cpu(), share, seed).to(device)
    axes = principal_axes(values, torch.float32)
    rows = onto_axes(values, axes)
    del values
    scores, best = {}, None
    for solution in path(Problem(rows[~held], labels[~held], len(classes)), list(weights), tolerance):
        score = 100 * float((predicted(solution.parameters, rows[held]) == labels[held]).double().mean())
        scores[solution.weight] = score
        if best is None or score > best[0]:
            best = score, solution
    if best is None:
        raise BadInput("weights: at least one is needed")
    final = solve(Problem(rows, labels, len(classes)), best[1].weight, best[1].parameters, tolerance=tolerance)
    asked = (splits["test"].values.to(device, torch.float32) - mean) / scale
    right = (answers(final.parameters, axes, asked) == splits["test"].labels.to(device)).double().mean()
    return LinearProbe(100 * float(right), best[1].weight, tuple(sorted(scores)),
                       tuple(scores[weight] for weight in sorted(scores)), len(classes),
                       (int((~held).sum()), int(held.sum()), len(asked)), final.residual, final.cut_off)


@dataclass(frozen=True)
class SgdProbe:
    """Accuracy in percent after the last epoch, and the mean training loss of every epoch."""

    accuracy: float
    losses: tuple[float, ...]
    epochs: int
    batch_size: int
    lr: float
    classes: int

    def to_json(self) -> dict[str, Any]:
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


def shuffled(train: Features, batch_size: int = 256, seed: int = 0) -> EpochOfBatches:
    """Epochs of cached features, their order a function of seed and epoch; the last, smaller batch is kept."""

    def epoch_of(epoch: int) -> Iterable[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(train.labels), generator=torch.Generator().manual_seed(1_000_003 * seed + epoch))
        for rows in order.split(batch_size):
            rows = rows.to(train.values.device)
            yield train.values[rows], train.labels[rows]

    return epoch_of


def sgd_probe(
    train: Features | EpochOfBatches, test: Features, classes: int | None = None, epochs: int = 100,
    batch_size: int = 256, lr: float = 30.0, milestones: Sequence[int] = (60, 80), momentum: float = 0.9,
    seed: int = 0, device: torch.device | str = "cpu",
) -> SgdProbe:
    """The paper's linear evaluation: SGD at lr * batch_size / 256, a tenth of it from epoch 60 and again from 80.

    `train` is cached features, or a function from the epoch to its batches of (features, labels): augmented views,
    encoded anew each epoch, come in that way, with `classes` given. No weight decay; the last epoch is reported, and
    the test features are looked at then alone.
    """
    if isinstance(train, Features):
        splits, names = check_splits(train=train, test=test)
        cached = Features(*(part.to(device) for part in splits["train"]))
        classes, test, batches = len(names), splits["test"], shuffled(cached, batch_size, seed)
    elif classes is None:
        raise BadInput("classes: the number of classes is needed when epochs of features come from a function")
    else:
        check_finite("test", test.values)
        test, batches = test.labelled(), train
    layer = nn.Linear(test.values.shape[1], classes, device=device)
    with torch.no_grad():  # as MoCo initialises it
        weight = torch.randn(layer.weight.shape, generator=torch.Generator().manual_seed(seed))
        layer.weight.copy_(0.01 * weight)
        layer.bias.zero_()
    optimizer = torch.optim.SGD(layer.parameters(), lr=lr * batch_size / 256, momentum=momentum)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, list(milestones), gamma=0.1)
    losses = []
    for epoch in range(epochs):
        losses.append(_epoch(layer, optimizer, batches(epoch), epoch, torch.device(device)))
        schedule.step()
    with torch.no_grad():
        answers = torch.cat([layer(part.to(device, torch.float32)).argmax(1).cpu() for part in test.values.split(8192)])
    accuracy = 100 * float((answers == test.labels.cpu()).double().mean())
    return SgdProbe(accuracy, tuple(losses), epochs, batch_size, lr, classes)


def _epoch(layer: nn.Linear, optimizer: torch.optim.Optimizer, batches: Iterable[tuple[Tensor, Tensor]], epoch: int,
           device: torch.device) -> float:
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
        raise BadInput(f"the probe's epoch {epoch} " + ("has no images" if not count else
                       "has a loss that is not finite: check the features for NaN, or lower lr"))
    return mean
