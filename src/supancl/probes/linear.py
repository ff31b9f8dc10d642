"""A linear classifier on frozen features, solved to its optimum. `sgd` has the paper's probe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from supancl.config import to_json
from supancl.errors import BadInput, plural
from supancl.probes.features import Features, check_features, check_splits
from supancl.probes.goals import Goal, OneLabel
from supancl.probes.logistic import (
    Problem,
    predict,
    principal_axes,
    rotate,
    solve,
    solve_path,
)
from supancl.probes.newton import POLISH_TOLERANCE, polish
from supancl.reporter import track

PROBE_WEIGHTS = tuple(10.0**power for power in range(-3, 6))
CHOOSING_TOLERANCE = 0.05  # tolerance of the solutions that compare weights
LIVE_RIDGE = 0.01  # of `fixed_ridge_accuracy`, per training image


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
    """Accuracy in percent on the test features, and how the ridge's weight was chosen.

    `chosen_on` says on which images: "held-out" (the features passed for it), "other half" (each half of the test
    images uses the weight that is best on the other half; `weight` is the best on both together), or
    "10% of training".
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
    is_correct: Tensor | None = field(default=None, compare=False, repr=False)  # of each labelled test image

    def to_json(self) -> dict[str, Any]:
        content = {key: value for key, value in to_json(self).items() if key != "is_correct"}
        return {key: value for key, value in content.items() if key != "weight_by_half" or value}


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
    half = torch.zeros(len(labels), dtype=torch.bool)
    half[_shuffle_by_class(labels, seed)[::2]] = True
    return half


