"""What a linear classifier learns, and by which figure it is judged: one label per image, or several."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.probes.logistic import MIN_PROBABILITY, Problem, Slope
from supancl.probes.precision import mean_average_precision


class Goal(Protocol):
    """Targets are labels (images,), or (images, classes) for several labels."""

    def problem(self, rows: Tensor, targets: Tensor) -> Problem:
        """What is to be minimised on these images."""

    def answers(self, logits: Tensor) -> Tensor:
        """What the logits (classes, images) say about each image, in the order of the images."""

    def quality(self, answers: Tensor, targets: Tensor) -> float:
        """How good the answers are, in percent."""


@dataclass(frozen=True)
class OneLabel:
    """Multinomial regression; an answer is the number of a class, and `measure` its accuracy."""

    classes: int
    measure: Callable[[Tensor, Tensor], float]

    def problem(self, rows: Tensor, targets: Tensor) -> Problem:
        return Problem(rows, targets, self.classes)

    def answers(self, logits: Tensor) -> Tensor:
        return logits.argmax(0)

    def quality(self, answers: Tensor, targets: Tensor) -> float:
        return self.measure(answers, targets)


@dataclass(frozen=True)
class SeveralLabels:
    """A regression per class; an answer is a score for every class, and its figure mean average precision."""

    def problem(self, rows: Tensor, targets: Tensor) -> Problem:
        return OneVsRest(rows, targets)

    def answers(self, logits: Tensor) -> Tensor:
        return logits.T

    def quality(self, answers: Tensor, targets: Tensor) -> float:
        return mean_average_precision(answers, targets)


class OneVsRest(Problem):
    """One logistic regression per class, does an image have it or not, for all classes at once.

    Rotated features with targets (images, classes): True if the image has the class. Margins are the logits. The loss
    is the sum over classes of the summed binary cross-entropy, with one ridge for all. It falls apart into one problem
    per class, but solved together they share every product with the features.
    """

    def __init__(self, rows: Tensor, targets: Tensor) -> None:
        super().__init__(rows, torch.zeros(len(rows), dtype=torch.long), targets.shape[1])
        self.signs = 2 * targets.T.to(rows) - 1  # (classes, images): 1 or -1
        self.loss_at_zero = targets.numel() * math.log(2)

    def margins(self, parameters: Tensor) -> Tensor:
        return parameters @ self.rows.T

    def slope(self, margins: Tensor) -> Slope:
        wrong = margins * -self.signs  # above 0 where the class is predicted wrongly
        loss = -float(F.logsigmoid(-wrong.double()).sum())
        # as the probability of the wrong answer: 1 - p would lose all digits where p is nearly 1
        probability = F.threshold(wrong.sigmoid_(), MIN_PROBABILITY, 0.0, inplace=True)
        return Slope(loss, probability.mul_(self.signs).neg_())

    def curvature_along(self, weighted: Tensor, along: Tensor) -> float:
        # the residual is p or -p, and the curvature p (1 - p)
        return float(((weighted * along).abs() - weighted.square()).sum(dtype=torch.float64))

    def hessian_product(self, residual: Tensor, direction: Tensor) -> Tensor:
        probability = residual.abs()
        return self.gradient(self.margins(direction).mul_(probability * (1 - probability)))
