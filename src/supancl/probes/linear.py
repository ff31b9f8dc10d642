"""Linear classifiers on frozen features, solved to their optimum, for every protocol, `predict` and the monitor.

A classifier is a multinomial logistic regression, or for several labels per image a regression per class. `Ridges`
compares weights of its ridge on images that are not fitted; fewer than 100 images choose none. `transfer` has the
paper's transfer protocol, `sgd` its linear probe.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from supancl.config import to_json
from supancl.errors import BadInput
from supancl.probes.features import Features, check_features, check_splits
from supancl.probes.logistic import OneVsRest, Problem, Solution, principal_axes, rotate, solve, solve_path
from supancl.probes.newton import POLISH_TOLERANCE, polish
from supancl.probes.precision import mean_average_precision
from supancl.reporter import track

PROBE_WEIGHTS = tuple(10.0**power for power in range(-3, 8))
WEAKER_WEIGHTS = tuple(10.0**power for power in range(-6, -3))  # tried while the weakest one is the best
CHOOSING_TOLERANCE = 0.05  # tolerance of the solutions that compare weights
ROUGH_TOLERANCE = 1e-3  # of a rough classifier
CLEARLY_WORSE = 0.5  # points
USUAL_RIDGE = 0.01  # per fitted image
# Choosing on 12 images is worse than not choosing: of eight draws of 108 labelled photographs, 46.2% of the others were
# predicted correctly with a ridge chosen on 12 held-out ones, and 48.4% with the usual one.
MIN_TO_CHOOSE = 100


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


# --- parts of the images ----------------------------------------------------------------------------------------------


def hold_out(labels: Tensor, fraction: float = 0.1, seed: int = 0) -> Tensor:
    """Mask of a stratified random sample: `fraction` of each class, at least one image and never all.

    A class with one image has none held out.
    """
    if not 0 < fraction < 1:
        raise BadInput(f"share = {fraction:g}: must be between 0 and 1")
    _, row, sizes = torch.unique(labels, return_inverse=True, return_counts=True)
    if int(sizes.max()) < 2:
        raise BadInput("every class has 1 image; holding some out needs 2, so add images")
    order = _shuffle_by_class(row, seed)
    rank = torch.empty_like(row)
    rank[order] = torch.arange(len(row)) - (sizes.cumsum(0) - sizes)[row[order]]
    count: Tensor = (fraction * sizes).round().long().clamp(min=1).minimum(sizes - 1)
    return rank < count[row]


def stratified_folds(labels: Tensor, folds: int = 5, seed: int = 0) -> Tensor:
    """The fold of each image, 0 to folds - 1: the images of a class are dealt out evenly, in random order.

    >>> stratified_folds(torch.tensor([0, 0, 1, 1]), 2).reshape(2, 2).sum(1)
    tensor([1, 1])
    """
    fold = torch.empty(len(labels), dtype=torch.long)
    fold[_shuffle_by_class(labels, seed)] = torch.arange(len(labels)) % folds
    return fold


def halve(labels: Tensor, seed: int = 0) -> Tensor:
    """Mask of a stratified random half of the images; odd classes have one image more or less."""
    return stratified_folds(labels, 2, seed) == 0


def _shuffle_by_class(labels: Tensor, seed: int) -> Tensor:
    """Positions sorted by class, in random order within each class."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    return order[torch.argsort(labels[order], stable=True)]


# --- classifiers by the weight of their ridge -------------------------------------------------------------------------


@dataclass(frozen=True)
class LinearClassifier:
    """A linear layer on features as the encoder gives them; how near its optimum it is: see `logistic.Solution`."""

    weight: Tensor  # (classes, width)
    bias: Tensor  # (classes,)
    residual: float = 0.0
    cut_off: bool = False

    def logits(self, values: Tensor) -> Tensor:
        return torch.addmm(self.bias, values.to(self.weight), self.weight.T)


