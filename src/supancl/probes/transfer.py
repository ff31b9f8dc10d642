"""Linear transfer as in App. E: choose a ridge on validation, refit on train and validation, test once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from supancl.config import to_json
from supancl.errors import BadInput
from supancl.probes.features import Features, check_splits
from supancl.probes.goals import Goal, OneLabel
from supancl.probes.logistic import (
    LbfgsMemory,
    Solution,
    principal_axes,
    rotate,
    solve,
    solve_path,
    unrotated_logits,
)
from supancl.reporter import track, track_task

TransferMetric = Literal["top-1", "mean-per-class"]
WEIGHTS = tuple(10 ** (-6 + 11 * i / 44) for i in range(45))  # 1e-6 to 1e5, evenly spaced logarithms
TOLERANCE = 0.05
COARSE_FACTOR = 4  # the first tolerance is this many times larger
REFINE_WITHIN = 0.5  # points below the best accuracy: only these weights are solved to the tolerance


@dataclass(frozen=True)
class Transfer:
    """Accuracy in percent on the test features, and how the ridge's weight was chosen.

    `validation` holds an accuracy for each of `weights` (ascending), of a rougher solution if it is far below the best.
    `residual` and `cut_off` are of the tested classifier (see `logistic.Solution`); `iterations` is the sum over all
    solutions.
    """

    accuracy: float
    metric: str
    weight: float
    weights: tuple[float, ...]
    validation: tuple[float, ...]
    classes: int
    images: tuple[int, int, int]
    residual: float
    iterations: int
    cut_off: bool = False
    is_correct: Tensor | None = field(default=None, compare=False, repr=False)  # of each labelled test image

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in to_json(self).items() if key != "is_correct"}


def accuracy(predictions: Tensor, labels: Tensor, metric: TransferMetric = "top-1") -> float:
    """Accuracy in percent: over all images, or the mean of the classes' accuracies.

    >>> predictions, labels = torch.tensor([0, 0, 0, 0]), torch.tensor([0, 0, 0, 1])
    >>> accuracy(predictions, labels), accuracy(predictions, labels, "mean-per-class")
    (75.0, 50.0)
    """
    is_correct = (predictions == labels).double()
    if metric == "top-1":
        return 100 * float(is_correct.mean())
    if metric != "mean-per-class":
        raise BadInput(f"metric = {metric!r}: must be top-1 or mean-per-class")
    _, row = torch.unique(labels, return_inverse=True)
    return 100 * float((torch.bincount(row, is_correct) / torch.bincount(row)).mean())


def transfer(
    train: Features,
    validation: Features,
    test: Features,
    metric: TransferMetric = "top-1",
    weights: tuple[float, ...] = WEIGHTS,
    tolerance: float = TOLERANCE,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Transfer:
    """Minimise the summed cross-entropy + weight * ||parameters||^2, bias included, on raw features.

    Each weight is solved to 4 * `tolerance` (the gradient relative to the ridge's gradient), then those within half a
    point of the best validation accuracy to `tolerance`. The best of them is used; ties go to the smallest weight, as
    in an ascending loop that keeps the first best. The problem is convex, so a descending path finds the same optima.
    Memory: a copy of the features in `dtype`, on their principal axes, and some arrays of images x classes.
    """
    splits, classes = check_splits(train=train, validation=validation, test=test)
    goal = OneLabel(len(classes), partial(accuracy, metric=metric))
    predictions, about = fit_on_validation(list(splits.values()), goal, weights, tolerance, dtype, device)
    labels = splits["test"].labels.cpu()
    percent, is_correct = accuracy(predictions, labels, metric), predictions == labels
    return Transfer(percent, metric, classes=len(classes), is_correct=is_correct, **about)


def fit_on_validation(
    splits: Sequence[Features],
    goal: Goal,
    weights: tuple[float, ...] = WEIGHTS,
    tolerance: float = TOLERANCE,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> tuple[Tensor, dict[str, Any]]:
    """Answers about the test images of the classifier that `transfer` describes, and how it was chosen.

    `splits` are train, validation and test; their labels are the goal's targets.
    """
    train, validation, test = splits
    if not weights or min(weights) <= 0:
        raise BadInput(f"weights = {weights!r}: at least one, and all above 0")
    both = torch.cat([train.values, validation.values]).to(device)
    targets = torch.cat([train.labels, validation.labels]).to(device)
    axes = principal_axes(both, dtype)
    rows, train_count = rotate(both, axes), len(train.labels)
    del both
    problem = goal.problem(rows[:train_count], targets[:train_count])
    scores, starts, iterations = {}, {}, 0

    def record(solution: Solution) -> int:
        answers = goal.answers(solution.parameters @ rows[train_count:].T)
        scores[solution.weight] = goal.quality(answers, targets[train_count:])
        starts[solution.weight] = solution.parameters
        return solution.iterations

    path = solve_path(problem, weights, COARSE_FACTOR * tolerance)
    for solution in track(path, "choosing the ridge of a classifier", len(weights)):
        iterations += record(solution)
    candidates = [weight for weight, score in scores.items() if score >= max(scores.values()) - REFINE_WITHIN]
    memory = LbfgsMemory(20)
    for weight in track(candidates, "comparing the best ridges"):
        memory.move(weight)
        iterations += record(solve(problem, weight, starts[weight], memory=memory, tolerance=tolerance))
    best_weight = min(candidates, key=lambda weight: (-scores[weight], weight))
    memory.move(best_weight)  # pairs of the train split also fit train and validation
    whole = goal.problem(rows, targets)
    with track_task("fitting the classifier"):
        final = solve(whole, best_weight, starts[best_weight], memory=memory, tolerance=tolerance)
    chunks = unrotated_logits(final.parameters, axes, test.values.to(device))
    ascending = sorted(scores)
    return torch.cat([goal.answers(logits.T) for logits in chunks]).cpu(), {
        "weight": best_weight,
        "weights": tuple(ascending),
        "validation": tuple(scores[weight] for weight in ascending),
        "images": (train_count, len(targets) - train_count, len(test.labels)),
        "residual": final.residual,
        "iterations": iterations + final.iterations,
        "cut_off": final.cut_off,
    }
