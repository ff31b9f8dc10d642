"""The checks of Theorem 4.6: the optimal predictor for a given W and lambda3."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from supancl.paper.theorems import formulas
from supancl.paper.theorems.checks import EXACT, Check, Settings, compare, estimates, sampling_slope, worst
from supancl.paper.theorems.expectation import measure_covariances
from supancl.paper.theorems.world import (
    DTYPE,
    Sample,
    draw_sample,
    exact_sample,
    features,
    gradients,
    lagrangian,
    make_loss,
    make_weights,
    make_world,
    norm_squared,
)

ALPHAS = (0.0, 0.2, 0.5, 0.8, 1.0)
NOISES = (0.2, 0.5, 1.0)
MULTIPLIERS = (0.5, 1.0, 2.0)
CLASSES, WIDTH, ROWS = 4, 8, 5  # more rows than C - 1, so that a rank of C - 1 is a finding
RANK_THRESHOLD = 1e-8  # relative to the largest singular value; smaller ones count as zero
STATEMENT = "Thm 4.6"


def hessian(sample: Sample, w: Tensor, lambda3: float, symmetric: bool = False) -> Tensor:
    """Second derivatives of the shipped loss in Wp, or in X where Wp = X + X'; they do not depend on alpha."""
    rows = len(w)
    flat = torch.zeros(rows * rows, dtype=DTYPE, requires_grad=True)
    wp = flat.view(rows, rows)
    value = lagrangian(sample, w, wp + wp.mT if symmetric else wp, 0.5, lambda3)
    (gradient,) = torch.autograd.grad(value, flat, create_graph=True)
    units = torch.eye(rows * rows, dtype=DTYPE)
    (rows_of_hessian,) = torch.autograd.grad(gradient, flat, units, is_grads_batched=True)
    return rows_of_hessian


def minimiser(sample: Sample, w: Tensor, alpha: float, lambda3: float, symmetric: bool = False) -> Tensor:
    """The Wp at which the shipped loss is least, over all matrices or over the symmetric ones.

    The squared form is quadratic in Wp, so one Newton step with autograd's derivatives reaches the minimum.
    """
    rows = len(w)
    gradient, _ = gradients(sample, w, torch.zeros(rows, rows, dtype=DTYPE), alpha, lambda3)
    curvature = hessian(sample, w, lambda3, symmetric)
    if not symmetric:
        step: Tensor = torch.linalg.solve(curvature, gradient.flatten())
        return -step.view(rows, rows)
    # X + X' does not determine X, hence the pseudo-inverse
    half: Tensor = torch.linalg.pinv(curvature, hermitian=True) @ (gradient + gradient.mT).flatten()
    return -(half.view(rows, rows) + half.view(rows, rows).mT)


def optimum(settings: Settings) -> list[Check]:
    """Wp* against the minimiser, the identity it solves, and its rank, over alpha, sigma_e and lambda3."""
    w = make_weights(ROWS, WIDTH, settings.seed)
    checks = []
    for alpha in ALPHAS:
        optimal, identity, ranks = [], [], []
        weights, expected = formulas.coefficients(alpha), formulas.rank
        for noise in NOISES:
            world = make_world(CLASSES, WIDTH, noise, settings.seed)
            sample = exact_sample(world, settings.seed)
            for lambda3 in MULTIPLIERS:
                cell, minimum = f"sigma_e={noise:g}, lambda3={lambda3:g}", minimiser(sample, w, alpha, lambda3)
                predicted = formulas.optimal_predictor(world, w, alpha, lambda3)
                optimal.append(compare(STATEMENT, f"Wp*, alpha={alpha:g}", predicted, minimum, note=cell))
                quantity = f"lambda3 Wp* E[z1 z1'], alpha={alpha:g}"
                parts = zip(weights, (world.between, world.within, world.augmentation), strict=True)
                predicted = w @ torch.stack([weight * scatter for weight, scatter in parts]).sum(0) @ w.mT
                measured = lambda3 * minimum @ measure_covariances(sample, w)[0]
                identity.append(compare(STATEMENT, quantity, predicted, measured, note=cell))
                values = torch.linalg.svdvals(minimum)
                rank, wanted = int((values > RANK_THRESHOLD * values[0]).sum()), expected(world, alpha, ROWS)
                numbers = float(wanted), float(rank), float(abs(rank - wanted)), 0.5
                ranks.append(Check(STATEMENT, f"rank of Wp*, alpha={alpha:g}", *numbers, cell))
        checks += [worst(optimal), worst(identity), worst(ranks)]
    return checks


