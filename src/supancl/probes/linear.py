"""A linear classifier on frozen features, solved to its optimum. `sgd` has the paper's probe."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from supancl.config import to_json
from supancl.errors import BadInput, plural
from supancl.probes.features import Features, check_features, check_splits
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
    if not weights or min(weights) <= 0:
        raise BadInput("weights: at least one is needed, and all above 0")
    test = _renumbered("test", test, classes, train.values.shape[1])
    choice = _choose_ridge_images(splits["train"], test.labels.cpu(), classes, choose, share, seed)
    halves = choice.in_first_half
    values, labels = choice.fit.values.to(device), choice.fit.labels.to(device)
    is_held_out = choice.is_held_out.to(device)
    space = Standardized(values)
    single_rows = space.rows(values, torch.float32)
    test_rows, truth = space.rows(test.values.to(device), torch.float64), test.labels.to(device)
    choosing_rows, choosing_labels = single_rows[is_held_out], labels[is_held_out]
    if halves is not None:
        choosing_rows, choosing_labels = test_rows.float(), truth
    fitted = Problem(single_rows[~is_held_out], labels[~is_held_out], len(classes))
    correct_by_weight, starts = {}, {}
    path = solve_path(fitted, sorted(set(weights)), CHOOSING_TOLERANCE)
    for solution in track(path, "choosing the ridge of a linear classifier", len(set(weights))):
        correct_by_weight[solution.weight] = (predict(solution.parameters, choosing_rows) == choosing_labels).cpu()
        starts[solution.weight] = solution.parameters
    selected: tuple[float, ...] = (_best_weight(correct_by_weight),)
    if halves is not None:
        selected = (_best_weight(correct_by_weight, ~halves), _best_weight(correct_by_weight, halves))
    exact = Problem(space.rows(values, torch.float64), labels, len(classes))
    rough = Problem(single_rows, labels, len(classes))
    finals = {
        weight: polish(exact, rough, weight, starts[weight], tolerance)
        for weight in track(set(selected), "fitting the linear classifier")
    }
    correct_tests = [(predict(finals[weight].parameters, test_rows) == truth).cpu() for weight in selected]
    is_correct = correct_tests[0] if halves is None else torch.where(halves, correct_tests[0], correct_tests[1])
    ascending = sorted(correct_by_weight)
    return LinearProbe(
        accuracy=_percent(is_correct),
        weight=_best_weight(correct_by_weight),
        weights=tuple(ascending),
        held_out=tuple(_percent(correct_by_weight[weight]) for weight in ascending),
        classes=len(classes),
        images=(int((~is_held_out).sum()), len(choosing_labels), len(truth)),
        residual=max(final.residual for final in finals.values()),
        cut_off=any(final.cut_off for final in finals.values()),
        chosen_on=choice.chosen_on,
        chosen_on_images=len(choosing_labels),
        weight_by_half=() if halves is None else selected,
        is_correct=is_correct,
    )


def _choose_ridge_images(
    train: Features,
    test_labels: Tensor,
    classes: Tensor,
    choose: Features | Literal["halves"] | None,
    fraction: float,
    seed: int,
) -> RidgeChoice:
    """`train` and `test_labels` number the `classes` 0, 1, ..."""
    if choose is None:
        return RidgeChoice(train, hold_out(train.labels.cpu(), fraction, seed), None, f"{fraction:.0%} of training")
    if isinstance(choose, Features):
        choosing = _renumbered("choose", choose, classes, train.values.shape[1]).labelled()
        if not len(choosing.labels):
            raise BadInput("choose features: no image of the training classes; choosing a ridge needs some")
        is_held_out = torch.arange(len(train.labels) + len(choosing.labels)) >= len(train.labels)
        both = (torch.cat([ours, other.to(ours)]) for ours, other in zip(train, choosing, strict=True))
        return RidgeChoice(Features(*both), is_held_out, None, "held-out")
    if choose != "halves" or len(test_labels) < 2:
        raise BadInput(
            f"choose = {choose!r} with {plural(len(test_labels), 'test image')}: give features, None, or "
            "'halves' of two test images or more"
        )
    return RidgeChoice(train, torch.zeros(len(train.labels), dtype=torch.bool), halve(test_labels, seed), "other half")


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


def _best_weight(correct_by_weight: Mapping[float, Tensor], among: Tensor | None = None) -> float:
    """The weight with the most correct answers; of equal ones the strongest."""
    return max(
        correct_by_weight,
        key=lambda weight: (int(correct_by_weight[weight][slice(None) if among is None else among].sum()), weight),
    )


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
