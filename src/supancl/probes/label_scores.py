"""How well each given label fits the features of its image: k-NN, class means and a linear classifier, all out of fold.

An image never votes on itself: neighbours and class means leave it out, and the linear classifier that judges it was
fitted on the other folds. The label of an image therefore cannot support itself, except through an encoder that was
trained on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.errors import BadInput
from supancl.probes.classifiers import USUAL_DEVIATION
from supancl.probes.features import Features, check_features, stratified_folds
from supancl.probes.knn import Neighbours, count_votes, default_k, neighbours
from supancl.probes.linear import Standardized
from supancl.probes.logistic import Problem, solve, solve_path
from supancl.reporter import track, track_task
from supancl.stats import Interval, wilson_interval

FOLDS = 5
KNN_TEMPERATURE = 0.1
RIDGES = (2.5e-4, 2.5e-3, 2.5e-2, 2.5e-1)  # per training image, on standardised features
MIN_CHOOSING = 2000  # images that choose the ridge, if there are as many
CHUNK = 8192

# The rule of `combine_evidence`, chosen by experiments/audit (commit 7377e4b1): weights of the three parts, and what is
# added to a share, so that no part alone can condemn a label.
VOTE_WEIGHT, MEANS_WEIGHT, LINEAR_WEIGHT = 0.2, 0.4, 0.4
LEAST_SHARE = 0.01

# The rule of `share_of_wrong_labels`: its estimate comes from the images whose label is easiest to predict.
CONFIDENT_FRACTION = 0.1  # of the images of a fold that are predicted to be of a class
MIN_JUDGED = 250  # labels below which no share is estimated: a tenth of them would be too few to count on
MIN_PER_GROUP = 10  # images per class and fold, from which on classes are counted separately
# Of k-NN with the linear classifier where that is most certain, beyond chance: docs/audit.md. Wrong labels hardly lower
# it, features that do not separate the classes do.
MIN_AGREEMENT = 0.85


@dataclass(frozen=True)
class LabelScores:
    """How well labels fit; one entry per judged image. Images of a class with one labelled image are not judged.

    Probabilities have one column per entry of `classes`; label numbers are those of the features.
    """

    rows: Tensor  # (M,) rows of the features
    labels: Tensor  # (M,) given labels
    suggested: Tensor  # (M,) the label that fits best; the given one where no other fits better
    score: Tensor  # (M,) from 0 to 1: the evidence for the given label
    suggested_score: Tensor  # (M,) the evidence for the suggested one
    vote: Tensor  # (M,) share of the given label in the weighted vote of the nearest neighbours
    margin: Tensor  # (M,) cosine to the mean of the own class, without the image, minus that to the best other mean
    linear: Tensor  # (M,) out-of-fold probability of the given label by a linear classifier
    votes: Tensor  # (M, C) shares of the weighted vote
    probabilities: Tensor  # (M, C) of the linear classifier
    classes: Tensor  # (C,) label numbers
    fold: Tensor  # (M,) of the linear classifier
    k: int

    @property
    def is_suspect(self) -> Tensor:
        """Whether another label fits better than the given one."""
        return self.suggested != self.labels

    def order(self) -> Tensor:
        """Entries from the most suspicious to the least."""
        return self.score.argsort(stable=True)


def label_scores(
    features: Features,
    k: int | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    matches: Neighbours | None = None,
) -> LabelScores:
    """Judge every label of the features by the other images. `k` is the number of neighbours (None: `default_k`).

    `seed` is of the folds. `matches`: the k nearest other images or more of each judged image, if they are known.

    >>> values = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.9, 0.0], [1.0, 0.2], [0.0, 1.0], [0.1, 1.0], [0.0, 0.9]])
    >>> scores = label_scores(Features(values, torch.tensor([7, 7, 7, 9, 9, 9, 9])), k=2)
    >>> scores.order()[0], scores.suggested[3]
    (tensor(3), tensor(7))
    """
    check_features("audited", features)
    device = torch.device(device if device is not None else features.values.device)
    rows = judged_rows(features.labels)
    values, given = features.values[rows].to(device), features.labels[rows].to(device)
    classes, labels = torch.unique(given, return_inverse=True)
    if len(classes) < 2:
        raise BadInput("labels can only be judged between two classes with two labelled images or more")
    k = default_k(labels.cpu(), leave_one_out=True) if k is None else min(k, len(labels) - 1)
    if matches is None:
        matches = neighbours(Features(values, labels), values, k, leave_one_out=True)
    votes = count_votes(matches, labels, k, KNN_TEMPERATURE, len(classes))
    votes /= votes.sum(1, keepdim=True)
    cosines, fold = class_mean_cosines(values, labels, len(classes)), folds_of(labels, seed)
    probabilities = linear_probabilities(values, labels, len(classes), fold)
    evidence, own = combine_evidence(votes, cosines, probabilities), labels[:, None]
    best, score = evidence.max(1), evidence.gather(1, own)[:, 0]
    others = cosines.scatter(1, own, -math.inf).amax(1)
    return LabelScores(
        rows=rows,
        labels=given.cpu(),
        suggested=torch.where(best.values > score, classes[best.indices], given).cpu(),
        score=score.cpu(),
        suggested_score=best.values.cpu(),
        vote=votes.gather(1, own)[:, 0].cpu(),
        margin=(cosines.gather(1, own)[:, 0] - others).cpu(),
        linear=probabilities.gather(1, own)[:, 0].cpu(),
        votes=votes.cpu(),
        probabilities=probabilities.cpu(),
        classes=classes.cpu(),
        fold=fold.cpu(),
        k=k,
    )


def judged_rows(labels: Tensor) -> Tensor:
    """Rows whose class has at least two labelled images: one has no other to be compared with."""
    _, number, sizes = torch.unique(labels, return_inverse=True, return_counts=True)
    has_other: Tensor = (labels >= 0) & (sizes[number] >= 2)
    return has_other.nonzero()[:, 0]


def folds_of(labels: Tensor, seed: int = 0) -> Tensor:
    """The fold of each image for the linear classifier, at most as many folds as images."""
    return stratified_folds(labels.cpu(), min(FOLDS, len(labels)), seed).to(labels.device)


def combine_evidence(votes: Tensor, cosines: Tensor, probabilities: Tensor) -> Tensor:
    """(N, classes): the evidence for each class, from 0 to 1.

    Each of the three parts divides 1 among the classes of an image, cosines by a softmax. The evidence for a class is
    the weighted mean of the logarithms of its shares, from 0 (none of any part) to 1 (all of each): a part that is sure
    that a class is wrong outweighs one that is in doubt, as in a product of probabilities.
    """
    deviation = cosines.std(1, correction=0).mean().clamp(min=1e-6)  # less is rounding
    shares = (cosines * (USUAL_DEVIATION / deviation)).softmax(1)
    evidence = torch.zeros_like(votes)
    for weight, fractions in ((VOTE_WEIGHT, votes), (MEANS_WEIGHT, shares), (LINEAR_WEIGHT, probabilities)):
        evidence += weight * (fractions / LEAST_SHARE).log1p() / math.log1p(1 / LEAST_SHARE)
    return evidence


# --- the three parts --------------------------------------------------------------------------------------------------


def class_mean_cosines(values: Tensor, labels: Tensor, classes: int) -> Tensor:
    """(N, classes): cosine of each image to the mean of each class; the image is not part of its own class's mean."""
    units = F.normalize(values.float(), dim=1)
    sums = units.new_zeros(classes, units.shape[1]).index_add_(0, labels, units)
    means = F.normalize(sums, dim=1)
    cosines = units.new_empty(len(units), classes)
    for start in range(0, len(units), CHUNK):
        rows, own = units[start : start + CHUNK], labels[start : start + CHUNK]
        block = rows @ means.T
        without = F.normalize(sums[own] - rows, dim=1)
        block.scatter_(1, own[:, None], (rows * without).sum(1, keepdim=True))
        cosines[start : start + CHUNK] = block
    return cosines


