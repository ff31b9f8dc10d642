"""Classifiers that give an image several labels: every class has a probability, and those above a threshold are listed.

A classifier gives a logit for every class, and its sigmoid is the probability that an image has the class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.core.labels import Labels
from supancl.probes.classifiers import (
    CHUNK,
    Classifier,
    LinearClassifier,
    Ridge,
    best_temperature,
    choose_ridge_with,
    evenly_spaced,
    solve_linear,
    with_absent_classes,
)
from supancl.probes.features import Features
from supancl.probes.goals import OneVsRest
from supancl.probes.knn import neighbours, vote_weights
from supancl.probes.precision import draw_counts
from supancl.probes.several_labels import SeveralFeatures, check_widths, equalize, linear_scores
from supancl.stats import Interval, percentile_interval

THRESHOLD = 0.5  # the probability from which on a class is listed
MAX_LOGIT = 14.0  # of k-NN: a probability of a millionth, or of all but a millionth


@dataclass(frozen=True)
class SeveralKnnClassifier:
    """The part of the votes of the k nearest references that those with a class have; all references share one more.

    A neighbour has one vote for each of its classes, whatever their weights.
    """

    references: SeveralFeatures
    classes: int
    k: int
    temperature: float = 0.1
    device: torch.device | str = "cpu"

    def logits(self, values: Tensor) -> Tensor:
        alone = Features(self.references.values, self.references.labels)
        matches = neighbours(alone, values, self.k, device=self.device)
        votes = vote_weights(matches, self.k, self.temperature)
        numbers = Labels.of(self.references.pairs.to(votes.device)).classes[matches.rows[:, : self.k]]
        whole = (votes[..., None] * (numbers >= 0)).flatten(1)
        having = votes.new_zeros(len(votes), self.classes).scatter_add_(1, numbers.clamp(min=0).flatten(1), whole)
        frequency = self.references.targets(self.classes).to(votes).mean(0)
        probability = equalize((having + frequency) / (votes.sum(1, keepdim=True) + 1))
        return probability.logit().clamp(-MAX_LOGIT, MAX_LOGIT).cpu()


def fit_several_linear(
    train: SeveralFeatures, held_out: SeveralFeatures, classes: int, device: torch.device | str = "cpu"
) -> tuple[LinearClassifier, Ridge]:
    """A logistic regression per class, as in `linear_scores`, and their ridge, chosen by the rule of `choose_ridge`.

    Logits are scaled and shifted so that they give probabilities on train. A class that train lacks is never predicted.
    """
    check_widths(train)

    def probe(test: SeveralFeatures, choose: Literal["halves"] | None) -> Ridge:
        _, about = linear_scores(train, test, choose, classes, device=device)
        return Ridge(about["weight"], about["chosen_on"])

    ridge = choose_ridge_with(probe, train, held_out)
    targets = train.targets(classes)
    present = targets.any(0).nonzero()[:, 0]
    targets, values = targets[:, present].to(device), train.values.to(device)
    weight, bias = solve_linear(values, ridge, lambda rows: OneVsRest(rows, targets))
    # the ridge is chosen by ranking, so the size of the logits means nothing: a strong one leaves them all near 0
    sample = evenly_spaced(torch.arange(len(values), device=values.device))
    scale, shift = platt_scaling(torch.addmm(bias, values[sample].double(), weight.T), targets[sample])
    return with_absent_classes(scale[:, None] * weight, scale * bias + shift, present, classes), ridge


def platt_scaling(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """(classes,) each: the scale and the shift with which sigmoids of the logits are probabilities on these images.

    The targets are those of Platt (1999), (n + 1) / (n + 2) for the n images with a class and 1 / (m + 2) for the m
    others, so that the scale is finite where logits separate them.
    """
    having = targets.double().sum(0)
    smooth = torch.where(targets, (having + 1) / (having + 2), 1 / (len(targets) - having + 2))
    mean, deviation = logits.mean(0), logits.std(0, correction=0).clamp(min=1e-12)
    standard = (logits - mean) / deviation
    parameters = torch.zeros(2, logits.shape[1], dtype=logits.dtype, device=logits.device, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [parameters], max_iter=200, tolerance_grad=1e-10, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.binary_cross_entropy_with_logits(standard * parameters[0] + parameters[1], smooth)
        value.backward()
        return value

    optimizer.step(loss)
    scale = parameters[0].detach().clamp(min=0) / deviation
    return scale, parameters[1].detach() - scale * mean


def fit_several_temperature(logits: Tensor, targets: Tensor) -> float:
    """The temperature with the lowest binary cross-entropy on these images, as `fit_temperature`."""
    logits, signs = logits.double(), 2 * targets.double() - 1
    return best_temperature(lambda t: F.logsigmoid(signs * logits / t).sum())


class RankedClasses(NamedTuple):
    """(images, L): the most probable classes of each image, the surest first, and their probabilities."""

    numbers: Tensor
    probabilities: Tensor

    @property
    def is_listed(self) -> Tensor:
        """Which of the classes are an image's labels: those from the threshold on, and always the first."""
        listed = self.probabilities >= THRESHOLD
        listed[:, 0] = True
        return listed

    @property
    def labels(self) -> Tensor:
        """(images, L): the listed classes, and -1 in place of the others."""
        return torch.where(self.is_listed, self.numbers, -1)

    @property
    def confidence(self) -> Tensor:
        """The probability of the least sure class that is listed."""
        return torch.where(self.is_listed, self.probabilities, 1.0).amin(1)


def rank_classes(classifier: Classifier, values: Tensor, classes: int, most: int, temperature: float) -> RankedClasses:
    """The `most` classes of the highest probabilities of each image, or all classes if there are fewer."""
    count = min(most, classes)
    chunks = [
        (classifier.logits(chunk) / temperature).sigmoid().topk(count, dim=1)
        for chunk in values.split(CHUNK)
        if len(chunk)
    ]
    if not chunks:
        return RankedClasses(torch.empty(0, count, dtype=torch.long), torch.empty(0, count))
    return RankedClasses(torch.cat([chunk.indices for chunk in chunks]), torch.cat([chunk.values for chunk in chunks]))


def mean_f1(ranked: RankedClasses, targets: Tensor) -> Interval:
    """The mean over images in percent of the F1 of their listed classes: 2 x right / (listed + true)."""
    listed = ranked.is_listed
    right = (targets.gather(1, ranked.numbers) & listed).sum(1).double()
    values = 2 * right / (listed.sum(1) + targets.sum(1))
    draws = torch.cat([counts.T.double() @ values / len(values) for counts in draw_counts(len(values))])
    return percentile_interval(100 * float(values.mean()), 100 * draws.numpy())
