"""Multinomial logistic regression with a ridge, solved to the optimum for many strengths of the ridge.

The penalised loss is the summed cross-entropy + weight * ||parameters||^2. The bias is a parameter like any other,
with a column of ones. The loss is strictly convex, so the order of the weights and the starting point affect only the
speed:

- the features are rotated once onto their principal axes. Loss and ridge do not change under a rotation, and the
  Hessian becomes nearly diagonal, so its diagonal is a good preconditioner for L-BFGS;
- logits are linear in the parameters: once the logits of the search direction are known, a line search needs no matrix
  product. An iteration needs two, however long the search is;
- the optimum is a smooth function of log(weight). The path runs from the strongest ridge to the weakest and starts
  each solution from an extrapolation of the last ones, of the order with the lowest penalised loss;
- L-BFGS keeps curvature pairs of the cross-entropy only, so they can be used for the next weight too.

Arrays are (classes, images) and (classes, axes): products in that order are up to nine times faster for few classes.
Residuals are computed from logits relative to the true class: in float32, 1 - p would lose all digits where tiny
weights on separable features make p nearly 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# binomial weights of polynomial extrapolation from equally spaced points, the latest first
EXTRAPOLATION_WEIGHTS = ((1.0,), (2.0, -1.0), (3.0, -3.0, 1.0), (4.0, -6.0, 4.0, -1.0))

MIN_PROBABILITY = 1e-24  # smaller ones become 0: below rounding, and their products would be slow subnormals
MAX_LENGTHS = 40  # step lengths per line search
POLISH_TOLERANCE = 1e-4  # tolerance of `polish`; its limits follow
NEWTON_STEPS = 100
NEWTON_PRODUCTS = 3000  # Hessian-vector products over all steps; features of encoders need tens


def append_ones(values: Tensor) -> Tensor:
    return torch.cat([values, values.new_ones(len(values), 1)], 1)


class Slope(NamedTuple):
    """Summed cross-entropy, and its derivative with respect to the logits (p - 1 at the true class, p elsewhere)."""

    loss: float
    residual: Tensor


class Problem:
    """Rotated features with labels 0, 1, ...: everything that does not depend on the ridge's weight."""

    def __init__(self, rows: Tensor, labels: Tensor, classes: int) -> None:
        self.rows, self.labels, self.classes = rows, labels.to(rows.device)[None], classes
        self.loss_at_zero = len(rows) * math.log(classes)  # the loss with all parameters 0
        mean = rows.mean(0)
        squares = sum(float((chunk - mean).square().sum(dtype=torch.float64)) for chunk in rows.split(8192))
        self.total_deviation = (squares / max(len(rows), 1)) ** 0.5  # root of S_T

    def zero(self) -> Tensor:
        return self.rows.new_zeros(self.classes, self.rows.shape[1])

    def margins(self, parameters: Tensor) -> Tensor:
        """Logits relative to the logit of the true class."""
        logits = parameters @ self.rows.T
        return logits.sub_(logits.gather(0, self.labels))

    def slope(self, margins: Tensor) -> Slope:
        top = margins.amax(0, keepdim=True)  # at least 0, the margin of the true class
        probability = (margins - top).exp_().scatter_(0, self.labels, 0.0)
        probability = F.threshold(probability, MIN_PROBABILITY, 0.0, inplace=True)
        others, true_class = probability.sum(0, keepdim=True), (-top).exp()
        loss = (top.double() + torch.log1p((true_class - 1 + others).double())).sum()
        probability /= true_class + others
        return Slope(float(loss), probability.scatter_(0, self.labels, -others / (true_class + others)))

    def gradient(self, residual: Tensor) -> Tensor:
        return residual @ self.rows

    def curvature(self, residual: Tensor, chunk: int = 4096) -> Tensor:
        """The diagonal of the Hessian of the cross-entropy."""
        probability = residual.abs()
        probability = probability * (1 - probability)
        diagonal = self.zero()
        for start in range(0, len(self.rows), chunk):
            diagonal.addmm_(probability[:, start : start + chunk], self.rows[start : start + chunk].square())
        return diagonal

    def curvature_along(self, weighted: Tensor, along: Tensor) -> float:
        """The second derivative of the cross-entropy along margins; `weighted` is residual * along."""
        return float(((weighted * along).sum(0) - weighted.sum(0).square()).sum(dtype=torch.float64))

    def hessian_product(self, residual: Tensor, direction: Tensor) -> Tensor:
        """The Hessian of the cross-entropy times a direction."""
        along = self.margins(direction)  # 0 at the true class, whose residual is p - 1
        along.mul_(residual)
        mean = along.sum(0, keepdim=True)
        along.addcmul_(residual, mean, value=-1).scatter_add_(0, self.labels, -mean)
        return self.gradient(along)


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


