"""A linear classifier on frozen features: a convex problem, solved to its optimum. See `sgd` for the paper's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from supancl.config import to_json
from supancl.errors import BadInput, plural
from supancl.probes.features import Features, check_features, check_splits
from supancl.probes.logistic import POLISHED, Problem, onto_axes, path, polish, predicted, principal_axes, solve

PROBE_WEIGHTS = tuple(10.0**power for power in range(-3, 6))
CHOOSING = 0.05  # tolerance of the solutions by which weights are compared
LIVE_RIDGE = 0.01  # of `fixed_ridge_accuracy`, for each image that is fitted


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

    `chosen_on` says on which images: "held-out" (the features given for it), "other half" (each half of the test
    images has the weight that is best on the other half; `weight` is the best one on both together), or
    "10% of training".
    """

    accuracy: float
    weight: float
    weights: tuple[float, ...]
    held_out: tuple[float, ...]  # accuracy by weight on the images that the weight was chosen on
    classes: int
    images: tuple[int, int, int]  # fitted while choosing, chosen on, test
    residual: float = 0.0  # of the tested classifier, as is the next: see `logistic.Solution`
    cut_off: bool = False
    chosen_on: str = ""
    chosen_on_images: int = 0
    weight_by_half: tuple[float, ...] = ()  # of "other half" alone

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in to_json(self).items() if key != "weight_by_half" or value}


def hold_out(labels: Tensor, share: float = 0.1, seed: int = 0) -> Tensor:
    """True for a stratified random part of the images: `share` of each class, at least one of it and never all.

    A class of one image has none held out.
    """
    if not 0 < share < 1:
        raise BadInput(f"share = {share:g}: must lie between 0 and 1")
    _, row, sizes = torch.unique(labels, return_inverse=True, return_counts=True)
    if int(sizes.max()) < 2:
        raise BadInput("every class has 1 image; to hold a part of a class out it needs 2, so add images")
    order = _shuffle_by_class(row, seed)
    rank = torch.empty_like(row)
    rank[order] = torch.arange(len(row)) - (sizes.cumsum(0) - sizes)[row[order]]
    count: Tensor = (share * sizes).round().long().clamp(min=1).minimum(sizes - 1)
    return rank < count[row]


def halve(labels: Tensor, seed: int = 0) -> Tensor:
    """True for a stratified random half of the images: of each class half, of an odd one an image more or less."""
    half = torch.zeros(len(labels), dtype=torch.bool)
    half[_shuffle_by_class(labels, seed)[::2]] = True
    return half


