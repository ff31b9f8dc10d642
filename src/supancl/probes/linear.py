"""Linear classifiers of frozen features, solved to their optimum; the ridge is chosen on images that are not fitted.

A classifier is a multinomial logistic regression, or for several labels per image a regression per class. One rule
chooses the ridge for every protocol, `predict` and the monitor; fewer than 100 images choose none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import torch
from torch import Tensor

from supancl.config import to_json
from supancl.errors import BadInput
from supancl.probes.answers import Measured, TransferMetric, accuracy, mean_average_precision, measure
from supancl.probes.features import Features, check_features, hold_out, number_classes, stratified_folds
from supancl.probes.logistic import (
    POLISH_TOLERANCE,
    LbfgsMemory,
    OneVsRest,
    Problem,
    Solution,
    append_ones,
    polish,
    solve,
    solve_path,
)
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
CHUNK = 8192  # rows that are scaled and rotated at a time
TRANSFER_WEIGHTS = tuple(10 ** (-6 + 11 * i / 44) for i in range(45))  # 1e-6 to 1e5, evenly spaced logarithms
TRANSFER_TOLERANCE = 1e-3
COARSE_TOLERANCE = 0.2  # of the solutions that compare weights in transfer
REFINE_WITHIN = 0.5  # points below the best accuracy: only these weights of transfer are solved to the tolerance


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

    With `scales` False they are only rotated. Any rotation of the features with a one appended gives the same problem,
    so the (width + 1, r) axes need no more precision than the later arithmetic.
    """

    def __init__(self, values: Tensor, dtype: torch.dtype = torch.float64, scales: bool = True) -> None:
        self.scales, (count, width) = scales, values.shape
        self.mean = torch.zeros(width, dtype=torch.float64, device=values.device)
        self.scale = torch.ones_like(self.mean)
        chunks = values.split(CHUNK)
        if scales:
            self.mean = torch.stack([chunk.double().sum(0) for chunk in chunks]).sum(0) / count
            squares = torch.stack([(chunk.double() - self.mean).square().sum(0) for chunk in chunks]).sum(0) / count
            # a feature that varies only by rounding is not scaled
            varies = squares.sqrt() > 1e-6 * values.abs().amax(0).double()
            self.scale = torch.where(varies, squares.sqrt(), self.scale)
        if count <= width:
            rows = self._with_ones(values.to(dtype))
            directions = rows.T @ torch.linalg.eigh(rows @ rows.T)[1].flip(1)
            self.axes: Tensor = torch.linalg.qr(directions)[0]  # orthonormal even if a singular value is zero
            return
        gram = torch.zeros(width + 1, width + 1, dtype=dtype, device=values.device)
        for chunk in chunks:
            rows = self._with_ones(chunk.to(dtype))
            gram.addmm_(rows.T, rows)
        self.axes = torch.linalg.eigh(gram)[1].flip(1)

    def rows(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        """The rows, scaled and with a one appended, in the coordinates of the axes."""
        axes = self.axes.to(dtype)
        rotated = torch.empty(len(values), axes.shape[1], dtype=dtype, device=values.device)
        for chunk, out in zip(values.split(CHUNK), rotated.split(CHUNK), strict=True):
            torch.mm(self._with_ones(chunk.to(dtype)), axes, out=out)
        return rotated

    def _with_ones(self, values: Tensor) -> Tensor:
        return append_ones((values - self.mean.to(values.dtype)) / self.scale.to(values.dtype))

    def classifier(self, solution: Solution) -> LinearClassifier:
        """The classifier of features that are neither scaled nor rotated."""
        turned = solution.parameters.double() @ self.axes.double().T
        weight = turned[:, :-1] / self.scale
        return LinearClassifier(weight, turned[:, -1] - weight @ self.mean, solution.residual, solution.cut_off)


def answers(logits: Tensor, targets: Tensor) -> Tensor:
    """What logits (images, classes) say, on the CPU: the class of each image, or for several labels all scores."""
    return (logits if targets.ndim == 2 else logits.argmax(1)).cpu()


def quality(answers: Tensor, targets: Tensor, metric: TransferMetric = "top-1") -> float:
    """The accuracy of answers in percent, or for several labels their mean average precision."""
    return mean_average_precision(answers, targets) if targets.ndim == 2 else accuracy(answers, targets, metric)


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
        metric: TransferMetric = "top-1",
        scales: bool = True,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.values, self.targets, self.metric = values.to(device), targets.to(device), metric
        self.space = Standardized(self.values, dtype, scales)
        self.single = self.space.rows(self.values, torch.float32)
        self.usual = USUAL_RIDGE * len(values)
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
        self, weights: Sequence[float] | None, held_out: Tensor | None, others: tuple[Tensor, Tensor] | None = None
    ) -> None:
        """Compare weights on the images of the mask `held_out`, which are not fitted for it, or on values and targets.

        Without `weights` they are PROBE_WEIGHTS, and fewer than 100 images compare nothing.
        """
        masked = torch.zeros(len(self.values), dtype=torch.bool) if held_out is None else held_out.cpu()
        if weights is None and (int(masked.sum()) if others is None else len(others[1])) < MIN_TO_CHOOSE:
            return
        if weights is not None and (not len(weights) or min(weights) <= 0):
            raise BadInput("weights: at least one is needed, and all above 0")
        masked = masked.to(self.values.device)
        rows, self.choosing = self.single[masked], self.targets[masked].cpu()
        if others is not None:
            rows, self.choosing = self.space.rows(others[0].to(self.values), torch.float32), others[1].cpu()
        tried = set(weights or (*PROBE_WEIGHTS, *WEAKER_WEIGHTS))
        tolerance = CHOOSING_TOLERANCE if self.space.scales else COARSE_TOLERANCE
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
        """Keep a solution, and what it says about the images that choose."""
        self.starts[solution.weight] = solution.parameters
        self.said[solution.weight] = answers((solution.parameters @ rows.T).T, self.choosing)

    def scores(self, among: Tensor | slice = slice(None)) -> dict[float, float]:
        """The quality on images that choose, by weight, ascending."""
        said, targets = self.said, self.choosing[among]
        return {weight: quality(said[weight][among], targets, self.metric) for weight in sorted(said)}

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
            start = solution.parameters
        if tolerance is not None:
            exact = self.problem(self.space.rows(self.values, torch.float64))
            solution = polish(exact, whole, weight, start, tolerance)
        return self.space.classifier(solution)


