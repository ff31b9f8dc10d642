"""Classifiers that label new images from their features, and what their confidence means.

A classifier gives a logit for every class. Of one label per image the probabilities are their softmax, of several the
sigmoid of each, and classes of a probability of one half or more are listed. `Calibration` scales logits on images
whose labels are known, so that a probability is about the fraction of predictions that are right.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.errors import BadInput
from supancl.probes.answers import draw_counts
from supancl.probes.features import Features
from supancl.probes.knn import MOST_VOTES, count_votes, equalize, neighbours, vote_weights
from supancl.probes.linear import LinearClassifier, Ridges, draw_choosing, prepare, targets_of
from supancl.reporter import track_task
from supancl.stats import Interval, percentile_interval

USUAL_DEVIATION = 2.0  # of the logits of an image, before their temperature is fitted
TEMPERATURES = 2.0 ** torch.linspace(-5, 5, 161)
UNLIKE_QUANTILE = 0.01  # of the images that set the threshold, this fraction is below it
MIN_HELD_OUT = 20  # fewer do not show how similar new images are
ABSENT_LOGIT = -1e4  # of a class without a reference
MOST_COMPARED = 4096  # images that set the threshold
THRESHOLD = 0.5  # the probability from which on one of several classes is listed
MAX_LOGIT = 14.0  # of k-NN with several labels: a probability of a millionth, or of all but a millionth


class Classifier(Protocol):
    """Features -> logits, one per class."""

    def logits(self, values: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class KnnClassifier:
    """The k nearest references vote.

    One more vote is shared by all classes, so that no class has probability 0. Of several labels a class has the part
    of the votes of neighbours with it, whatever their weights, and the references share one more vote.
    """

    references: Features  # labels 0, 1, ... below `classes`
    classes: int
    k: int
    temperature: float = 0.1
    device: torch.device | str = "cpu"

    def logits(self, values: Tensor) -> Tensor:
        references, pairs = self.references, self.references.pairs
        matches = neighbours(references, values, self.k, device=self.device)
        if pairs is None:
            votes = count_votes(matches, references.labels, self.k, self.temperature, self.classes).cpu()
            return votes.add_(1 / self.classes).div_(votes.sum(1, keepdim=True)).log_()
        weights = vote_weights(matches, self.k, self.temperature)
        numbers = pairs.to(weights.device)[matches.rows[:, : self.k], :, 0].long()
        whole = (weights[..., None] * (numbers >= 0)).flatten(1)
        having = weights.new_zeros(len(weights), self.classes).scatter_add_(1, numbers.clamp(min=0).flatten(1), whole)
        frequency = references.targets(self.classes).to(weights).mean(0)
        probability = equalize((having + frequency) / (weights.sum(1, keepdim=True) + 1))
        return probability.logit().clamp(-MAX_LOGIT, MAX_LOGIT).cpu()


@dataclass(frozen=True)
class MeansClassifier:
    """The class whose mean feature is nearest, by cosine: large and small classes count alike."""

    directions: Tensor  # (classes, width): mean unit features, with unit norm; zeros for a class without a reference
    scale: float  # of the cosines, to make logits of a usual size

    def logits(self, values: Tensor) -> Tensor:
        cosines = F.normalize(values.to(self.directions), dim=1) @ self.directions.T
        return torch.where(self.directions.any(1), self.scale * cosines, ABSENT_LOGIT)


def fit_means(train: Features, classes: int) -> MeansClassifier:
    """The classifier of the class means of train; a class of 0, 1, ... that train lacks is never predicted."""
    values, labels = train.labelled()
    units = F.normalize(values.float(), dim=1)
    sums = units.new_zeros(classes, units.shape[1]).index_add_(0, labels, units)
    directions = F.normalize(sums, dim=1)
    present = directions[directions.any(1)]
    deviation = float((units @ present.T).std(1).mean()) if len(present) > 1 else 1.0
    return MeansClassifier(directions, USUAL_DEVIATION / max(deviation, 1e-12))


def fit_linear_classifier(
    train: Features, held_out: Features, classes: int, device: torch.device | str = "cpu"
) -> tuple[LinearClassifier, dict[str, Any]]:
    """The classifier of `linear_probe`, fitted on train; its ridge is chosen on held-out images, or on 10% of train.

    Its logits are scaled to a usual size, or of several labels so that their sigmoids are probabilities on train. A
    class of 0, 1, ... that train lacks is never predicted. Also returned is how the ridge was chosen.
    """
    train, held_out = train.labelled(), held_out.labelled()
    (fitted, *others), count, present = prepare(train, [held_out] if len(held_out) else [], classes)
    targets = [targets_of(part, count) for part in (fitted, *others)]
    if train.pairs is not None:
        present = targets[0].any(0).nonzero()[:, 0]
        targets = [part[:, present.to(part.device)] for part in targets]
    ridges, present = Ridges(fitted.values, targets[0], device), present.cpu()
    if others:
        ridges.compare(None, None, (others[0].values, targets[1]))
    else:
        ridges.compare(None, draw_choosing(fitted.labels.cpu()))
    chosen_on = ("held-out" if others else "10% of training") if ridges.said else "none"
    weight = ridges.best()
    with track_task("fitting the linear classifier"):
        layer = ridges.fit(weight)
    # the ridge is chosen by accuracy or ranking: the size of logits means nothing, and a strong one leaves them near 0
    if train.pairs is None:
        deviation = float(layer.logits(ridges.values).std(1).mean())
        scale = torch.full_like(layer.bias, USUAL_DEVIATION / max(deviation, 1e-12))
        shift = torch.zeros_like(layer.bias)
    else:
        sample = evenly_spaced(torch.arange(len(fitted), device=ridges.values.device))
        scale, shift = platt_scaling(layer.logits(ridges.values[sample]), ridges.targets[sample])
    whole = LinearClassifier(torch.zeros(classes, layer.weight.shape[1]), torch.full((classes,), ABSENT_LOGIT))
    whole.weight[present] = (scale[:, None] * layer.weight).float().cpu()
    whole.bias[present] = (scale * layer.bias + shift).float().cpu()
    return whole, {"ridge": weight, "ridge_chosen_on": chosen_on}


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


# --- labels and their probabilities -----------------------------------------------------------------------------------


class RankedClasses(NamedTuple):
    """(images, L): the most probable classes of each image, the surest first, and their probabilities.

    Listed are those from the threshold on, and always the first.
    """

    numbers: Tensor
    probabilities: Tensor

    @property
    def is_listed(self) -> Tensor:
        listed = self.probabilities >= THRESHOLD
        listed[:, :1] = True
        return listed

    @property
    def labels(self) -> Tensor:
        """(images, L): the listed classes, and -1 in place of the others."""
        return torch.where(self.is_listed, self.numbers, -1)

    @property
    def confidence(self) -> Tensor:
        """The probability of the least sure class that is listed."""
        return torch.where(self.is_listed, self.probabilities, 1.0).amin(1)


def logits_in_chunks(classifier: Classifier, values: Tensor, classes: int) -> Iterator[Tensor]:
    """The logits of some images at a time: those of all may need far more memory than the features."""
    for chunk in values.split(max(1, MOST_VOTES // max(classes, 1))):
        if len(chunk):
            yield classifier.logits(chunk)


def rank_classes(
    classifier: Classifier, values: Tensor, classes: int, several: int = 0, temperature: float = 1.0
) -> RankedClasses:
    """The most probable class of each image, or if images have several labels the `several` most probable ones."""
    count = min(several or 1, classes)
    numbers, probabilities = [torch.empty(0, count, dtype=torch.long)], [torch.empty(0, count)]
    for logits in logits_in_chunks(classifier, values, classes):
        scaled = logits / temperature
        best = (scaled.sigmoid() if several else scaled.softmax(1)).topk(count, dim=1)
        numbers.append(best.indices)
        probabilities.append(best.values)
    return RankedClasses(torch.cat(numbers), torch.cat(probabilities))


class Calibration:
    """The temperature with the lowest cross-entropy on the images that were added.

    It starts from 1 and needs evidence to move: halving or doubling it costs half a nat. So a few images change it
    little, and none leaves it at 1. Images labelled -1 do not count; targets (images, classes) are several labels.
    """

    def __init__(self, logits: Tensor | None = None, targets: Tensor | None = None) -> None:
        self.cost = 0.5 * TEMPERATURES.log2().square().double()
        self.confidence = torch.zeros_like(self.cost)  # of the most probable class, summed over images
        self.right: list[Tensor] = []  # whether the most probable class is an image's own
        if logits is not None and targets is not None:
            self.add(logits, targets)

    def add(self, logits: Tensor, targets: Tensor) -> None:
        """Count some images."""
        logits, several = logits.double(), targets.ndim == 2
        has_label = targets.any(1) if several else targets >= 0
        best = logits.argmax(1, keepdim=True)
        self.right.append((targets.gather(1, best)[:, 0] if several else best[:, 0] == targets).cpu())
        for number, temperature in enumerate(TEMPERATURES.tolist()):
            if several:
                self.cost[number] -= F.logsigmoid((2 * targets.double() - 1) * logits / temperature).sum()
                continue
            likelihood = (logits / temperature).log_softmax(1)
            self.confidence[number] += likelihood.amax(1).exp().sum()
            self.cost[number] -= likelihood[has_label].gather(1, targets[has_label, None]).sum()

    @property
    def temperature(self) -> float:
        return float(TEMPERATURES[int(self.cost.argmin())])

    @property
    def mean_confidence(self) -> float:
        """The mean probability of the predicted class at the temperature, in percent; of one label per image."""
        return 100 * float(self.confidence[int(self.cost.argmin())]) / max(sum(map(len, self.right)), 1)


def mean_f1(ranked: RankedClasses, targets: Tensor) -> Interval:
    """The mean over images in percent of the F1 of their listed classes: 2 x right / (listed + true)."""
    listed = ranked.is_listed
    right = (targets.gather(1, ranked.numbers) & listed).sum(1).double()
    values = 2 * right / (listed.sum(1) + targets.sum(1))
    draws = torch.cat([counts.T.double() @ values / len(values) for counts in draw_counts(len(values))])
    return percentile_interval(100 * float(values.mean()), 100 * draws.numpy())


# --- images unlike the references -------------------------------------------------------------------------------------


def nearest_similarity(references: Features, values: Tensor, device: torch.device | str = "cpu") -> Tensor:
    """The cosine of each image to its most similar reference."""
    return neighbours(references, values, 1, device=device).similarity[:, 0].cpu()


def unlike_threshold(references: Features, held_out: Tensor, device: torch.device | str = "cpu") -> tuple[float, str]:
    """The similarity to the nearest reference below which an image is unlike them, and which images set it.

    It is the 1st percentile over held-out images, which the encoder has not seen either. With fewer than 20 of them it
    is that of each reference to its nearest other one, which is higher if training has pulled them together.
    """
    if len(held_out) >= MIN_HELD_OUT:
        similarity = nearest_similarity(references, evenly_spaced(held_out), device)
        return float(similarity.double().quantile(UNLIKE_QUANTILE)), "held-out"
    if len(references) < 2:
        raise BadInput("one labelled image: comparing images needs at least two; label more")
    rows = evenly_spaced(torch.arange(len(references)))
    # two neighbours: the nearest one is the image itself
    similarity = neighbours(references, references.values[rows], 2, device=device).similarity[:, 1].cpu()
    return float(similarity.double().quantile(UNLIKE_QUANTILE)), "references"


def evenly_spaced(values: Tensor) -> Tensor:
    """At most MOST_COMPARED rows, evenly spaced."""
    if len(values) <= MOST_COMPARED:
        return values
    return values[torch.linspace(0, len(values) - 1, MOST_COMPARED).round().long()]
