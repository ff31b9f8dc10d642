"""Linear transfer as in App. E: a ridge chosen on validation, a refit on train and validation, one test."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from supancl.errors import BadInput
from supancl.evaluate.checks import check_splits
from supancl.evaluate.features import Features
from supancl.evaluate.logistic import Problem, onto_axes, path, predicted, principal_axes, solve

TransferMetric = Literal["top-1", "mean-per-class"]
WEIGHTS = tuple(10 ** (-6 + 11 * i / 44) for i in range(45))  # 1e-6 to 1e5, evenly spaced logarithms
TOLERANCE = 0.05


@dataclass(frozen=True)
class Transfer:
    """Accuracy in percent on the test features, and how the ridge's weight was chosen.

    `validation` holds one accuracy for each of `weights` (ascending); `residual` is the largest of the 46 solutions
    (see `logistic.Solution`), `iterations` their sum.
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

    def to_json(self) -> dict[str, Any]:
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


def accuracy(answers: Tensor, labels: Tensor, metric: TransferMetric = "top-1") -> float:
    """In percent: over all images, or the mean over the classes of the accuracy in each.

    >>> answers, labels = torch.tensor([0, 0, 0, 0]), torch.tensor([0, 0, 0, 1])
    >>> accuracy(answers, labels), accuracy(answers, labels, "mean-per-class")
    (75.0, 50.0)
    """
    right = (answers == labels).double()
    if metric == "top-1":
        return 100 * float(right.mean())
    if metric != "mean-per-class":
        raise BadInput(f"metric = {metric!r}: must be top-1 or mean-per-class")
    _, row = torch.unique(labels, return_inverse=True)
    return 100 * float((torch.bincount(row, right) / torch.bincount(row)).mean())


def transfer(
    train: Features, validation: Features, test: Features, metric: TransferMetric = "top-1",
    weights: tuple[float, ...] = WEIGHTS, tolerance: float = TOLERANCE, dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Transfer:
    """Summed cross-entropy + weight * ||parameters||^2, bias included, on raw features.

    Each weight's optimum is found to `tolerance` (the gradient relative to the ridge's gradient), the one of highest
    validation accuracy is taken, ties going to the smallest weight as in a loop upwards that replaces its best only
    by a better one. The problem is convex: a path warm-started downwards ends at the same optima as one upwards.
    Memory: the features once more in `dtype`, on their principal axes, and some arrays of images x classes.
    """
    if not weights or min(weights) <= 0:
        raise BadInput(f"weights = {weights!r}: at least one, and all above 0")
    splits, classes = check_splits(train=train, validation=validation, test=test)
    both = torch.cat([splits["train"].values, splits["validation"].values]).to(device)
    labels = torch.cat([splits["train"].labels, splits["validation"].labels]).to(device)
    axes = principal_axes(both)
    rows, fitted = onto_axes(both, axes, dtype), len(splits["train"].labels)
    del both
    problem = Problem(rows[:fitted], labels[:fitted], len(classes))
    found, best, worst, iterations = {}, None, 0.0, 0
    for solution in path(problem, weights, tolerance):
        score = accuracy(predicted(solution.parameters, rows[fitted:]), labels[fitted:], metric)
        found[solution.weight] = score
        worst, iterations = max(worst, solution.residual), iterations + solution.iterations
        if best is None or score >= best[0]:  # downwards, so that equal goes to the smaller weight
            best = score, solution
    assert best is not None
    chosen = best[1]
    whole = Problem(rows, labels, len(classes))
    final = solve(whole, chosen.weight, chosen.parameters, tolerance=tolerance)
    held = onto_axes(splits["test"].values.to(device), axes, dtype)
    answers = predicted(final.parameters, held).cpu()
    return Transfer(
        accuracy(answers, splits["test"].labels, metric), metric, chosen.weight, tuple(sorted(found)),
        tuple(found[weight] for weight in sorted(found)), len(classes),
        (fitted, len(labels) - fitted, len(answers)), max(worst, final.residual), iterations + final.iterations,
    )