def prepare(train: Features, others: Sequence[Features], classes: int | None) -> tuple[list[Features], int, Tensor]:
    """The labelled rows of all; the number of classes; and their labels.

    One label is numbered 0, 1, ... by the classes of train. Of others a class that train lacks is -1, and only the
    first of them, which is tested, has it.
    """
    if train.pairs is None:
        parts, names = number_classes(train, others)
        return [*parts[:2], *(part.labelled() for part in parts[2:])], len(names), names
    assert classes is not None
    return [check_features("several-label", part) for part in (train, *others)], classes, torch.arange(classes)


def targets_of(features: Features, classes: int) -> Tensor:
    """Labels, or (images, classes) for several labels per image."""
    return features.labels if features.pairs is None else features.targets(classes)


def draw_choosing(labels: Tensor, share: float = 0.1, seed: int = 0) -> Tensor:
    """Mask of the training images that choose the ridge; none if every class has one image."""
    return hold_out(labels, share, seed) if len(torch.unique(labels)) < len(labels) else torch.zeros_like(labels) > 0


# --- the probe --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """What a classifier answered about the labelled test images, and how it was fitted."""

    measured: Measured = field(compare=False, repr=False)
    classes: int

    @property
    def accuracy(self) -> float:
        """In percent; of several labels, mean average precision."""
        return self.measured.value

    def to_json(self) -> dict[str, Any]:
        """How it was fitted."""
        values = {each.name: to_json(getattr(self, each.name)) for each in fields(self) if each.name != "measured"}
        return {key: value for key, value in values.items() if key != "weight_by_half" or value}


@dataclass(frozen=True, kw_only=True)
class LinearProbe(ProbeResult):
    """How the ridge was chosen, and how near the classifier is to its optimum (see `logistic.Solution`).

    `chosen_on` says on which images: "held-out" (the features passed for it), "other half" (each half of the test
    images uses the weight that is best on the other half; `weight` is the best on both together), "10% of training",
    or "none", if they were too few.
    """

    weight: float
    weights: tuple[float, ...]
    held_out: tuple[float, ...]  # accuracy by weight on the images that choose; in transfer rougher if far below
    images: tuple[int, int, int]  # numbers: fitted while choosing, choosing, test
    residual: float
    cut_off: bool
    chosen_on: str
    chosen_on_images: int
    weight_by_half: tuple[float, ...] = ()  # for "other half" only