class Standardized:
    """Scales features to mean 0 and deviation 1, and rotates them onto axes (of `dtype`) on which a solver is fast.

    With `scales` False they are only rotated.
    """

    def __init__(self, values: Tensor, dtype: torch.dtype = torch.float64, scales: bool = True) -> None:
        self.mean = torch.zeros(values.shape[1], dtype=torch.float64, device=values.device)
        self.scale = torch.ones_like(self.mean)
        if scales:
            chunks, count = values.split(8192), len(values)
            self.mean = torch.stack([chunk.double().sum(0) for chunk in chunks]).sum(0) / count
            squares = torch.stack([(chunk.double() - self.mean).square().sum(0) for chunk in chunks]).sum(0) / count
            # a feature that varies only by rounding is not scaled
            varies = squares.sqrt() > 1e-6 * values.abs().amax(0).double()
            self.scale = torch.where(varies, squares.sqrt(), self.scale)
        self.axes = principal_axes(values, dtype, scaled=self._scaled)

    def rows(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        return rotate(values, self.axes.to(dtype), scaled=self._scaled)

    def _scaled(self, values: Tensor) -> Tensor:
        return (values - self.mean.to(values.dtype)) / self.scale.to(values.dtype)

    def classifier(self, solution: Solution) -> LinearClassifier:
        """The classifier of features that are neither scaled nor rotated."""
        turned = solution.parameters.double() @ self.axes.double().T
        weight = turned[:, :-1] / self.scale
        return LinearClassifier(weight, turned[:, -1] - weight @ self.mean, solution.residual, solution.cut_off)


def answers(logits: Tensor, targets: Tensor) -> Tensor:
    """What logits (images, classes) say, on the CPU: the class of each image, or for several labels all scores."""
    return (logits if targets.ndim == 2 else logits.argmax(1)).cpu()


def quality(said: Tensor, targets: Tensor) -> float:
    """The accuracy of answers in percent, or for several labels their mean average precision."""
    if targets.ndim == 2:
        return mean_average_precision(said, targets)
    return 100 * float((said == targets).double().mean())


class Ridges:
    """Linear classifiers of some features, by the weight of their ridge.

    Targets are labels 0, 1, ..., or (images, classes) for several labels. Weights are compared by rough solutions in
    single precision; `fit` solves in double precision.
    """

    def __init__(
        self,
        values: Tensor,
        targets: Tensor,
        device: torch.device | str = "cpu",
        measure: Callable[[Tensor, Tensor], float] = quality,
        scales: bool = True,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.values, self.targets, self.measure = values.to(device), targets.to(device), measure
        self.space = Standardized(self.values, dtype, scales)
        self.single = self.space.rows(self.values, torch.float32)
        self.usual, self.iterations = USUAL_RIDGE * len(values), 0
        self.starts: dict[float, Tensor] = {}
        self.said: dict[float, Tensor] = {}
        self.choosing = targets[:0].cpu()  # targets of the images that choose

    def problem(self, rows: Tensor, kept: Tensor | slice = slice(None)) -> Problem:
        """Regression of the rows of some images."""
        targets = self.targets[kept]
        if targets.ndim == 2:
            return OneVsRest(rows[kept], targets)
        return Problem(rows[kept], targets, int(self.targets.max()) + 1)

    def compare(
        self,
        weights: Sequence[float] | None,
        held_out: Tensor | None,
        others: Features | None = None,
        tolerance: float = CHOOSING_TOLERANCE,
    ) -> None:
        """Compare weights on the images of the mask `held_out`, which are not fitted for it, or on `others`.

        Without `weights` they are PROBE_WEIGHTS, and fewer than 100 images compare nothing. `others` have targets as
        labels.
        """
        masked = torch.zeros(len(self.values), dtype=torch.bool) if held_out is None else held_out.cpu()
        count = len(others) if others is not None else int(masked.sum())
        if weights is None and count < MIN_TO_CHOOSE:
            return
        if weights is not None and (not len(weights) or min(weights) <= 0):
            raise BadInput("weights: at least one is needed, and all above 0")
        masked = masked.to(self.values.device)
        rows, self.choosing = self.single[masked], self.targets[masked].cpu()
        if others is not None:
            rows = self.space.rows(others.values.to(self.values.device), torch.float32)
            self.choosing = others.labels.cpu()
        tried = set(weights or (*PROBE_WEIGHTS, *WEAKER_WEIGHTS))
        path = solve_path(self.problem(self.single, ~masked), sorted(tried), tolerance)
        for solution in track(path, "choosing the ridge of a linear classifier", len(tried)):
            self.add(solution, rows)
            if weights is None and self.is_settled():
                break

    def is_settled(self) -> bool:
        """Whether weaker ridges need not be tried: the last two are clearly worse, or the last is weak and not best."""
        scores = self.scores()
        best, weakest = max(scores.values()), min(scores)
        is_worse = [score < best - CLEARLY_WORSE for score in scores.values()][:2]
        return is_worse == [True, True] or (weakest <= PROBE_WEIGHTS[0] and self.best() > weakest)

    def add(self, solution: Solution, rows: Tensor) -> None:
        """Count a solution, and keep what it says about the images that choose."""
        self.iterations += solution.iterations
        self.starts[solution.weight] = solution.parameters
        self.said[solution.weight] = answers((solution.parameters @ rows.T).T, self.choosing)

    def scores(self, among: Tensor | slice = slice(None)) -> dict[float, float]:
        """The quality on images that choose, by weight, ascending."""
        return {weight: self.measure(self.said[weight][among], self.choosing[among]) for weight in sorted(self.said)}

    def best(self, among: Tensor | slice = slice(None)) -> float:
        """The weight of the highest quality; of equal ones that nearest to the usual one, which is also the default."""
        scores = self.scores(among) or {self.usual: 0.0}
        return max(scores, key=lambda weight: (scores[weight], -abs(math.log(weight / self.usual))))

    def fit(self, weight: float, tolerance: float | None = POLISH_TOLERANCE) -> LinearClassifier:
        """The classifier of all images with this ridge; parameters are within `tolerance` of the optimum.

        None: a rough solution in single precision.
        """
        whole = self.problem(self.single)
        start = self.starts.get(weight)
        if tolerance is None or start is None:
            solution = solve(whole, weight, start, tolerance=CHOOSING_TOLERANCE if tolerance else ROUGH_TOLERANCE)
            self.iterations, start = self.iterations + solution.iterations, solution.parameters
        if tolerance is not None:
            exact = self.problem(self.space.rows(self.values, torch.float64))
            solution = polish(exact, whole, weight, start, tolerance)
            self.iterations += solution.iterations
        return self.space.classifier(solution)


# --- the probe --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LinearProbe:
    """Accuracy in percent on the test features (several labels: mean average precision), and how the ridge was chosen.

    `chosen_on` says on which images: "held-out" (the features passed for it), "other half" (each half of the test
    images uses the weight that is best on the other half; `weight` is the best on both together), "10% of training",
    or "none", if they were too few.
    """

    accuracy: float
    weight: float
    weights: tuple[float, ...]
    held_out: tuple[float, ...]  # accuracy by weight on the images that choose
    classes: int
    images: tuple[int, int, int]  # numbers: fitted while choosing, choosing, test
    residual: float = 0.0  # this and the next are of the tested classifier: see `logistic.Solution`
    cut_off: bool = False
    chosen_on: str = ""
    chosen_on_images: int = 0
    weight_by_half: tuple[float, ...] = ()  # for "other half" only
    answers: Tensor = field(default_factory=lambda: torch.empty(0), compare=False, repr=False)  # see `answers`
    targets: Tensor = field(default_factory=lambda: torch.empty(0), compare=False, repr=False)  # of test images

    @property
    def is_correct(self) -> Tensor:
        """Of each labelled test image."""
        return self.answers == self.targets

    def to_json(self) -> dict[str, Any]:
        left_out = {"answers", "targets", *["weight_by_half"] * (not self.weight_by_half)}
        return {key: value for key, value in to_json(self).items() if key not in left_out}


def linear_probe(
    train: Features,
    test: Features,
    choose: Features | Literal["halves", "nothing"] | None = None,
    weights: Sequence[float] | None = None,
    share: float = 0.1,
    seed: int = 0,
    tolerance: float | None = POLISH_TOLERANCE,
    device: torch.device | str = "cpu",
    classes: int | None = None,
) -> LinearProbe:
    """Logistic regression on standardised features; `choose` says which images choose the ridge.

    - features: these choose, and the classifier is then fitted on train and them together;
    - "halves": each half of the test images uses the weight that is best on the other half;
    - None: a stratified `share` of train chooses, and the classifier is then fitted on all of train;
    - "nothing": the ridge is 0.01 per image.

    Without `weights` fewer than 100 choosing images choose nothing. Test images of a
    class that train lacks count as wrong. The loss is that of `supancl.probes.logistic`, summed over images, with the
    bias in the ridge. Of images with several labels, of `classes` classes, each class has a regression. A `tolerance`
    of None is a rough solution.
    """
    if isinstance(choose, str) and choose not in ("halves", "nothing"):
        raise BadInput(f"choose = {choose!r}: give features, 'halves', 'nothing' or None")
    others = [features for features in (test, choose) if isinstance(features, Features)]
    (train, test, *chosen), classes = prepare(train, others, classes)
    held_out, halves, on = None, None, "held-out"
    if chosen:
        held_out = torch.arange(len(train) + len(chosen[0])) >= len(train)
        train = train.and_also(chosen[0])
    elif choose == "halves":
        halves, on = halve(test.labels.cpu(), seed), "other half"
    elif choose is None:
        held_out, on = draw_choosing(train.labels.cpu(), share, seed), f"{share:.0%} of training"
    targets, tested = targets_of(train, classes), targets_of(test, classes)
    ridges = Ridges(train.values, targets, device, dtype=torch.float32 if tolerance is None else torch.float64)
    ridges.compare(weights, held_out, None if halves is None else Features(test.values, tested))
    selected: tuple[float, ...] = (ridges.best(),)
    if halves is not None and ridges.said:
        selected = ridges.best(~halves), ridges.best(halves)
    fitted = {w: ridges.fit(w, tolerance) for w in track(set(selected), "fitting the linear classifier")}
    said = [answers(fitted[weight].logits(test.values.to(device)), tested) for weight in selected]
    if halves is not None and len(said) > 1:
        said[0][~halves] = said[1][~halves]
    scores, tested = ridges.scores(), tested.cpu()
    fitted_to_choose = len(train) - (len(ridges.choosing) if halves is None else 0)
    return LinearProbe(
        quality(said[0], tested),
        ridges.best(),
        tuple(scores) or selected,
        tuple(scores.values()),
        classes,
        (fitted_to_choose, len(ridges.choosing), len(test)),
        max(classifier.residual for classifier in fitted.values()),
        any(classifier.cut_off for classifier in fitted.values()),
        on if scores else "none",
        len(ridges.choosing),
        selected if len(selected) > 1 else (),
        said[0],
        tested,
    )


def draw_choosing(labels: Tensor, share: float = 0.1, seed: int = 0) -> Tensor:
    """Mask of the training images that choose the ridge; none if every class has one image."""
    return hold_out(labels, share, seed) if len(torch.unique(labels)) < len(labels) else torch.zeros_like(labels) > 0


def targets_of(features: Features, classes: int) -> Tensor:
    """Labels, or (images, classes) for several labels per image."""
    return features.labels if features.pairs is None else features.targets(classes)


def prepare(train: Features, others: Sequence[Features], classes: int | None) -> tuple[list[Features], int]:
    """The labelled rows of all, and the number of classes; one label is numbered 0, 1, ... by the classes of train.

    Of others a class that train lacks is -1; only the first of them may have it.
    """
    width, prepared = train.values.shape[1], [check_features("train", train)]
    for name, features in zip(("test", "choose"), others, strict=False):
        prepared.append(check_features(name, features))
        if features.values.shape[1] != width:
            raise BadInput(
                f"{name} features are {features.values.shape[1]} wide, train features {width}: embed both with the "
                "same encoder"
            )
    if train.pairs is None:
        splits, names = check_splits(train=train)
        prepared, classes = [splits["train"], *(_renumbered(some, names) for some in prepared[1:])], len(names)
        prepared[2:] = [some.labelled() for some in prepared[2:]]
    assert classes is not None
    if not all(len(some) for some in prepared):
        raise BadInput("choose features: no image of the training classes; choosing a ridge needs some")
    return prepared, classes


def _renumbered(features: Features, classes: Tensor) -> Features:
    """The features with the index of their class in `classes`, or -1."""
    classes = classes.to(features.labels)
    number = torch.searchsorted(classes, features.labels).clamp(max=len(classes) - 1)
    return Features(features.values, torch.where(classes[number] == features.labels, number, -1))