def linear_probabilities(values: Tensor, labels: Tensor, classes: int, fold: Tensor) -> Tensor:
    """(N, classes) probabilities by logistic regression on the other folds.

    One ridge of `RIDGES` serves all folds: the one that predicts the given labels best out of fold.
    """
    with track_task("scaling features"):
        rows = Standardized(values.float(), torch.float32).rows(values.float(), torch.float32)
    tested = [fold == number for number in range(int(fold.max()) + 1)]
    right = dict.fromkeys(RIDGES, 0)
    for is_tested in track(tested[: math.ceil(MIN_CHOOSING * len(tested) / len(rows))], "choosing a ridge"):
        problem = Problem(rows[~is_tested], labels[~is_tested], classes)
        weights = [ridge * len(problem.rows) for ridge in reversed(RIDGES)]
        for ridge, solution in zip(reversed(RIDGES), solve_path(problem, weights), strict=True):
            predicted = (rows[is_tested] @ solution.parameters.T).argmax(1)
            right[ridge] += int((predicted == labels[is_tested]).sum())
    best = max(RIDGES, key=lambda ridge: (right[ridge], ridge))
    probabilities = rows.new_empty(len(rows), classes)
    for is_tested in track(tested, "fitting linear classifiers"):
        problem = Problem(rows[~is_tested], labels[~is_tested], classes)
        parameters = solve(problem, best * len(problem.rows)).parameters
        probabilities[is_tested] = (rows[is_tested] @ parameters.T).softmax(1)
    return probabilities