def _shuffle_by_class(labels: Tensor, seed: int) -> Tensor:
    """Positions class by class, in random order within each."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    return order[torch.argsort(labels[order], stable=True)]


class Choice(NamedTuple):
    """What a classifier is fitted on, which of it chooses the ridge, and the halves of the test images if they do."""

    fit: Features
    held: Tensor
    half: Tensor | None
    chosen_on: str


class Standardized:
    """The space of features brought to mean 0 and deviation 1, with axes (of `dtype`) on which a solver is fast."""

    def __init__(self, values: Tensor, dtype: torch.dtype = torch.float64) -> None:
        parts = values.split(8192)
        self.mean = torch.stack([part.double().sum(0) for part in parts]).sum(0) / len(values)
        squares = torch.stack([(part.double() - self.mean).square().sum(0) for part in parts]).sum(0) / len(values)
        size = values.abs().amax(0).double()
        # a unit whose values differ by no more than their rounding stays as it is
        self.scale = torch.where(squares.sqrt() > 1e-6 * size, squares.sqrt(), torch.ones_like(size))
        self.axes = principal_axes(values, dtype, scaled=self._scaled)

    def rows(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        return onto_axes(values, self.axes.to(dtype), scaled=self._scaled)

    def _scaled(self, values: Tensor) -> Tensor:
        return (values - self.mean.to(values.dtype)) / self.scale.to(values.dtype)


def linear_probe(
    train: Features,
    test: Features,
    choose: Features | Literal["halves"] | None = None,
    weights: Sequence[float] = PROBE_WEIGHTS,
    share: float = 0.1,
    seed: int = 0,
    tolerance: float = POLISHED,
    device: torch.device | str = "cpu",
) -> LinearProbe:
    """Multinomial logistic regression on standardised features, its ridge chosen on the images that `choose` names.

    - features: these choose, and the classifier is fitted again on train and them together;
    - "halves": each half of the test images is judged with the weight that is best on the other half;
    - None: a stratified `share` held out of train chooses, and the classifier is fitted again on all of train.

    Test images of a class that train does not have count as wrong. Of weights that are equally good the strongest is
    taken. The objective is the one of `supancl.probes.logistic`, summed over images, the bias in the ridge. Weights
    are compared by rough solutions in single precision. The tested classifier is the optimum in double precision: its
    parameters are within `tolerance` of it, relative to their norm.
    """
    splits, classes = check_splits(train=train)
    if not weights or min(weights) <= 0:
        raise BadInput("weights: at least one is needed, and all above 0")
    test = _renumbered("test", test, classes, train.values.shape[1])
    choice = _choice(splits["train"], test.labels.cpu(), classes, choose, share, seed)
    values, labels, held = choice.fit.values.to(device), choice.fit.labels.to(device), choice.held.to(device)
    space = Standardized(values)
    single = space.rows(values, torch.float32)
    asked, truth = space.rows(test.values.to(device), torch.float64), test.labels.to(device)
    judging, their_labels = (single[held], labels[held]) if choice.half is None else (asked.float(), truth)
    right, starts = {}, {}
    for solution in path(Problem(single[~held], labels[~held], len(classes)), sorted(set(weights)), CHOOSING):
        right[solution.weight] = (predicted(solution.parameters, judging) == their_labels).cpu()
        starts[solution.weight] = solution.parameters
    chosen = (_best(right),) if choice.half is None else (_best(right, ~choice.half), _best(right, choice.half))
    exact = Problem(space.rows(values, torch.float64), labels, len(classes))
    rough = Problem(single, labels, len(classes))
    finals = {weight: polish(exact, rough, weight, starts[weight], tolerance) for weight in set(chosen)}
    correct = [(predicted(finals[weight].parameters, asked) == truth).cpu() for weight in chosen]
    tested = correct[0] if choice.half is None else torch.where(choice.half, correct[0], correct[1])
    tried = sorted(right)
    return LinearProbe(
        accuracy=_percent(tested),
        weight=_best(right),
        weights=tuple(tried),
        held_out=tuple(_percent(right[weight]) for weight in tried),
        classes=len(classes),
        images=(int((~held).sum()), len(their_labels), len(truth)),
        residual=max(final.residual for final in finals.values()),
        cut_off=any(final.cut_off for final in finals.values()),
        chosen_on=choice.chosen_on,
        chosen_on_images=len(their_labels),
        weight_by_half=() if choice.half is None else chosen,
    )


def _choice(
    train: Features,
    asked: Tensor,
    classes: Tensor,
    choose: Features | Literal["halves"] | None,
    share: float,
    seed: int,
) -> Choice:
    """`train` has labels 0, 1, ... of the `classes`, and so do those `asked` about."""
    if choose is None:
        return Choice(train, hold_out(train.labels.cpu(), share, seed), None, f"{share:.0%} of training")
    if isinstance(choose, Features):
        theirs = _renumbered("choose", choose, classes, train.values.shape[1]).labelled()
        if not len(theirs.labels):
            raise BadInput("choose features: no image of the training classes, so no ridge can be chosen")
        held = torch.arange(len(train.labels) + len(theirs.labels)) >= len(train.labels)
        both = (torch.cat([mine, other.to(mine)]) for mine, other in zip(train, theirs, strict=True))
        return Choice(Features(*both), held, None, "held-out")
    if choose != "halves" or len(asked) < 2:
        raise BadInput(
            f"choose = {choose!r} with {plural(len(asked), 'test image')}: give features, None, or "
            "'halves' of two test images or more"
        )
    return Choice(train, torch.zeros(len(train.labels), dtype=torch.bool), halve(asked, seed), "other half")


def _renumbered(name: str, features: Features, classes: Tensor, width: int) -> Features:
    """The labelled rows with the number of their class among the `classes`; -1 where it is none of them."""
    known = check_features(name, features)
    if known.values.shape[1] != width:
        raise BadInput(
            f"{name} features are {known.values.shape[1]} wide, train features {width}: embed both with the "
            "same encoder"
        )
    classes = classes.to(known.labels)
    number = torch.searchsorted(classes, known.labels).clamp(max=len(classes) - 1)
    return Features(known.values, torch.where(classes[number] == known.labels, number, -1))


def _best(right: Mapping[float, Tensor], among: Tensor | None = None) -> float:
    """The weight with the most right answers, of equal ones the strongest."""
    return max(right, key=lambda weight: (int(right[weight][slice(None) if among is None else among].sum()), weight))


def _percent(right: Tensor) -> float:
    return 100 * float(right.double().mean())


def fixed_ridge_accuracy(fit: Features, test: Features) -> float:
    """Accuracy in percent on `test` of multinomial logistic regression on the standardised features of `fit`.

    The objective is that of `linear_probe`, but the ridge is fixed, so nothing is held out to choose it. There is no
    randomness. Not a number where fewer than two classes can be fitted or no test image has a label.

    >>> fit = Features(torch.tensor([[0.0], [1.0], [4.0], [5.0]]), torch.tensor([3, 3, 8, 8]))
    >>> fixed_ridge_accuracy(fit, Features(torch.tensor([[0.5], [9.0], [9.0]]), torch.tensor([3, 8, 3])))
    66.66666666666666
    """
    fit, test = fit.labelled(), test.labelled()
    classes, labels = torch.unique(fit.labels, return_inverse=True)
    if len(classes) < 2 or not len(test.labels):
        return math.nan
    try:
        space = Standardized(fit.values, torch.float32)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # a look in passing must not end a run
        return math.nan
    problem = Problem(space.rows(fit.values, torch.float32), labels, len(classes))
    found = solve(problem, LIVE_RIDGE * len(labels), tolerance=CHOOSING)
    answered = classes[predicted(found.parameters, space.rows(test.values, torch.float32))]
    return _percent(answered == test.labels)