def _shuffle_by_class(labels: Tensor, seed: int) -> Tensor:
    """Positions sorted by class, in random order within each class."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    return order[torch.argsort(labels[order], stable=True)]


class RidgeChoice(NamedTuple):
    """The images to fit, those of them that choose the ridge, and the test halves if these choose it."""

    fit: Features
    is_held_out: Tensor
    in_first_half: Tensor | None
    chosen_on: str


class Standardized:
    """Scales features to mean 0 and deviation 1, and rotates them onto axes (of `dtype`) on which a solver is fast."""

    def __init__(self, values: Tensor, dtype: torch.dtype = torch.float64) -> None:
        chunks = values.split(8192)
        self.mean = torch.stack([chunk.double().sum(0) for chunk in chunks]).sum(0) / len(values)
        squares = torch.stack([(chunk.double() - self.mean).square().sum(0) for chunk in chunks]).sum(0) / len(values)
        size = values.abs().amax(0).double()
        # a feature that varies only by rounding is not scaled
        self.scale = torch.where(squares.sqrt() > 1e-6 * size, squares.sqrt(), torch.ones_like(size))
        self.axes = principal_axes(values, dtype, scaled=self._scaled)

    def rows(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        return rotate(values, self.axes.to(dtype), scaled=self._scaled)

    def _scaled(self, values: Tensor) -> Tensor:
        return (values - self.mean.to(values.dtype)) / self.scale.to(values.dtype)


def linear_probe(
    train: Features,
    test: Features,
    choose: Features | Literal["halves"] | None = None,
    weights: Sequence[float] = PROBE_WEIGHTS,
    share: float = 0.1,
    seed: int = 0,
    tolerance: float = POLISH_TOLERANCE,
    device: torch.device | str = "cpu",
) -> LinearProbe:
    """Multinomial logistic regression on standardised features; `choose` says which images choose the ridge.

    - features: these choose, and the classifier is then fitted on train and them together;
    - "halves": each half of the test images uses the weight that is best on the other half;
    - None: a stratified `share` of train chooses, and the classifier is then fitted on all of train.

    Test images of a class that train lacks count as wrong. Of equally good weights the strongest is used. The loss is
    that of `supancl.probes.logistic`, summed over images, with the bias in the ridge. Weights are compared by rough
    solutions in single precision. The tested classifier is solved in double precision: its parameters are within
    `tolerance` of the optimum, relative to their norm.
    """
    splits, classes = check_splits(train=train)
    test = _renumbered("test", test, classes, train.values.shape[1])
    if isinstance(choose, Features):
        choose = _renumbered("choose", choose, classes, train.values.shape[1]).labelled()
    choice = choose_ridge_images(splits["train"], splits["train"].labels, test.labels, choose, share, seed)
    predictions, about = fit_best_ridge(choice, test, OneLabel(len(classes), _accuracy), weights, tolerance, device)
    is_correct = predictions == test.labels.cpu()
    return LinearProbe(accuracy=_percent(is_correct), classes=len(classes), is_correct=is_correct, **about)


def fit_best_ridge(
    choice: RidgeChoice,
    test: Features,
    goal: Goal,
    weights: Sequence[float] = PROBE_WEIGHTS,
    tolerance: float = POLISH_TOLERANCE,
    device: torch.device | str = "cpu",
) -> tuple[Tensor, dict[str, Any]]:
    """Answers about the test images of the classifier with the best ridge, and how that was chosen: see `LinearProbe`.

    Labels of the features are the goal's targets.
    """
    if not weights or min(weights) <= 0:
        raise BadInput("weights: at least one is needed, and all above 0")
    halves = choice.in_first_half
    values, targets = choice.fit.values.to(device), choice.fit.labels.to(device)
    is_held_out = choice.is_held_out.to(device)
    space = Standardized(values)
    single_rows = space.rows(values, torch.float32)
    test_rows = space.rows(test.values.to(device), torch.float64)
    choosing_rows, choosing_targets = single_rows[is_held_out], targets[is_held_out].cpu()
    if halves is not None:
        choosing_rows, choosing_targets = test_rows.float(), test.labels.cpu()
    fitted = goal.problem(single_rows[~is_held_out], targets[~is_held_out])
    starts = _solve_all(fitted, weights)
    answers = {weight: goal.answers(start @ choosing_rows.T).cpu() for weight, start in starts.items()}

    def best_weight(among: Tensor | slice) -> float:
        """The weight of the highest quality; of equal ones the strongest."""
        return max(answers, key=lambda weight: (goal.quality(answers[weight][among], choosing_targets[among]), weight))

    selected: tuple[float, ...] = (best_weight(slice(None)),)
    if halves is not None:
        selected = (best_weight(~halves), best_weight(halves))
    exact = goal.problem(space.rows(values, torch.float64), targets)
    rough = goal.problem(single_rows, targets)
    finals = {
        weight: polish(exact, rough, weight, starts[weight], tolerance)
        for weight in track(set(selected), "fitting the linear classifier")
    }
    tested = [goal.answers(finals[weight].parameters @ test_rows.T).cpu() for weight in selected]
    if halves is not None:
        tested[0][~halves] = tested[1][~halves]
    ascending = sorted(answers)
    return tested[0], {
        "weight": best_weight(slice(None)),
        "weights": tuple(ascending),
        "held_out": tuple(goal.quality(answers[weight], choosing_targets) for weight in ascending),
        "images": (int((~is_held_out).sum()), len(choosing_targets), len(test.labels)),
        "residual": max(final.residual for final in finals.values()),
        "cut_off": any(final.cut_off for final in finals.values()),
        "chosen_on": choice.chosen_on,
        "chosen_on_images": len(choosing_targets),
        **({} if halves is None else {"weight_by_half": selected}),
    }


def _solve_all(problem: Problem, weights: Sequence[float]) -> dict[float, Tensor]:
    """Rough solutions by weight."""
    path = solve_path(problem, sorted(set(weights)), CHOOSING_TOLERANCE)
    solutions = track(path, "choosing the ridge of a linear classifier", len(set(weights)))
    return {solution.weight: solution.parameters for solution in solutions}


def choose_ridge_images(
    train: Features,
    strata: Tensor,
    test_strata: Tensor,
    choose: Features | Literal["halves"] | None,
    fraction: float = 0.1,
    seed: int = 0,
) -> RidgeChoice:
    """Which images choose the ridge (see `linear_probe`); images are drawn by `strata`, a class of each."""
    if choose is None:
        return RidgeChoice(train, hold_out(strata.cpu(), fraction, seed), None, f"{fraction:.0%} of training")
    if isinstance(choose, Features):
        if not len(choose.labels):
            raise BadInput("choose features: no image of the training classes; choosing a ridge needs some")
        is_held_out = torch.arange(len(train.labels) + len(choose.labels)) >= len(train.labels)
        both = (torch.cat([ours, other.to(ours)]) for ours, other in zip(train, choose, strict=True))
        return RidgeChoice(Features(*both), is_held_out, None, "held-out")
    if choose != "halves" or len(test_strata) < 2:
        raise BadInput(
            f"choose = {choose!r} with {plural(len(test_strata), 'test image')}: give features, None, or "
            "'halves' of two test images or more"
        )
    nothing = torch.zeros(len(train.labels), dtype=torch.bool)
    return RidgeChoice(train, nothing, halve(test_strata.cpu(), seed), "other half")


def _renumbered(name: str, features: Features, classes: Tensor, width: int) -> Features:
    """The labelled rows with the index of their class in `classes`, or -1."""
    labelled = check_features(name, features)
    if labelled.values.shape[1] != width:
        raise BadInput(
            f"{name} features are {labelled.values.shape[1]} wide, train features {width}: embed both with the "
            "same encoder"
        )
    classes = classes.to(labelled.labels)
    number = torch.searchsorted(classes, labelled.labels).clamp(max=len(classes) - 1)
    return Features(labelled.values, torch.where(classes[number] == labelled.labels, number, -1))


def _accuracy(predictions: Tensor, labels: Tensor) -> float:
    return _percent(predictions == labels)


def _percent(is_correct: Tensor) -> float:
    return 100 * float(is_correct.double().mean())


def fixed_ridge_accuracy(fit: Features, test: Features) -> float:
    """Accuracy in percent on `test` of multinomial logistic regression on the standardised features of `fit`.

    The loss is that of `linear_probe`, but the ridge is fixed, so no images choose it. There is no randomness. NaN if
    there are fewer than two classes or no labelled test image.

    >>> fit = Features(torch.tensor([[0.0], [1.0], [4.0], [5.0]]), torch.tensor([3, 3, 8, 8]))
    >>> fixed_ridge_accuracy(fit, Features(torch.tensor([[0.5], [9.0], [9.0]]), torch.tensor([3, 8, 3])))
    66.66666666666666
    """
    test = test.labelled()
    if len(torch.unique(fit.labelled().labels)) < 2 or not len(test.labels):
        return math.nan
    try:
        return _percent(fixed_ridge_predictions(fit, test.values) == test.labels)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # the monitor must not end a run
        return math.nan


def fixed_ridge_predictions(fit: Features, values: Tensor) -> Tensor:
    """Labels predicted for `values` by the classifier of `fixed_ridge_accuracy`."""
    fit = fit.labelled()
    classes, labels = torch.unique(fit.labels, return_inverse=True)
    space = Standardized(fit.values, torch.float32)
    problem = Problem(space.rows(fit.values, torch.float32), labels, len(classes))
    solution = solve(problem, LIVE_RIDGE * len(labels), tolerance=CHOOSING_TOLERANCE)
    predictions: Tensor = classes[predict(solution.parameters, space.rows(values, torch.float32))]
    return predictions