def ask_ridges(
    ridges: Ridges,
    selected: tuple[float, ...],
    tolerance: float | None,
    test: tuple[Features, Features],
    references: Tensor,
    names: Tensor,
    chosen_on: str,
    halves: Tensor | None = None,
) -> LinearProbe:
    """What classifiers with these ridges answer: one, or one for each of two halves of the test images.

    `test` has them as they came, and numbered by the classes of train, whose labels are `names`.
    """
    fitted = {w: ridges.fit(w, tolerance) for w in track(set(selected), "fitting the linear classifier")}
    values, targets = test[1].values.to(ridges.values.device), targets_of(test[1], len(names))
    said = [answers(fitted[weight].logits(values), targets) for weight in selected]
    if halves is not None and len(said) > 1:
        said[0][~halves] = said[1][~halves]
    named = said[0] if targets.ndim == 2 else names.cpu()[said[0]]
    scores, choosing = ridges.scores(), len(ridges.choosing)
    return LinearProbe(
        measured=measure(named, test[0].labelled(), references, len(names), ridges.metric),
        weight=selected[0] if len(selected) == 1 else ridges.best(),
        weights=tuple(scores) or selected,
        held_out=tuple(scores.values()),
        classes=len(names),
        images=(len(ridges.values) - (choosing if halves is None else 0), choosing, len(values)),
        residual=max(classifier.residual for classifier in fitted.values()),
        cut_off=any(classifier.cut_off for classifier in fitted.values()),
        chosen_on=chosen_on if scores else "none",
        chosen_on_images=choosing,
        weight_by_half=selected if len(selected) > 1 else (),
    )


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

    Without `weights` fewer than 100 choosing images choose nothing. Test images of a class that train lacks count as
    wrong. The loss is that of `supancl.probes.logistic`, summed over images, with the bias in the ridge. Of images with
    several labels, of `classes` classes, each class has a regression. A `tolerance` of None is a rough solution.
    """
    if isinstance(choose, str) and choose not in ("halves", "nothing"):
        raise BadInput(f"choose = {choose!r}: give features, 'halves', 'nothing' or None")
    others = [features for features in (test, choose) if isinstance(features, Features)]
    references, held_out, halves, on = train.labelled().labels, None, None, "held-out"
    (train, numbered, *chosen), classes, names = prepare(train, others, classes)
    if chosen:
        held_out = torch.arange(len(train) + len(chosen[0])) >= len(train)
        train = train.and_also(chosen[0])
    elif choose == "halves":
        halves, on = stratified_folds(numbered.labels.cpu(), 2, seed) == 0, "other half"
    elif choose is None:
        held_out, on = draw_choosing(train.labels.cpu(), share, seed), f"{share:.0%} of training"
    dtype = torch.float32 if tolerance is None else torch.float64
    ridges = Ridges(train.values, targets_of(train, classes), device, dtype=dtype)
    ridges.compare(weights, held_out, None if halves is None else (numbered.values, targets_of(numbered, classes)))
    is_halved = halves is not None and bool(ridges.said)
    selected = (ridges.best(~halves), ridges.best(halves)) if halves is not None and is_halved else (ridges.best(),)
    return ask_ridges(ridges, selected, tolerance, (test, numbered), references, names, on, halves)


def transfer(
    train: Features,
    validation: Features,
    test: Features,
    metric: TransferMetric = "top-1",
    weights: tuple[float, ...] = TRANSFER_WEIGHTS,
    tolerance: float = TRANSFER_TOLERANCE,
    device: torch.device | str = "cpu",
    classes: int | None = None,
) -> LinearProbe:
    """The paper's transfer (App. E): choose a ridge on validation, refit on train and validation, test once.

    Minimises the summed cross-entropy + weight * ||parameters||^2, bias included, on raw features. Each weight is
    solved roughly, then those within half a point of the best validation accuracy to `tolerance` (the gradient relative
    to the ridge's gradient). The best of them is used; ties go to the smallest weight, as in an ascending loop that
    keeps the first best. The problem is convex, so a descending path finds the same optima. Images with several labels,
    of `classes` classes, have a regression per class and are judged by mean average precision.
    """
    references = torch.cat([part.labelled().labels for part in (train, validation)])
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
    return ask_ridges(ridges, (best,), tolerance, (test, numbered), references, names, "held-out")
