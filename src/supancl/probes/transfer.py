"""Linear transfer as in App. E: choose a ridge on validation, refit on train and validation, test once."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from supancl.config import to_json
from supancl.errors import BadInput
from supancl.probes.features import Features, check_splits
from supancl.probes.linear import Ridges, answers, prepare, quality, targets_of
from supancl.probes.logistic import LbfgsMemory, solve
from supancl.reporter import track

TransferMetric = Literal["top-1", "mean-per-class"]
WEIGHTS = tuple(10 ** (-6 + 11 * i / 44) for i in range(45))  # 1e-6 to 1e5, evenly spaced logarithms
TOLERANCE = 1e-3
COARSE_TOLERANCE = 0.2
REFINE_WITHIN = 0.5  # points below the best accuracy: only these weights are solved to the tolerance


@dataclass(frozen=True)
class Transfer:
    """Accuracy in percent on the test features (several labels: mAP), and how the ridge's weight was chosen.

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
    answers: Tensor = field(default_factory=lambda: torch.empty(0), compare=False, repr=False)  # as of LinearProbe
    targets: Tensor = field(default_factory=lambda: torch.empty(0), compare=False, repr=False)

    @property
    def is_correct(self) -> Tensor:
        """Of each labelled test image."""
        return self.answers == self.targets

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in to_json(self).items() if key not in ("answers", "targets")}


def accuracy(predictions: Tensor, labels: Tensor, metric: TransferMetric = "top-1") -> float:
    """Accuracy in percent: over all images, or the mean of the classes' accuracies.

    >>> predictions, labels = torch.tensor([0, 0, 0, 0]), torch.tensor([0, 0, 0, 1])
    >>> accuracy(predictions, labels), accuracy(predictions, labels, "mean-per-class")
    (75.0, 50.0)
    """
    if metric == "top-1":
        return quality(predictions, labels)
    if metric != "mean-per-class":
        raise BadInput(f"metric = {metric!r}: must be top-1 or mean-per-class")
    _, row = torch.unique(labels, return_inverse=True)
    return 100 * float((torch.bincount(row, (predictions == labels).double()) / torch.bincount(row)).mean())


def transfer(
    train: Features,
    validation: Features,
    test: Features,
    metric: TransferMetric = "top-1",
    weights: tuple[float, ...] = WEIGHTS,
    tolerance: float = TOLERANCE,
    device: torch.device | str = "cpu",
    classes: int | None = None,
) -> Transfer:
    """Minimise the summed cross-entropy + weight * ||parameters||^2, bias included, on raw features.

    Each weight is solved roughly, then those within half a point of the best validation accuracy to `tolerance` (the
    gradient relative to the ridge's gradient). The best of them is used; ties go to the smallest weight, as in an
    ascending loop that keeps the first best. The problem is convex, so a descending path finds the same optima. Images
    with several labels, of `classes` classes, have a regression per class and are judged by mean average precision.
    """
    if train.pairs is None:
        splits, names = check_splits(train=train, validation=validation, test=test)
        (train, validation, test), classes = splits.values(), len(names)
    else:
        (train, validation, test), classes = prepare(train, [validation, test], classes)
    both, count = train.and_also(validation), len(train)
    measure = quality if train.pairs is not None else partial(accuracy, metric=metric)
    ridges = Ridges(both.values, targets_of(both, classes), device, measure, scales=False)
    held_out = torch.arange(len(both)) >= count
    ridges.compare(weights, held_out, tolerance=COARSE_TOLERANCE)
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
    fitted = ridges.fit(best, tolerance)
    tested = targets_of(test, classes).cpu()
    said = answers(fitted.logits(test.values.to(device)), tested)
    return Transfer(
        measure(said, tested),
        metric,
        best,
        tuple(scores),
        tuple(scores.values()),
        classes,
        (count, len(validation), len(test)),
        fitted.residual,
        ridges.iterations,
        fitted.cut_off,
        said,
        tested,
    )
