"""The checks of Eq. 4, Eq. 5, App. A.1 and Proposition 4.5: two forms of the loss, its expectation, its covariances."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from supancl.paper.theorems import formulas
from supancl.paper.theorems.checks import Check, Settings, compare, estimates, sampling, sampling_slope, worst
from supancl.paper.theorems.formulas import Multipliers
from supancl.paper.theorems.world import (
    Sample,
    exact_sample,
    features,
    gradients,
    lagrangian,
    make_loss,
    make_predictor,
    make_weights,
    make_world,
    norm_squared,
)

SIZES = ((2, 4, 4), (3, 6, 9), (5, 8, 8), (10, 16, 12))  # classes, input width, feature width
NAMES = ("E[z1 z1']", "E[z2 z1']", "E[z2sup z1']")


def two_forms(settings: Settings) -> list[Check]:
    """Eq. 4: the second line is `Align` with alpha = 1 on the interpolated target."""
    sample = exact_sample(make_world(4, 8, 0.5, settings.seed), settings.seed, one_target_each=True)
    checks = []
    for unit, norms in ((True, "unit norm"), (False, "any norm")):
        gaps, slopes = [], []
        for alpha in (0.2, 0.5, 0.8):
            wp = make_predictor(5, settings.seed + 1).requires_grad_()
            outputs = features(sample, make_weights(5, 8, settings.seed), wp, unit)
            sup = make_loss(alpha, sample).supervised_target(outputs.other_view(), sample.labels, outputs.pool)
            first = make_loss(alpha, sample)(outputs.anchors, outputs.targets, sample.labels, outputs.pool).total
            target = formulas.mix(outputs.other_view(), sup, alpha)
            # `Align` flips the views of its targets, so they are flipped before
            second = make_loss(1.0, sample)(outputs.anchors, target.flip(0), sample.labels).total
            cell, gap = f"alpha={alpha:g}", formulas.gap(outputs.other_view(), sup, alpha)
            difference = (first - second).detach()
            gaps.append(compare("Eq. 4", f"first form - second form, {norms}", gap, difference, note=cell))
            (by_first,) = torch.autograd.grad(first, wp, retain_graph=True)
            (by_second,) = torch.autograd.grad(second, wp)
            slopes.append(compare("Eq. 4", f"d/dWp of both forms, {norms}", by_second, by_first, note=cell))
        checks += [worst(gaps), worst(slopes)]
    return checks


def expansion(settings: Settings) -> list[Check]:
    """App. A.1: the expansion under the constraints, that is on unit-norm features and with M = 1."""
    sample = exact_sample(make_world(4, 8, 0.5, settings.seed), settings.seed, one_target_each=True)
    w, wp = make_weights(5, 8, settings.seed), make_predictor(5, settings.seed + 1)
    cells = []
    for alpha in (0.0, 0.3, 0.5, 1.0):
        outputs, loss, cell = features(sample, w, wp, unit=True), make_loss(alpha, sample), f"alpha={alpha:g}"
        sup = loss.supervised_target(outputs.other_view(), sample.labels, outputs.pool)
        measured = loss(outputs.anchors, outputs.targets, sample.labels, outputs.pool).total
        predicted = formulas.expansion(outputs.anchors, outputs.other_view(), sup, alpha)
        cells.append(compare("App. A.1", "expanded loss, sign put right", predicted, measured, note=cell))
        if alpha == 0.3:
            wrong = formulas.printed_expansion(outputs.anchors, outputs.other_view(), sup, alpha)
            note = f"{cell}; the printed + is a slip"
            printed = compare("App. A.1", "expanded loss, last line as printed", wrong, measured, None, note)
    return [worst(cells), printed]


def expectation(settings: Settings) -> list[Check]:
    """Eq. 5 from the shipped loss, by both of its forms, on exact moments and by Monte Carlo."""
    world = make_world(4, 8, 0.5, settings.seed)
    sample = exact_sample(world, settings.seed, one_target_each=True)
    w, wp = make_weights(5, 8, settings.seed), make_predictor(5, settings.seed + 1)
    squared, cosine = [], []
    for alpha in (0.0, 0.3, 1.0):
        for multipliers in (Multipliers(alpha, 1 - alpha, 1.0), Multipliers(0.7, -0.4, 2.5)):
            predicted = formulas.lagrangian(world, w, wp, alpha, multipliers)
            by_squared, by_cosine = _lagrangian_of_both(sample, w, wp, alpha, multipliers)
            note = f"alpha={alpha:g}, lambda={', '.join(f'{value:g}' for value in multipliers)}"
            quantity = "squared loss + (lambda - own weight) constraints"
            squared.append(compare("Eq. 5", quantity, predicted, by_squared, note=note))
            cosine.append(compare("Eq. 5", "2 + 2 cosine loss + lambda constraints", predicted, by_cosine, note=note))
    value = formulas.lagrangian(world, w, wp, 0.3, Multipliers(0.3, 0.7, 1.0))
    arguments = value, estimates(settings, world, lambda drawn: lagrangian(drawn, w, wp, 0.3)), settings.samples
    return [
        worst(squared, "own weight: alpha, 1 - alpha, 1"),
        worst(cosine),
        sampling("Eq. 5", "the plain squared loss by Monte Carlo", *arguments, "lambda=0.3, 0.7, 1"),
        sampling_slope("Eq. 5", "exponent of the Monte-Carlo error", *arguments),
    ]


def measure_covariances(sample: Sample, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """E[z1 z1'], E[z2 z1'], E[z2sup z1'] read off the shipped loss: its gradient in Wp is linear in them.

    The loss is symmetric in the views, so the first two come as the mean over both orders.
    """
    zero, identity = torch.zeros(len(w), len(w), dtype=w.dtype), torch.eye(len(w), dtype=w.dtype)
    at_zero, _ = gradients(sample, w, zero, alpha=1.0)
    at_one, _ = gradients(sample, w, identity, alpha=1.0)
    supervised, _ = gradients(sample, w, zero, alpha=0.0)
    return (at_one - at_zero) / 2, -at_zero / 2, -supervised / 2


def covariances(settings: Settings) -> list[Check]:
    """Eq. 6 by Monte Carlo, at several class counts and widths."""
    closed_forms = (formulas.view_covariance, formulas.cross_covariance, formulas.supervised_covariance)
    checks, slopes = [], []
    for classes, width, rows in SIZES:
        world = make_world(classes, width, 0.5, settings.seed)
        w = make_weights(rows, width, settings.seed + 1)
        estimate = estimates(settings, world, partial(measure_covariances, w=w))
        for index, (name, formula) in enumerate(zip(NAMES, closed_forms, strict=True)):
            arguments = formula(world, w), _part(estimate, index), settings.samples
            checks.append(sampling("Prop. 4.5", f"{name}, C={classes}, d={width}, k={rows}", *arguments))
            if classes == 5:
                slopes.append(sampling_slope("Prop. 4.5", f"exponent of the error of {name}", *arguments))
    return checks + slopes


def _part(estimate: Callable[[int, int], tuple[Tensor, ...]], index: int) -> Callable[[int, int], Tensor]:
    return lambda size, repeat: estimate(size, repeat)[index]


def eigenspaces(settings: Settings) -> list[Check]:
    """Eq. 7 on exact moments: in data space the three share V; in feature space only if W'W commutes with S_B."""
    world = make_world(4, 6, 0.5, settings.seed)
    sample = exact_sample(world, settings.seed)
    shared = formulas.spectra(world)
    tall = make_weights(9, 6, settings.seed)
    inverse = torch.linalg.pinv(tall)  # W+ W = I for W of full column rank
    inner = [inverse @ matrix @ inverse.mT for matrix in measure_covariances(sample, tall)]
    checks = []
    for name, matrix, values in zip(NAMES, inner, shared[1:], strict=True):
        predicted, measured = torch.diag(values), shared.vectors.mT @ matrix @ shared.vectors
        quantity, note = f"V' W+ {name} W+' V, diagonal", "W 9 x 6, full column rank"
        checks.append(compare("Prop. 4.5", quantity, predicted, measured, note=note))
    predicted = formulas.commutator(world, torch.eye(6, dtype=tall.dtype))
    measured = inner[0] @ inner[2] - inner[2] @ inner[0]
    checks.append(compare("Prop. 4.5", "commutator in data space", predicted, measured))
    basis = torch.linalg.eigh(world.between).eigenvectors
    commuting = make_weights(9, 6, settings.seed, basis=basis)
    for w, which, note in (
        (commuting, "W'W commutes with S_B", ""),
        (tall, "any W", "not zero: no shared eigenspace here"),
    ):
        view, _, supervised = measure_covariances(sample, w)
        predicted, measured = formulas.commutator(world, w), view @ supervised - supervised @ view
        checks.append(compare("Prop. 4.5", f"commutator in feature space, {which}", predicted, measured, note=note))
    return checks


def _lagrangian_of_both(
    sample: Sample, w: Tensor, wp: Tensor, alpha: float, multipliers: Multipliers
) -> tuple[Tensor, Tensor]:
    """Eq. 5 from the squared form, which holds each norm with weights alpha, 1 - alpha, 1, and from the cosine."""
    outputs, loss = features(sample, w, wp), make_loss(alpha, sample)
    sup = loss.supervised_target(outputs.other_view(), sample.labels, outputs.pool)
    constraints = [norm_squared(rows) - 1 for rows in (outputs.other_view(), sup, outputs.anchors)]
    inputs = outputs.anchors, outputs.targets, sample.labels, outputs.pool
    squared, cosine = loss(*inputs).total, make_loss(alpha, sample, "cosine")(*inputs).total
    for multiplier, weight, constraint in zip(multipliers, (alpha, 1 - alpha, 1.0), constraints, strict=True):
        squared = squared + (multiplier - weight) * constraint
        cosine = cosine + multiplier / 2 * constraint
    return squared, 2 + 2 * cosine
