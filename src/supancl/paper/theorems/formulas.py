"""The closed forms of Sec. 4 and App. A, as printed unless a comment says otherwise.

The checks call them as `formulas.NAME`, so that a test can replace one by a wrong one and see the checks fail.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from supancl.paper.theorems.world import DTYPE, World

SAMPLING_RATE = -0.5  # an error falls with the sample size to this power


class Multipliers(NamedTuple):
    """lambda1, lambda2 and lambda3 of Eq. 5."""

    lambda1: float
    lambda2: float
    lambda3: float


class Spectra(NamedTuple):
    """The common eigenvectors V, and the eigenvalues of the three inner matrices of Eq. 7."""

    vectors: Tensor
    view: Tensor
    cross: Tensor
    supervised: Tensor


def gap(z2: Tensor, z2_sup: Tensor, alpha: float) -> Tensor:
    """The `const` of Eq. 4. The paper leaves it out; it is constant in p, but differs from sample to sample."""
    return alpha * (1 - alpha) * (z2 - z2_sup).square().sum(-1).mean()


def mix(z2: Tensor, z2_sup: Tensor, alpha: float) -> Tensor:
    """The interpolated target of Eq. 4."""
    return alpha * z2 + (1 - alpha) * z2_sup


def expansion(anchors: Tensor, z2: Tensor, z2_sup: Tensor, alpha: float) -> Tensor:
    """The last line of App. A.1's expansion with its sign put right."""
    return 2 - 2 * alpha * _inner(anchors, z2) - 2 * (1 - alpha) * _inner(anchors, z2_sup)


def printed_expansion(anchors: Tensor, z2: Tensor, z2_sup: Tensor, alpha: float) -> Tensor:
    """The same line as printed: + 2 (1 - alpha), a slip."""
    return 2 - 2 * alpha * _inner(anchors, z2) + 2 * (1 - alpha) * _inner(anchors, z2_sup)


def view_covariance(world: World, w: Tensor) -> Tensor:
    """E[z1 z1'] of Eq. 6."""
    return w @ (world.between + world.within + world.augmentation) @ w.mT


def cross_covariance(world: World, w: Tensor) -> Tensor:
    """E[z2 z1'] of Eq. 6."""
    return w @ (world.between + world.within) @ w.mT


def supervised_covariance(world: World, w: Tensor) -> Tensor:
    """E[z2sup z1'] of Eq. 6."""
    return w @ world.between @ w.mT


def lagrangian(world: World, w: Tensor, wp: Tensor, alpha: float, multipliers: Multipliers) -> Tensor:
    """Eq. 5, with z2 and (M = 1) z2sup distributed as z1."""
    view = view_covariance(world, w)
    return (
        2
        - 2 * alpha * torch.trace(wp.mT @ cross_covariance(world, w))
        - 2 * (1 - alpha) * torch.trace(wp.mT @ supervised_covariance(world, w))
        + (multipliers.lambda1 + multipliers.lambda2) * (torch.trace(view) - 1)
        + multipliers.lambda3 * (torch.trace(wp.mT @ wp @ view) - 1)
    )


def spectra(world: World) -> Spectra:
    """Eq. 7: Lambda_B + Lambda_W + sigma_e^2 I, Lambda_B + Lambda_W and Lambda_B with Lambda_W = I - Lambda_B."""
    between, vectors = torch.linalg.eigh(world.between)
    within = 1 - between
    return Spectra(vectors, between + within + world.noise**2, between + within, between)


def commutator(world: World, w: Tensor) -> Tensor:
    """E[z1 z1'] E[z2sup z1'] - E[z2sup z1'] E[z1 z1']; not in the paper. Zero if W'W commutes with S_B."""
    gram = w.mT @ w
    return (1 + world.noise**2) * w @ (gram @ world.between - world.between @ gram) @ w.mT


def predictor_gradient(world: World, w: Tensor, wp: Tensor, alpha: float, lambda3: float) -> Tensor:
    """dL/dWp of App. A.3."""
    target_term = alpha * w @ w.mT + (1 - alpha) * w @ world.between @ w.mT
    return -2 * target_term + 2 * lambda3 * (1 + world.noise**2) * wp @ w @ w.mT


def encoder_gradient(world: World, w: Tensor, wp: Tensor, alpha: float, lambda3: float) -> Tensor:
    """dL/dW of App. A.4."""
    target_term = alpha * wp.mT @ w + (1 - alpha) * wp.mT @ w @ world.between
    return -2 * target_term + 2 * lambda3 * (1 + world.noise**2) * wp.mT @ wp @ w


def optimal_predictor(world: World, w: Tensor, alpha: float, lambda3: float) -> Tensor:
    """Wp* of Theorem 4.6."""
    between, vectors = torch.linalg.eigh(world.between)
    within = 1 - between
    values = (between + alpha * within) / (between + within + world.noise**2)
    inner: Tensor = (vectors * values) @ vectors.mT
    inverse: Tensor = torch.linalg.pinv(w)
    return w @ inner @ inverse / lambda3


def coefficients(alpha: float) -> tuple[float, float, float]:
    """Of S_B, S_W and S_e in lambda3 Wp* E[z1 z1'] = W (S_B + alpha S_W) W'."""
    return 1.0, alpha, 0.0


def gain(between: Tensor, alpha: float, noise: float, lambda3: float) -> Tensor:
    """The factor by which Wp* scales W v, for an eigenvector v of S_B in the row space of W, by its eigenvalue."""
    return (between + alpha * (1 - between)) / (1 + noise**2) / lambda3


def rank(world: World, alpha: float, rows: int) -> int:
    """Of Wp*: at alpha = 0 only the span of the C - 1 independent class means is left."""
    return min(rows, world.classes - 1) if alpha == 0 else rows


def curvature(world: World, w: Tensor, lambda3: float) -> Tensor:
    """The smallest eigenvalue of the Hessian in Wp; not in the paper. Zero unless W has full row rank."""
    least: Tensor = torch.linalg.eigvalsh(w @ w.mT)[0]
    return 2 * lambda3 * (1 + world.noise**2) * least


def multiplier(world: World, w: Tensor, alpha: float) -> float:
    """The lambda3 > 0 at which Wp* meets the constraint E ||Wp z1||^2 = 1; the paper leaves it open."""
    wp = optimal_predictor(world, w, alpha, 1.0)
    return math.sqrt(torch.trace(wp @ view_covariance(world, w) @ wp.mT).item())


def aligned_sides(wp: Tensor, w: Tensor, by_wp: Tensor, by_w: Tensor) -> tuple[Tensor, Tensor]:
    """The two sides of Wp' dL/dWp = dL/dW W' (App. A.4)."""
    return wp.mT @ by_wp, by_w @ w.mT


def leak(world: World, w: Tensor, wp: Tensor, alpha: float) -> Tensor:
    """dL/dW W' - Wp' dL/dWp when the gradient also flows through z2 and the batch's class mean; not in the paper."""
    identity_minus_wp = torch.eye(len(wp), dtype=DTYPE) - wp
    unsupervised_leak = view_covariance(world, w) - wp @ cross_covariance(world, w)
    return 2 * alpha * unsupervised_leak + 2 * (1 - alpha) * identity_minus_wp @ supervised_covariance(world, w)


def decay_rate(weight_decay: float) -> float:
    """Of ||Wp'Wp - WW'|| along the flow of App. A.4."""
    return 2 * weight_decay


def _inner(left: Tensor, right: Tensor) -> Tensor:
    return (left * right).sum(-1).mean()
