"""Linear evaluation by SGD, as in the paper; and by scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supancl.errors import BadInput
from supancl.probes.answers import measure
from supancl.probes.features import Features
from supancl.probes.linear import ProbeResult, prepare
from supancl.reporter import track

EpochOfBatches = Callable[[int], Iterable[tuple[Tensor, Tensor]]]


@dataclass(frozen=True, kw_only=True)
class SgdProbe(ProbeResult):
    """The mean training loss of every epoch."""

    losses: tuple[float, ...]


def shuffle_epochs(train: Features, batch_size: int = 256, seed: int = 0) -> EpochOfBatches:
    """Batches of cached features for each epoch, shuffled by seed and epoch; the last batch may be smaller."""

    def epoch_of(epoch: int) -> Iterable[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(train.labels), generator=torch.Generator().manual_seed(1_000_003 * seed + epoch))
        # moved once: copying each batch's rows would let the host wait for the GPU in every step
        for rows in order.to(train.values.device).split(batch_size):
            yield train.values[rows], train.labels[rows]

    return epoch_of


def linear_layer(width: int, classes: int, seed: int) -> nn.Linear:
    """With MoCo's initial weights."""
    layer = nn.Linear(width, classes)
    with torch.no_grad():
        weight = torch.randn(layer.weight.shape, generator=torch.Generator().manual_seed(seed))
        layer.weight.copy_(0.01 * weight)
        layer.bias.zero_()
    return layer


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
    references = names
    if isinstance(train, Features):
        references = train.labelled().labels
        (train, _), classes, names = prepare(train, (test,), None)
        train = shuffle_epochs(Features(*(part.to(device) for part in train)), batch_size, seed)
    layer = linear_layer(test.values.shape[1], classes, seed).to(device)
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
    return SgdProbe(measured=measure(names.cpu()[said], test, references), classes=classes, losses=tuple(losses))


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
