"""One logistic regression per class, does an image have it or not, for all classes at once.

The loss is the sum over classes of the summed binary cross-entropy, with one ridge for all. It falls apart into one
problem per class, but solved together they share every product with the features. The solver is that of
`supancl.probes.logistic`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.probes.logistic import MIN_PROBABILITY, Problem, Slope


class OneVsRest(Problem):
    """Rotated features with targets (images, classes): True if the image has the class. Margins are the logits."""

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
