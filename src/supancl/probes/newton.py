"""From a solution in single precision to the optimum in double precision, by Newton's method.

`logistic.solve` stops where its tolerance, or single precision, ends. What is left is a few Newton steps: gradient,
objective and parameters are of double precision, so that the optimum is the true one. The Newton system is solved by
conjugate gradients in single precision: an error there makes a step a little worse, and no result.
"""

from __future__ import annotations

import torch
from torch import Tensor

from supancl.probes.logistic import Problem, Solution, find_step_length

TOLERANCE = 1e-4  # see `polish`
MOST_STEPS = 100
MOST_PRODUCTS = 3000  # of the Hessian with a vector, over all steps; encoders' features take tens


def polish(
    problem: Problem,
    single: Problem,
    weight: float,
    start: Tensor,
    tolerance: float = TOLERANCE,
    max_steps: int = MOST_STEPS,
    max_products: int = MOST_PRODUCTS,
) -> Solution:
    """The optimum at one weight, until the gradient is below `tolerance` of the ridge's gradient.

    `problem` has double precision, `single` holds the same rows in single precision. Parameters then are within
    `tolerance` of the optimum, relative to their norm, and answers differ for about so many images. `cut_off` says
    that the steps ran out before.
    """
    parameters = start.to(problem.rows.dtype)
    margins = problem.margins(parameters)
    loss, residual = problem.slope(margins)
    products, relative, converged = 0, float("inf"), False
    for step in range(max_steps + 1):
        gradient = problem.gradient(residual).add_(parameters, alpha=2 * weight)
        relative = float(gradient.norm()) / max(2 * weight * float(parameters.norm()), 1e-300)
        converged = relative <= tolerance
        if converged or step == max_steps or products >= max_products:
            break
        wanted = min(0.3, max(0.01, 0.3 * tolerance / relative))
        direction, used = newton_direction(single, residual, gradient, weight, wanted, max_products - products)
        products += used
        slope, squared = float((direction * gradient).sum()), float(direction.square().sum())
        if not slope < 0:
            break
        ridge = 2 * weight * float((parameters * direction).sum()), 2 * weight * squared
        length, margins, (loss, residual) = find_step_length(problem, margins, problem.margins(direction), ridge, slope)
        parameters = parameters + length * direction
        if length * squared**0.5 <= torch.finfo(parameters.dtype).eps * float(parameters.norm()):
            converged = True  # double precision has no better parameters
            break
    objective = loss + weight * float(parameters.square().sum())
    return Solution(weight, parameters, margins, objective, relative, products, not converged)


def newton_direction(
    problem: Problem, residual: Tensor, gradient: Tensor, weight: float, wanted: float, most: int
) -> tuple[Tensor, int]:
    """- H^-1 gradient to the relative residual `wanted`, by conjugate gradients; and the products that it took."""
    slopes = residual.to(problem.rows.dtype)
    diagonal = problem.curvature(slopes).add_(2 * weight)
    size = gradient.norm()
    rest = (gradient / -size).to(problem.rows.dtype)
    found = torch.zeros_like(rest)
    scaled = rest / diagonal
    along, energy = scaled.clone(), _dot(rest, scaled)
    used = 0
    while used < most:
        used += 1
        product = problem.hessian_product(slopes, along).add_(along, alpha=2 * weight)
        curvature = _dot(along, product)
        if not curvature > 0:  # rounding has spoilt it
            break
        found.add_(along, alpha=energy / curvature)
        rest.sub_(product, alpha=energy / curvature)
        if float(rest.norm()) <= wanted:
            break
        scaled = rest / diagonal
        before, energy = energy, _dot(rest, scaled)
        along.mul_(energy / before).add_(scaled)
    return found.to(gradient.dtype) * size, used


def _dot(one: Tensor, other: Tensor) -> float:
    return float((one * other).sum(dtype=torch.float64))
