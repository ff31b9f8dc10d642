"""Linear transfer as in App. E: choose a ridge on validation, refit on train and validation, test once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from supancl.config import to_json
from supancl.errors import BadInput
from supancl.probes.features import Features, check_splits
from supancl.probes.logistic import (
    LbfgsMemory,
    Problem,
    Solution,
    predict,
    predict_unrotated,
    principal_axes,
    rotate,
    solve,
    solve_path,
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
    if not weights or min(weights) <= 0:
        raise BadInput(f"weights = {weights!r}: at least one, and all above 0")
    splits, classes = check_splits(train=train, validation=validation, test=test)
    both = torch.cat([splits["train"].values, splits["validation"].values]).to(device)
    labels = torch.cat([splits["train"].labels, splits["validation"].labels]).to(device)
    axes = principal_axes(both, dtype)
    rows, train_count = rotate(both, axes), len(splits["train"].labels)
    del both
    problem = Problem(rows[:train_count], labels[:train_count], len(classes))
    scores, starts, iterations = {}, {}, 0

    def record(solution: Solution) -> int:
        scores[solution.weight] = accuracy(
            predict(solution.parameters, rows[train_count:]), labels[train_count:], metric
        )
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
    whole = Problem(rows, labels, len(classes))
    with track_task("fitting the classifier"):
        final = solve(whole, best_weight, starts[best_weight], memory=memory, tolerance=tolerance)
    predictions = predict_unrotated(final.parameters, axes, splits["test"].values.to(device)).cpu()
    ascending = sorted(scores)
    return Transfer(
        accuracy(predictions, splits["test"].labels.cpu(), metric),
        metric,
        best_weight,
        tuple(ascending),
        tuple(scores[weight] for weight in ascending),
        len(classes),
        (train_count, len(labels) - train_count, len(predictions)),
        final.residual,
        iterations + final.iterations,
        final.cut_off,
        predictions == splits["test"].labels.cpu(),
    )
