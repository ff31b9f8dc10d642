"""Logistic regression from single to double precision: a few Newton steps after `logistic.solve`.

`solve` stops at its tolerance or at the limit of single precision. Here gradient, loss and parameters are in double
precision. The Newton system is solved by conjugate gradients in single precision, whose errors make a step slightly
worse and do not affect the result.
"""

from __future__ import annotations

import torch
from torch import Tensor

from supancl.probes.logistic import Problem, Solution, find_step_length

POLISH_TOLERANCE = 1e-4  # tolerance of `polish`; its limits follow
NEWTON_STEPS = 100
NEWTON_PRODUCTS = 3000  # Hessian-vector products over all steps; features of encoders need tens


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