# --- how many are wrong -----------------------------------------------------------------------------------------------


class WrongShare(NamedTuple):
    """Share of wrong labels in percent with its 95% interval, and the number of images that it is counted on.

    `agreement` is how often k-NN predicts what the linear classifier does, on these images and beyond chance: 1 always,
    0 as often as if each only knew how frequent the classes are.
    """

    percent: Interval
    images: int
    agreement: Interval = Interval(1.0, 1.0, 1.0)

    @property
    def is_reliable(self) -> bool:
        """Whether the features surely separate the classes well enough to count wrong labels."""
        return self.agreement.low >= MIN_AGREEMENT


def share_of_wrong_labels(scores: LabelScores) -> WrongShare | None:
    """An estimate of the share of wrong labels in percent; None if fewer than 250 labels were judged.

    A classifier errs too, so the share of labels that it disagrees with is too high. Where it is most confident it
    hardly errs: there, almost all disagreement comes from wrong labels. So the most confident tenth is counted of the
    images that the linear classifier predicts to be of a class, and classes are weighted by how often they are
    predicted; if classes are small, the most confident tenth of all images. The tenth is taken within each fold: the
    labels in a fold have no part in who is confident there. (Leaving single images out would not do: one wrong label
    among right ones has only right neighbours itself.)

    The interval is Wilson's, and its lower end allows for a classifier that errs even there, in two ways: it is moved
    down by as much as the last halving of the fraction took away, and it covers the most confident tenth of all
    images, to which hard classes hardly belong. If hard images are mislabelled more often than easy ones, or if the
    encoder has learned the wrong labels, the true share is higher. If the features do not separate the classes, the
    share means nothing (`is_reliable`).
    """
    if len(scores.labels) < MIN_JUDGED:
        return None
    groups = len(scores.classes) * len(torch.unique(scores.fold))
    by_class = len(scores.labels) >= MIN_PER_GROUP * groups
    confident = _count_confident(scores, CONFIDENT_FRACTION, by_class)
    wider = _count_confident(scores, 2 * CONFIDENT_FRACTION, by_class)
    easiest = _count_confident(scores, CONFIDENT_FRACTION, by_class=False)
    mean, low, high = wilson_interval(100 * confident.disagreement, confident.effective)
    low -= 100 * max(0.0, wider.disagreement - confident.disagreement)
    low = max(0.0, min(low, wilson_interval(100 * easiest.disagreement, easiest.effective).low))
    return WrongShare(Interval(mean, low, high), confident.images, _agreement_beyond_chance(scores, confident))


class Confident(NamedTuple):
    """What was counted on confident predictions."""

    disagreement: float  # share of labels that differ from the prediction
    agreement: float  # share of images for which k-NN predicts the same
    effective: float  # number of images of equal weight that would say as much
    images: int


def _agreement_beyond_chance(scores: LabelScores, confident: Confident) -> Interval:
    """Cohen's kappa of the two classifiers, its chance from how often each predicts a class; with Wilson's interval."""
    knn, linear = (
        torch.bincount(table.argmax(1), minlength=len(scores.classes)).double() / len(table)
        for table in (scores.votes, scores.probabilities)
    )
    chance = min(float((knn * linear).sum()), 1 - 1e-9)
    agreement = wilson_interval(100 * confident.agreement, confident.effective)
    return Interval(*((value / 100 - chance) / (1 - chance) for value in agreement))


def _count_confident(scores: LabelScores, fraction: float, by_class: bool) -> Confident:
    top = scores.probabilities.topk(2, dim=1)
    predicted, confidence = top.indices[:, 0], top.values[:, 0] - top.values[:, 1]
    differs = (scores.classes[predicted] != scores.labels).double()
    agrees = (scores.votes.argmax(1) == predicted).double()
    mean, agreement, squares, total = 0.0, 0.0, 0.0, 0
    group = predicted if by_class else torch.zeros_like(predicted)
    for number in torch.unique(group).tolist():
        members, confident = (group == number).nonzero()[:, 0], []
        for fold in torch.unique(scores.fold[members]).tolist():
            within = members[scores.fold[members] == fold]
            confident.append(within[confidence[within].topk(math.ceil(fraction * len(within))).indices])
        rows, weight = torch.cat(confident), len(members) / len(predicted)
        mean += weight * float(differs[rows].mean())
        agreement += weight * float(agrees[rows].mean())
        squares += weight**2 / len(rows)
        total += len(rows)
    return Confident(mean, agreement, 1 / squares, total)