class Pair(NamedTuple):
    """A step, the change of the gradient over it (including the ridge's), and their product."""

    step: Tensor
    change: Tensor
    product: Tensor


@dataclass
class LbfgsMemory:
    """L-BFGS pairs of a step and the change of the gradient; the ridge contributes 2 * weight * step to the change."""

    size: int = 10
    weight: float = 0.0
    pairs: list[Pair] = field(default_factory=list)

    def add(self, step: Tensor, change: Tensor) -> None:
        """Add a step and the change of the cross-entropy's gradient over it."""
        step, change = step.flatten(), torch.add(change, step, alpha=2 * self.weight).flatten()
        self.pairs = [*self.pairs, Pair(step, change, torch.dot(step, change))][-self.size :]

    def move(self, weight: float, factor: float = 1.0) -> None:
        """Adapt the pairs to another weight, where the cross-entropy's curvature is `factor` times as large."""
        for step, change, _ in self.pairs:
            change.mul_(factor).add_(step, alpha=2 * (weight - factor * self.weight))
        self.pairs = [pair._replace(product=torch.dot(pair.step, pair.change)) for pair in self.pairs]
        self.weight = weight

    def direction(self, gradient: Tensor, diagonal: Tensor) -> Tensor:
        """- H gradient by the two-loop recursion around the inverse diagonal."""
        result, diagonal = gradient.flatten().clone(), diagonal.flatten()
        coefficients = []
        for step, change, product in reversed(self.pairs):
            coefficients.append(torch.dot(step, result) / product)
            result.addcmul_(change, coefficients[-1], value=-1)
        result /= diagonal
        if self.pairs:
            last = self.pairs[-1]
            result *= last.product / torch.dot(last.change / diagonal, last.change)
        for (step, change, product), coefficient in zip(self.pairs, reversed(coefficients), strict=True):
            result.addcmul_(step, coefficient - torch.dot(change, result) / product)
        return result.neg_().view_as(gradient)


class Solution(NamedTuple):
    """A solution and its distance from the optimum: `residual` is ||gradient|| / ||gradient of the ridge||.

    The penalised loss is 2 weight-strongly convex, so the residual bounds ||parameters - optimum|| / ||parameters||,
    and its square bounds (penalized_loss - minimum) / (weight ||parameters||^2).

    A small weight makes these bounds loose: a residual of thousands is common where the ridge hardly matters. So
    `cut_off` has another criterion: the iterations ran out, and over the last tenth of them the penalised loss still
    fell by more than tolerance^2 / 10 of itself. A solution that reached its tolerance has about that error (features
    of encoders need tens or hundreds of the 1000 iterations); one that was cut off has a larger one and may predict
    other classes than the optimum. A solution that precision ended (see `solve`) is not cut off.
    """

    weight: float
    parameters: Tensor  # (classes, r), on the problem's axes
    margins: Tensor
    penalized_loss: float
    residual: float
    iterations: int
    cut_off: bool = False


def find_step_length(
    problem: Problem, margins: Tensor, along: Tensor, ridge: tuple[float, float], slope: float
) -> tuple[float, Tensor, Slope]:
    """Minimise along the direction, until 30% of the slope is left, by Newton's method inside a bracket.

    `ridge` holds the ridge's slope at 0 and its curvature along the direction. If the memory is of another problem
    (a refit on more images) the direction may be a million times too long: it is shortened by factors of ten.
    """
    guess, low, high = 1.0, 0.0, float("inf")
    for _ in range(MAX_LENGTHS):
        length = guess
        new_margins = torch.add(margins, along, alpha=length)
        new_slope = problem.slope(new_margins)
        weighted = new_slope.residual * along  # `along` is 0 at the true class, whose residual is p - 1
        first = float(weighted.sum(dtype=torch.float64)) + ridge[0] + length * ridge[1]
        if abs(first) <= 0.3 * abs(slope):
            break
        second = problem.curvature_along(weighted, along) + ridge[1]
        low, high = (length, high) if first < 0 else (low, length)
        guess = length - first / second if second > 0 else float("inf")
        if not low < guess < high:
            guess = 2 * length if high == float("inf") else (low + high) / 2 if low > 0 else high / 10
        guess = min(guess, 10 * length)
    return length, new_margins, new_slope  # all of the same point


