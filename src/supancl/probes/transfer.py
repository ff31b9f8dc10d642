"""The paper's linear protocols: transfer (App. E), and linear evaluation by SGD."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supancl.errors import BadInput
from supancl.probes.answers import TransferMetric
from supancl.probes.features import Features
from supancl.probes.linear import ProbeResult, Ridges, answers, named, prepare, quality, targets_of
from supancl.probes.logistic import LbfgsMemory, solve
from supancl.reporter import track

WEIGHTS = tuple(10 ** (-6 + 11 * i / 44) for i in range(45))  # of transfer: 1e-6 to 1e5, evenly spaced logarithms
TRANSFER_TOLERANCE = 1e-3
REFINE_WITHIN = 0.5  # points below the best accuracy: only these weights of transfer are solved to the tolerance
EpochOfBatches = Callable[[int], Iterable[tuple[Tensor, Tensor]]]


@dataclass(frozen=True, kw_only=True)
class Transfer(ProbeResult):
    """How the ridge was chosen: `validation` holds an accuracy for each of `weights`, rougher if far below the best."""

    metric: str
    weight: float
    weights: tuple[float, ...]
    validation: tuple[float, ...]
    images: tuple[int, int, int]
    residual: float
    iterations: int
    cut_off: bool


@dataclass(frozen=True, kw_only=True)
class SgdProbe(ProbeResult):
    """The mean training loss of every epoch, and the settings."""

    losses: tuple[float, ...]
    epochs: int
    batch_size: int
    lr: float


def transfer(
    train: Features,
    validation: Features,
    test: Features,
    metric: TransferMetric = "top-1",
    weights: tuple[float, ...] = WEIGHTS,
    tolerance: float = TRANSFER_TOLERANCE,
    device: torch.device | str = "cpu",
    classes: int | None = None,
) -> Transfer:
    """Choose a ridge on validation, refit on train and validation, test once.

    Minimises the summed cross-entropy + weight * ||parameters||^2, bias included, on raw features. Each weight is
    solved roughly, then those within half a point of the best validation accuracy to `tolerance` (the gradient relative
    to the ridge's gradient). The best of them is used; ties go to the smallest weight, as in an ascending loop that
    keeps the first best. The problem is convex, so a descending path finds the same optima. Images with several labels,
    of `classes` classes, have a regression per class and are judged by mean average precision.
    """
    (train, numbered, validation), classes, names = prepare(train, (test, validation), classes)
    both, count = train.and_also(validation), len(train)
    ridges = Ridges(both.values, targets_of(both, classes), device, metric, scales=False)
    held_out = torch.arange(len(both)) >= count
    ridges.compare(weights, held_out)
    rough, memory = ridges.scores(), LbfgsMemory(20)
    candidates = [
        weight for weight in sorted(rough, reverse=True) if rough[weight] >= max(rough.values()) - REFINE_WITHIN
    ]
    problem, rows = ridges.problem(ridges.single, ~held_out.to(ridges.single.device)), ridges.single[count:]
    for weight in track(candidates, "comparing the best ridges"):
        memory.move(weight)
        ridges.add(solve(problem, weight, ridges.starts[weight], memory=memory, tolerance=tolerance), rows)
    scores = ridges.scores()
    best = min(candidates, key=lambda weight: (-scores[weight], weight))
    fitted, tested = ridges.fit(best, tolerance), targets_of(numbered, classes).cpu()
    said = answers(fitted.logits(numbered.values.to(device)), tested)
    return Transfer(
        accuracy=quality(said, tested, metric),
        metric=metric,
        weight=best,
        weights=tuple(scores),
        validation=tuple(scores.values()),
        classes=classes,
        images=(count, len(validation), len(numbered)),
        residual=fitted.residual,
        iterations=ridges.iterations,
        cut_off=fitted.cut_off,
        **named(said, test, tested, names),
    )


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
    classes: int = 0,
    epochs: int = 100,
    batch_size: int = 256,
    lr: float = 30.0,
    milestones: Sequence[int] = (60, 80),
    momentum: float = 0.9,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> SgdProbe:
    """The paper's linear evaluation: SGD at lr * batch_size / 256, a tenth of it from epoch 60 and again from 80.

    `train` is cached features, or a function from the epoch to batches of (features, labels 0, 1, ...), for views that
    are augmented in every epoch; that needs `classes`. There is no weight decay. The test features are used only once,
    after the last epoch.
    """
    test, names = test.labelled(), torch.arange(classes)
    if isinstance(train, Features):
        (train, _), classes, names = prepare(train, (test,), None)
        train = shuffle_epochs(Features(*(part.to(device) for part in train)), batch_size, seed)
    layer = nn.Linear(test.values.shape[1], classes, device=device)
    with torch.no_grad():  # MoCo's initialisation
        weight = torch.randn(layer.weight.shape, generator=torch.Generator().manual_seed(seed))
        layer.weight.copy_(0.01 * weight)
        layer.bias.zero_()
    optimizer = torch.optim.SGD(layer.parameters(), lr=lr * batch_size / 256, momentum=momentum)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, list(milestones), gamma=0.1)
    losses = []
    for epoch in track(range(epochs), "epochs of the linear classifier"):
        total, count = torch.zeros((), device=device), 0
        for values, labels in train(epoch):
            loss = F.cross_entropy(layer(values.to(device, torch.float32)), labels.to(device))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(labels)
            count += len(labels)
        losses.append(float(total) / max(count, 1))
        if not count or not math.isfinite(losses[-1]):
            raise BadInput(f"epoch {epoch} of the probe has no images, or a loss that is not finite: lower lr?")
        schedule.step()
    with torch.no_grad():
        chunks = test.values.split(8192)
        said = torch.cat([layer(chunk.to(device, torch.float32)).argmax(1).cpu() for chunk in chunks])
    found = named(said, test, said, names)
    return SgdProbe(
        accuracy=quality(found["answers"], found["targets"]),
        losses=tuple(losses),
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        classes=classes,
        **found,
    )


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
