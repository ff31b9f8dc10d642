"""Classifiers that label new images from their features, and what their confidence means.

A classifier gives logits. `fit_temperature` scales them on images whose labels are known, so that the probability of
the predicted class is about the fraction of predictions that are right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.errors import BadInput
from supancl.probes.features import Features, Labelled, check_splits
from supancl.probes.knn import count_votes, neighbours
from supancl.probes.linear import CHOOSING_TOLERANCE, LIVE_RIDGE, Standardized, linear_probe
from supancl.probes.logistic import Problem, solve
from supancl.probes.newton import polish
from supancl.reporter import track_task

USUAL_DEVIATION = 2.0  # of the logits of an image, before their temperature is fitted
CHUNK = 8192  # images whose logits are in memory at a time
TEMPERATURES = 2.0 ** torch.linspace(-5, 5, 161)
UNLIKE_QUANTILE = 0.01  # of the images that set the threshold, this fraction is below it
MIN_TO_CHOOSE = 100  # images that choose a ridge
MIN_HELD_OUT = 20  # fewer do not show how similar new images are
ABSENT_LOGIT = -1e4  # of a class without a reference
MOST_COMPARED = 4096  # images that set the threshold


L = TypeVar("L", bound=Labelled)


class Classifier(Protocol):
    """Features -> logits, one per class."""

    def logits(self, values: Tensor) -> Tensor: ...


class Predicted(NamedTuple):
    """The class and the confidence of each image."""

    labels: Tensor
    confidence: Tensor


@dataclass(frozen=True)
class KnnClassifier:
    """The k nearest references vote; one more vote is shared by all classes, so that no class has probability 0."""

    references: Features  # labels 0, 1, ... below `classes`
    classes: int
    k: int
    temperature: float = 0.1
    device: torch.device | str = "cpu"

    def logits(self, values: Tensor) -> Tensor:
        matches = neighbours(self.references, values, self.k, device=self.device)
        votes = count_votes(matches, self.references.labels, self.k, self.temperature, self.classes).cpu()
        return ((votes + 1 / self.classes) / (votes.sum(1, keepdim=True) + 1)).log()


@dataclass(frozen=True)
class LinearClassifier:
    """A linear layer on features as the encoder gives them."""

    weight: Tensor  # (classes, width)
    bias: Tensor  # (classes,)

    def logits(self, values: Tensor) -> Tensor:
        return torch.addmm(self.bias, values.to(self.weight), self.weight.T)


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


class Ridge(NamedTuple):
    """The ridge weight of a linear classifier, and the images that it was chosen on, in words."""

    weight: float
    chosen_on: str


def choose_ridge(train: Features, held_out: Features, device: torch.device | str = "cpu") -> Ridge:
    """Chosen on held-out images, or on 10% of train; in proportion to the number of images where both are few.

    Choosing on 12 images is worse than not choosing: of eight draws of 108 labelled photographs, 46.2% of the other
    labels were predicted correctly with a ridge chosen on 12 held-out ones, and 48.4% with the usual one.
    """
    train = train.labelled()

    def probe(test: Features, choose: Literal["halves"] | None) -> Ridge:
        probed = linear_probe(train, test, choose, device=device)
        return Ridge(probed.weight, probed.chosen_on)

    return choose_ridge_with(probe, train, held_out.labelled())


def choose_ridge_with(probe: Callable[[L, Literal["halves"] | None], Ridge], train: L, held_out: L) -> Ridge:
    """The rule of `choose_ridge` for any classifier; `probe` chooses on the images it gets, all of them labelled."""
    if len(held_out.labels) >= MIN_TO_CHOOSE:
        return probe(held_out, "halves")
    if len(train.labels) // 10 >= MIN_TO_CHOOSE:
        return probe(train, None)
    return Ridge(LIVE_RIDGE * len(train.labels), "none")


def fit_linear_classifier(
    train: Features, held_out: Features, classes: int, device: torch.device | str = "cpu"
) -> tuple[LinearClassifier, Ridge]:
    """The classifier of `linear_probe`, fitted on train, with the ridge of `choose_ridge`.

    Its logits are scaled to a usual size. A class of 0, 1, ... that train lacks is never predicted.
    """
    ridge = choose_ridge(train, held_out, device)
    splits, present = check_splits(train=train)
    values, labels = splits["train"].values.to(device), splits["train"].labels.to(device)
    weight, bias = solve_linear(values, ridge, lambda rows: Problem(rows, labels, len(present)))
    # the ridge is chosen by accuracy, so the size of the logits means nothing: a strong one leaves them all near 0
    deviation = float(torch.addmm(bias, values.double(), weight.T).std(1).mean())
    weight, bias = (value * USUAL_DEVIATION / max(deviation, 1e-12) for value in (weight, bias))
    return with_absent_classes(weight, bias, present, classes), ridge


def solve_linear(values: Tensor, ridge: Ridge, make_problem: Callable[[Tensor], Problem]) -> tuple[Tensor, Tensor]:
    """Weight and bias on features as they are, in double precision; the problem is made of standardised ones."""
    space = Standardized(values)
    rough = make_problem(space.rows(values, torch.float32))
    exact = make_problem(space.rows(values, torch.float64))
    with track_task("fitting the linear classifier"):
        start = solve(rough, ridge.weight, tolerance=CHOOSING_TOLERANCE).parameters
        turned = polish(exact, rough, ridge.weight, start).parameters @ space.axes.to(torch.float64).T
    weight = turned[:, :-1] / space.scale
    return weight, turned[:, -1] - weight @ space.mean


def with_absent_classes(weight: Tensor, bias: Tensor, present: Tensor, classes: int) -> LinearClassifier:
    """The classifier of the classes 0, 1, ... of which only those of `present` are ever predicted."""
    whole = LinearClassifier(torch.zeros(classes, weight.shape[1]), torch.full((classes,), ABSENT_LOGIT))
    whole.weight[present], whole.bias[present] = weight.float().cpu(), bias.float().cpu()
    return whole


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature with the lowest cross-entropy on these images.

    It starts from 1 and needs evidence to move: halving or doubling it costs half a nat. So a few images change it
    little, and none leaves it at 1. Images labelled -1 do not count.
    """
    logits, labels = logits[labels >= 0].double(), labels[labels >= 0]
    return best_temperature(lambda t: (logits / t).log_softmax(1).gather(1, labels[:, None]).sum())