def solve(
    problem: Problem,
    weight: float,
    start: Tensor | None = None,
    margins: Tensor | None = None,
    memory: LbfgsMemory | None = None,
    tolerance: float = 1e-2,
    max_iterations: int = 1000,
) -> Solution:
    """Solve for one weight, until the gradient is below `tolerance` of the ridge's gradient.

    If the deviation of the features is below 1, the tolerance is multiplied by it: a larger error of the bias would
    outweigh them. If the ridge is too weak for this criterion (tiny weights on overlapping classes), the solver stops
    when the next step promises less than tolerance^2 / 10,000, or machine epsilon, of the penalised loss or of the gain
    so far, whichever is smaller: a strong ridge gains next to nothing, and still changes predictions.
    """
    eps = torch.finfo(problem.rows.dtype).eps
    tolerance *= min(1.0, max(problem.total_deviation, 10 * eps))
    memory = LbfgsMemory(weight=weight) if memory is None else memory
    parameters = problem.zero() if start is None else start.clone()
    margins = problem.margins(parameters) if margins is None else margins
    loss, residual = problem.slope(margins)
    loss_gradient = problem.gradient(residual)
    diagonal = problem.curvature(residual).add_(2 * weight)
    late = max_iterations - max(1, max_iterations // 10)
    before_last, ran_out = float("inf"), False
    for iteration in range(max_iterations + 1):
        gradient = torch.add(loss_gradient, parameters, alpha=2 * weight)
        size = float(parameters.norm())
        relative = float(gradient.norm()) / max(2 * weight * size, 1e-300)
        if iteration == late:
            before_last = loss + weight * size**2
        ran_out = iteration == max_iterations and relative > tolerance
        if relative <= tolerance or iteration == max_iterations:
            break
        direction = memory.direction(gradient, diagonal)
        slope = float((direction * gradient).sum(dtype=torch.float64))
        if not slope < 0:  # rounding errors in the pairs
            memory.pairs = []
            direction = -gradient / diagonal
            slope = float((direction * gradient).sum(dtype=torch.float64))
        penalized_loss = loss + weight * size**2
        gained = max(problem.loss_at_zero - penalized_loss, eps * problem.loss_at_zero)
        if -slope / 2 <= max(tolerance**2 / 1e4, eps) * min(penalized_loss, gained):
            break
        squared = float(direction.square().sum(dtype=torch.float64))
        ridge = 2 * weight * float((parameters * direction).sum(dtype=torch.float64)), 2 * weight * squared
        along = problem.margins(direction)
        length, margins, (loss, residual) = find_step_length(problem, margins, along, ridge, slope)
        before, loss_gradient = loss_gradient, problem.gradient(residual)
        memory.add(direction.mul_(length), loss_gradient - before)
        parameters += direction
        if length * squared**0.5 <= eps * size:  # limit of precision
            break
    penalized_loss = loss + weight * float(parameters.square().sum(dtype=torch.float64))
    cut_off = ran_out and before_last - penalized_loss > tolerance**2 / 10 * penalized_loss
    return Solution(weight, parameters, margins, penalized_loss, relative, iteration, cut_off)


def solve_path(
    problem: Problem, weights: Sequence[float], tolerance: float = 1e-2, max_iterations: int = 1000
) -> Iterator[Solution]:
    """The optima at geometrically spaced weights, from the strongest ridge to the weakest.

    >>> rows = append_ones(torch.tensor([[0.0], [1.0], [2.0], [3.0]]))
    >>> problem = Problem(rows, torch.tensor([0, 0, 1, 1]), 2)
    >>> [round(float(solution.parameters.norm()), 2) for solution in solve_path(problem, (1.0, 10.0))]
    [0.11, 0.55]
    """
    past: list[Solution] = []
    memory = LbfgsMemory()
    previous_residual = 0.0
    for weight in sorted(weights, reverse=True):
        start, margins = _extrapolate(problem, weight, past)
        mean_residual = float(problem.slope(margins).residual.abs().mean())
        memory.move(weight, mean_residual / previous_residual if previous_residual > 0 else 1.0)
        solution = solve(problem, weight, start, margins, memory, tolerance, max_iterations)
        previous_residual = float(problem.slope(solution.margins).residual.abs().mean())
        past = [solution, *past[: len(EXTRAPOLATION_WEIGHTS) - 1]]
        yield solution


def _extrapolate(problem: Problem, weight: float, past: Sequence[Solution]) -> tuple[Tensor, Tensor]:
    """The start with the lowest penalised loss among extrapolations of order 0 to 3, and its margins."""
    if not past:
        return problem.zero(), problem.margins(problem.zero())
    lowest = float("inf")
    for factors in EXTRAPOLATION_WEIGHTS[: len(past)]:
        pairs = list(zip(factors, past, strict=False))
        guess = torch.stack([factor * point.parameters for factor, point in pairs]).sum(0)
        margins = torch.stack([factor * point.margins for factor, point in pairs]).sum(0)
        penalized_loss = problem.slope(margins).loss + weight * float(guess.square().sum(dtype=torch.float64))
        if penalized_loss < lowest:
            lowest, start, its_margins = penalized_loss, guess, margins
    return start, its_margins


# --- from single to double precision ----------------------------------------------------------------------------------


def polish(
    problem: Problem, single: Problem, weight: float, start: Tensor, tolerance: float = POLISH_TOLERANCE
) -> Solution:
    """Refine a solution in double precision, until the gradient is below `tolerance` of the ridge's gradient.

    `problem` is in double precision, `single` holds the same rows in single precision. The parameters are then within
    `tolerance` of the optimum, relative to their norm, and about that fraction of predictions may differ. `cut_off`
    means that the steps ran out before.
    """
    parameters = start.to(problem.rows.dtype)
    margins = problem.margins(parameters)
    loss, residual = problem.slope(margins)
    products, relative, converged = 0, float("inf"), False
    for step in range(NEWTON_STEPS + 1):
        gradient = problem.gradient(residual).add_(parameters, alpha=2 * weight)
        relative = float(gradient.norm()) / max(2 * weight * float(parameters.norm()), 1e-300)
        converged = relative <= tolerance
        if converged or step == NEWTON_STEPS or products >= NEWTON_PRODUCTS:
            break
        required_residual = min(0.3, max(0.01, 0.3 * tolerance / relative))
        direction, products_used = newton_direction(
            single, residual, gradient, weight, required_residual, NEWTON_PRODUCTS - products
        )
        products += products_used
        slope, squared = float((direction * gradient).sum()), float(direction.square().sum())
        if not slope < 0:
            break
        ridge = 2 * weight * float((parameters * direction).sum()), 2 * weight * squared
        length, margins, (loss, residual) = find_step_length(problem, margins, problem.margins(direction), ridge, slope)
        parameters = parameters + length * direction
        if length * squared**0.5 <= torch.finfo(parameters.dtype).eps * float(parameters.norm()):
            converged = True  # limit of double precision
            break
    penalized_loss = loss + weight * float(parameters.square().sum())
    return Solution(weight, parameters, margins, penalized_loss, relative, products, not converged)


def newton_direction(
    problem: Problem, residual: Tensor, gradient: Tensor, weight: float, required_residual: float, max_products: int
) -> tuple[Tensor, int]:
    """- H^-1 gradient up to a relative residual, by conjugate gradients; and the number of products used."""
    slopes = residual.to(problem.rows.dtype)
    diagonal = problem.curvature(slopes).add_(2 * weight)
    size = gradient.norm()
    remainder = (gradient / -size).to(problem.rows.dtype)
    direction = torch.zeros_like(remainder)
    scaled = remainder / diagonal
    along, energy = scaled.clone(), _dot(remainder, scaled)
    products_used = 0
    while products_used < max_products:
        products_used += 1
        product = problem.hessian_product(slopes, along).add_(along, alpha=2 * weight)
        curvature = _dot(along, product)
        if not curvature > 0:  # rounding errors
            break
        direction.add_(along, alpha=energy / curvature)
        remainder.sub_(product, alpha=energy / curvature)
        if float(remainder.norm()) <= required_residual:
            break
        scaled = remainder / diagonal
        before, energy = energy, _dot(remainder, scaled)
        along.mul_(energy / before).add_(scaled)
    return direction.to(gradient.dtype) * size, products_used


def _dot(a: Tensor, b: Tensor) -> float:
    return float((a * b).sum(dtype=torch.float64))