def coefficients(settings: Settings) -> list[Check]:
    """The weights of S_B, S_W and S_e in lambda3 Wp* E[z1 z1'], fitted.

    At one sigma_e they are not determined (S_B + S_W and S_e are both multiples of I), so the fit spans several.
    """
    w = make_weights(ROWS, WIDTH, settings.seed)
    checks = []
    for alpha in ALPHAS:
        columns, values = [], []
        for noise in NOISES:
            world = make_world(CLASSES, WIDTH, noise, settings.seed)
            sample = exact_sample(world, settings.seed)
            minimum = minimiser(sample, w, alpha, 1.0)
            values.append((minimum @ measure_covariances(sample, w)[0]).flatten())
            scatters = (world.between, world.within, world.augmentation)
            columns.append(torch.stack([(w @ scatter @ w.mT).flatten() for scatter in scatters], dim=1))
        fitted = torch.linalg.lstsq(torch.cat(columns), torch.cat(values)[:, None]).solution[:, 0]
        predicted = list(formulas.coefficients(alpha))
        error = (fitted - torch.tensor(predicted, dtype=DTYPE)).abs().max().item()
        quantity = f"weights of S_B, S_W, S_e, alpha={alpha:g}"
        note = f"one fit over sigma_e={', '.join(f'{noise:g}' for noise in NOISES)}"
        checks.append(Check(STATEMENT, quantity, predicted, fitted.tolist(), error, EXACT, note))
    return checks


def gains(settings: Settings) -> list[Check]:
    """Wp* W v = gain W v for the eigenvectors v of S_B that lie in the row space of W."""
    square = make_weights(WIDTH, WIDTH, settings.seed)
    between, vectors = torch.linalg.eigh(make_world(CLASSES, WIDTH, 0.0, settings.seed).between)
    spanned = make_weights(ROWS, WIDTH, settings.seed, basis=vectors.flip(1))  # the ROWS leading eigenvectors
    checks = []
    for w, w_name, count in ((square, "W square", WIDTH), (spanned, "W rows span eigenvectors", ROWS)):
        for alpha in (0.0, 0.5, 1.0):
            cells = []
            for noise in NOISES:
                sample = exact_sample(make_world(CLASSES, WIDTH, noise, settings.seed), settings.seed)
                for lambda3 in MULTIPLIERS:
                    minimum = minimiser(sample, w, alpha, lambda3)
                    predicted = formulas.gain(between[-count:], alpha, noise, lambda3)
                    which_w, cell = f"{w_name}, alpha={alpha:g}", f"sigma_e={noise:g}, lambda3={lambda3:g}"
                    cells.append(_gain_check(minimum, w @ vectors[:, -count:], predicted, which_w, cell))
            checks.append(worst(cells))
    general = make_weights(ROWS, WIDTH, settings.seed)
    sample = exact_sample(make_world(CLASSES, WIDTH, 0.5, settings.seed), settings.seed)
    minimum, predicted = minimiser(sample, general, 0.5, 1.0), formulas.gain(between, 0.5, 0.5, 1.0)
    which_w, note = f"any {ROWS} x {WIDTH} W, alpha=0.5", "v is outside the row space of W: no such gain"
    outside = _gain_check(minimum, general @ vectors, predicted, which_w, note)
    return [*checks, dataclasses.replace(outside, tolerance=None)]