def best_temperature(log_likelihood: Callable[[Tensor], Tensor]) -> float:
    """The likeliest temperature; halving or doubling it costs half a nat."""
    cost = 0.5 * TEMPERATURES.log2().square() - torch.stack([log_likelihood(t) for t in TEMPERATURES])
    return float(TEMPERATURES[int(cost.argmin())])


def classify(classifier: Classifier, values: Tensor, temperature: float = 1.0) -> Predicted:
    """The most probable class of each image and its probability."""
    chunks = [(classifier.logits(chunk) / temperature).softmax(1).max(1) for chunk in values.split(CHUNK) if len(chunk)]
    if not chunks:
        return Predicted(torch.empty(0, dtype=torch.long), torch.empty(0))
    return Predicted(torch.cat([chunk.indices for chunk in chunks]), torch.cat([chunk.values for chunk in chunks]))


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
    if len(references.values) < 2:
        raise BadInput("one labelled image: comparing images needs at least two; label more")
    rows = evenly_spaced(torch.arange(len(references.values)))
    # two neighbours: the nearest one is the image itself
    similarity = neighbours(references, references.values[rows], 2, device=device).similarity[:, 1].cpu()
    return float(similarity.double().quantile(UNLIKE_QUANTILE)), "references"


def evenly_spaced(values: Tensor) -> Tensor:
    """At most MOST_COMPARED rows, evenly spaced."""
    if len(values) <= MOST_COMPARED:
        return values
    return values[torch.linspace(0, len(values) - 1, MOST_COMPARED).round().long()]