def conditions(settings: Settings) -> list[Check]:
    """What the theorem assumes or leaves open: convexity, rank of W, the constraint's lambda3, M, sample size."""
    world = make_world(CLASSES, WIDTH, 0.5, settings.seed)
    sample = exact_sample(world, settings.seed)
    wide, tall = make_weights(ROWS, WIDTH, settings.seed), make_weights(WIDTH + 2, WIDTH, settings.seed)
    checks = []
    for w, which, note in (
        (wide, "of full row rank", ""),
        (tall, "not of full row rank", "many minimisers; Wp* is one of them"),
    ):
        least = torch.linalg.eigvalsh(hessian(sample, w, 2.0))[0]
        predicted = formulas.curvature(world, w, 2.0).clamp(min=0)
        # rounding turns an eigenvalue of 0 into 1e-16
        predicted = torch.where(predicted < 1e-12, 0.0, predicted)
        checks.append(compare(STATEMENT, f"least curvature in Wp, W {which}", predicted, least, note=note))
        by_wp, _ = gradients(sample, w, formulas.optimal_predictor(world, w, 0.5, 2.0), 0.5, 2.0)
        checks.append(compare(STATEMENT, f"dL/dWp at Wp*, W {which}", torch.zeros_like(by_wp), by_wp))
    lambda3 = formulas.multiplier(world, wide, 0.5)
    measured = norm_squared(features(sample, wide, minimiser(sample, wide, 0.5, lambda3)).anchors)
    quantity, one = "E ||Wp* z1||^2 at the constraint's own lambda3", torch.ones((), dtype=DTYPE)
    checks.append(compare(STATEMENT, quantity, one, measured, note=f"lambda3={lambda3:.4f}"))
    single = minimiser(exact_sample(world, settings.seed, one_target_each=True), wide, 0.5, 1.0)
    predicted = formulas.optimal_predictor(world, wide, 0.5, 1.0)
    checks.append(compare(STATEMENT, "Wp* with M = 1 instead of all", predicted, single))
    estimate = estimates(settings, world, lambda drawn: minimiser(drawn, wide, 0.5, 1.0))
    quantity = "exponent of the error of a drawn sample's minimiser"
    return [*checks, sampling_slope(STATEMENT, quantity, predicted, estimate, settings.samples)]


def distances(settings: Settings) -> list[Check]:
    """Reported, not asserted: how far Wp* is from being symmetric, and from the normalised loss's minimiser."""
    world = make_world(CLASSES, WIDTH, 0.5, settings.seed)
    w = make_weights(ROWS, WIDTH, settings.seed)
    sample = draw_sample(world, settings.samples, settings.seed)
    checks = []
    for alpha in (0.0, 0.5, 1.0):
        optimal = formulas.optimal_predictor(world, w, alpha, 1.0)
        size = torch.linalg.matrix_norm(optimal)
        asymmetry = (torch.linalg.matrix_norm(optimal - optimal.mT) / size).item()
        quantity = f"asymmetry ||Wp* - Wp*'|| / ||Wp*||, alpha={alpha:g}"
        checks.append(Check(STATEMENT, quantity, 0.0, asymmetry, asymmetry, note="0 would be Assumption 4.1"))
        symmetric = minimiser(exact_sample(world, settings.seed), w, alpha, 1.0, symmetric=True)
        checks.append(compare(STATEMENT, f"minimiser over symmetric Wp, alpha={alpha:g}", optimal, symmetric, None))
        minimum = _normalised_minimiser(sample, w, alpha, optimal)
        # the normalised loss does not depend on the scale of Wp, so compare at the best scale
        scaled = minimum * ((minimum * optimal).sum() / minimum.square().sum())
        quantity, note = f"minimiser of the normalised loss, alpha={alpha:g}", f"best scale; N = {settings.samples}"
        checks.append(compare(STATEMENT, quantity, optimal, scaled, None, note))
    return checks


def _normalised_minimiser(sample: Sample, w: Tensor, alpha: float, start: Tensor) -> Tensor:
    """The minimiser of the loss used in training: unit-norm features, here with all positives of the pool."""
    sample = dataclasses.replace(sample, draws=None)

    def value(flat: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float, object]:
        wp = torch.from_numpy(flat).view_as(start).requires_grad_()
        outputs = features(sample, w, wp, unit=True)
        total = make_loss(alpha, sample)(outputs.anchors, outputs.targets, sample.labels, outputs.pool).total
        (by_wp,) = torch.autograd.grad(total, wp)
        return total.item(), by_wp.flatten().numpy()

    solution = minimize(value, start.flatten().numpy(), jac=True, method="L-BFGS-B", options={"maxiter": 500})
    return torch.from_numpy(solution.x).view_as(start)


def _gain_check(wp: Tensor, inside: Tensor, predicted: Tensor, which: str, note: str) -> Check:
    """Report the gains of the first and last eigenvector; the error is over all vectors Wp W v."""
    mapped = wp @ inside
    measured = (mapped * inside).sum(0) / inside.square().sum(0)
    check = compare(STATEMENT, f"gains of Wp*, first and last v, {which}", inside * predicted, mapped, note=note)
    # the eigenvalues ascend
    return dataclasses.replace(check, predicted=predicted[[-1, 0]].tolist(), measured=measured[[-1, 0]].tolist())
