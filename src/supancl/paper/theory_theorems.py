"""The checks of Theorems 4.6 and 4.7: the optimal predictor, the gradients of App. A.4, and the flow they drive."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.integrate import solve_ivp
from scipy.optimize import minimize
from torch import Tensor

from supancl.paper import theory_checks
from supancl.paper import theory_model as model
from supancl.paper.theory_checks import (
    EXACT,
    Check,
    Settings,
    compare,
    estimates,
    measure_covariances,
    sampling_slope,
    slope,
    worst_of_each,
)
from supancl.paper.theory_model import DTYPE, Sample, World, features
from supancl.reporter import track
from supancl.reports.tables import Table, plain_table
from supancl.runs.provenance import versions

LARGEST_SEED = 2**40 - 1  # a sample's seed multiplies it by a million, and torch takes 64 bits
MIN_SAMPLES = 2000  # with fewer, the smallest Monte-Carlo sample may miss a class

# --- Theorem 4.6: the optimal predictor for a given W and lambda3 -----------------------------------------------------

ALPHAS = (0.0, 0.2, 0.5, 0.8, 1.0)
NOISES = (0.2, 0.5, 1.0)
MULTIPLIERS = (0.5, 1.0, 2.0)
CLASSES, WIDTH, ROWS = 4, 8, 5  # more rows than C - 1, so that a rank of C - 1 is a finding
RANK_THRESHOLD = 1e-8  # relative to the largest singular value; smaller ones count as zero


def hessian(sample: Sample, w: Tensor, lambda3: float, symmetric: bool = False) -> Tensor:
    """Second derivatives of the shipped loss in Wp, or in X where Wp = X + X'; they do not depend on alpha."""
    rows = len(w)
    flat = torch.zeros(rows * rows, dtype=DTYPE, requires_grad=True)
    wp = flat.view(rows, rows)
    value = model.shipped_lagrangian(sample, w, wp + wp.mT if symmetric else wp, 0.5, lambda3)
    (gradient,) = torch.autograd.grad(value, flat, create_graph=True)
    units = torch.eye(rows * rows, dtype=DTYPE)
    (rows_of_hessian,) = torch.autograd.grad(gradient, flat, units, is_grads_batched=True)
    return rows_of_hessian


def minimiser(sample: Sample, w: Tensor, alpha: float, lambda3: float, symmetric: bool = False) -> Tensor:
    """The Wp at which the shipped loss is least, over all matrices or over the symmetric ones.

    The squared form is quadratic in Wp, so one Newton step with autograd's derivatives reaches the minimum.
    """
    rows = len(w)
    gradient, _ = model.gradients(sample, w, torch.zeros(rows, rows, dtype=DTYPE), alpha, lambda3)
    curvature = hessian(sample, w, lambda3, symmetric)
    if not symmetric:
        step: Tensor = torch.linalg.solve(curvature, gradient.flatten())
        return -step.view(rows, rows)
    # X + X' does not determine X, hence the pseudo-inverse
    half: Tensor = torch.linalg.pinv(curvature, hermitian=True) @ (gradient + gradient.mT).flatten()
    return -(half.view(rows, rows) + half.view(rows, rows).mT)


def optimum(settings: Settings) -> Iterator[Check]:
    """Wp* against the minimiser, the identity it solves, and its rank, over alpha, sigma_e and lambda3."""
    w = model.make_weights(ROWS, WIDTH, settings.seed)
    for alpha, noise, lambda3 in itertools.product(ALPHAS, NOISES, MULTIPLIERS):
        world = model.make_world(CLASSES, WIDTH, noise, settings.seed)
        sample = model.exact_sample(world, settings.seed)
        cell, minimum = f"sigma_e={noise:g}, lambda3={lambda3:g}", minimiser(sample, w, alpha, lambda3)
        predicted = model.optimal_predictor(world, w, alpha, lambda3)
        yield compare("Thm 4.6", f"Wp*, alpha={alpha:g}", predicted, minimum, cell)
        parts = zip(model.coefficients(alpha), (world.between, world.within, world.augmentation), strict=True)
        predicted = w @ torch.stack([weight * scatter for weight, scatter in parts]).sum(0) @ w.mT
        measured = lambda3 * minimum @ measure_covariances(sample, w)[0]
        yield compare("Thm 4.6", f"lambda3 Wp* E[z1 z1'], alpha={alpha:g}", predicted, measured, cell)
        values = torch.linalg.svdvals(minimum)
        rank, wanted = int((values > RANK_THRESHOLD * values[0]).sum()), model.rank(world, alpha, ROWS)
        numbers = float(wanted), float(rank), float(abs(rank - wanted)), 0.5
        yield Check("Thm 4.6", f"rank of Wp*, alpha={alpha:g}", *numbers, cell)


def coefficients(settings: Settings) -> Iterator[Check]:
    """The weights of S_B, S_W and S_e in lambda3 Wp* E[z1 z1'], fitted.

    At one sigma_e they are not determined (S_B + S_W and S_e are both multiples of I), so the fit spans several.
    """
    w = model.make_weights(ROWS, WIDTH, settings.seed)
    for alpha in ALPHAS:
        columns, values = [], []
        for noise in NOISES:
            world = model.make_world(CLASSES, WIDTH, noise, settings.seed)
            sample = model.exact_sample(world, settings.seed)
            minimum = minimiser(sample, w, alpha, 1.0)
            values.append((minimum @ measure_covariances(sample, w)[0]).flatten())
            scatters = (world.between, world.within, world.augmentation)
            columns.append(torch.stack([(w @ scatter @ w.mT).flatten() for scatter in scatters], dim=1))
        fitted = torch.linalg.lstsq(torch.cat(columns), torch.cat(values)[:, None]).solution[:, 0]
        predicted = list(model.coefficients(alpha))
        error = (fitted - torch.tensor(predicted, dtype=DTYPE)).abs().max().item()
        note = f"one fit over sigma_e={', '.join(f'{noise:g}' for noise in NOISES)}"
        quantity = f"weights of S_B, S_W, S_e, alpha={alpha:g}"
        yield Check("Thm 4.6", quantity, predicted, fitted.tolist(), error, EXACT, note)


def gains(settings: Settings) -> Iterator[Check]:
    """Wp* W v = gain W v for the eigenvectors v of S_B that lie in the row space of W."""
    between, vectors = torch.linalg.eigh(model.make_world(CLASSES, WIDTH, 0.0, settings.seed).between)
    square = model.make_weights(WIDTH, WIDTH, settings.seed)
    spanned = model.make_weights(ROWS, WIDTH, settings.seed, basis=vectors.flip(1))  # the ROWS leading eigenvectors
    general = model.make_weights(ROWS, WIDTH, settings.seed)
    outside = f"any {ROWS} x {WIDTH} W", "v is outside the row space of W: no such gain"
    for w, which, count, note in (
        (square, "W square", WIDTH, ""),
        (spanned, "W rows span eigenvectors", ROWS, ""),
        (general, outside[0], WIDTH, outside[1]),
    ):
        grid = itertools.product((0.0, 0.5, 1.0), NOISES, MULTIPLIERS)
        for alpha, noise, lambda3 in ((0.5, 0.5, 1.0),) if note else grid:
            sample = model.exact_sample(model.make_world(CLASSES, WIDTH, noise, settings.seed), settings.seed)
            inside, predicted = w @ vectors[:, -count:], model.gain(between[-count:], alpha, noise, lambda3)
            mapped = minimiser(sample, w, alpha, lambda3) @ inside
            quantity = f"gains of Wp*, first and last v, {which}, alpha={alpha:g}"
            cell, tolerance = note or f"sigma_e={noise:g}, lambda3={lambda3:g}", None if note else EXACT
            check = compare("Thm 4.6", quantity, inside * predicted, mapped, cell, tolerance)
            # the error is over all vectors; shown are the gains of the first and the last: eigenvalues ascend
            shown = {"predicted": predicted, "measured": (mapped * inside).sum(0) / inside.square().sum(0)}
            yield dataclasses.replace(check, **{name: values[[-1, 0]].tolist() for name, values in shown.items()})


def conditions(settings: Settings) -> Iterator[Check]:
    """What the theorem assumes or leaves open: convexity, rank of W, the constraint's lambda3, M, sample size."""
    world = model.make_world(CLASSES, WIDTH, 0.5, settings.seed)
    sample = model.exact_sample(world, settings.seed)
    wide, tall = model.make_weights(ROWS, WIDTH, settings.seed), model.make_weights(WIDTH + 2, WIDTH, settings.seed)
    for w, which, note in (
        (wide, "of full row rank", ""),
        (tall, "not of full row rank", "many minimisers; Wp* is one of them"),
    ):
        predicted = model.curvature(world, w, 2.0).clamp(min=0)
        # rounding turns an eigenvalue of 0 into 1e-16
        predicted = torch.where(predicted < 1e-12, 0.0, predicted)
        least = torch.linalg.eigvalsh(hessian(sample, w, 2.0))[0]
        yield compare("Thm 4.6", f"least curvature in Wp, W {which}", predicted, least, note)
        by_wp, _ = model.gradients(sample, w, model.optimal_predictor(world, w, 0.5, 2.0), 0.5, 2.0)
        yield compare("Thm 4.6", f"dL/dWp at Wp*, W {which}", torch.zeros_like(by_wp), by_wp)
    lambda3 = model.multiplier(world, wide, 0.5)
    measured = model.norm_squared(features(sample, wide, minimiser(sample, wide, 0.5, lambda3)).anchors)
    quantity, one = "E ||Wp* z1||^2 at the constraint's own lambda3", torch.ones((), dtype=DTYPE)
    yield compare("Thm 4.6", quantity, one, measured, f"lambda3={lambda3:.4f}")
    single = minimiser(model.exact_sample(world, settings.seed, one_target_each=True), wide, 0.5, 1.0)
    predicted = model.optimal_predictor(world, wide, 0.5, 1.0)
    yield compare("Thm 4.6", "Wp* with M = 1 instead of all", predicted, single)
    estimate = estimates(settings, world, lambda drawn: minimiser(drawn, wide, 0.5, 1.0))
    quantity = "exponent of the error of a drawn sample's minimiser"
    yield sampling_slope("Thm 4.6", quantity, predicted, estimate, settings.samples)


def distances(settings: Settings) -> Iterator[Check]:
    """Reported, not asserted: how far Wp* is from being symmetric, and from the normalised loss's minimiser."""
    world, w = model.make_world(CLASSES, WIDTH, 0.5, settings.seed), model.make_weights(ROWS, WIDTH, settings.seed)
    drawn = dataclasses.replace(model.draw_sample(world, settings.samples, settings.seed), draws=None)
    for alpha in (0.0, 0.5, 1.0):
        optimal = model.optimal_predictor(world, w, alpha, 1.0)
        asymmetry = (torch.linalg.matrix_norm(optimal - optimal.mT) / torch.linalg.matrix_norm(optimal)).item()
        quantity = f"asymmetry ||Wp* - Wp*'|| / ||Wp*||, alpha={alpha:g}"
        yield Check("Thm 4.6", quantity, 0.0, asymmetry, asymmetry, note="0 would be Assumption 4.1")
        symmetric = minimiser(model.exact_sample(world, settings.seed), w, alpha, 1.0, symmetric=True)
        quantity = f"minimiser over symmetric Wp, alpha={alpha:g}"
        yield compare("Thm 4.6", quantity, optimal, symmetric, tolerance=None)

        # the loss used in training: unit-norm features, here with all positives of the pool
        def value(flat: Vector, alpha: float = alpha, shape: Tensor = optimal) -> tuple[float, object]:
            wp = torch.from_numpy(flat).view_as(shape).requires_grad_()
            total = features(drawn, w, wp, unit=True).loss(alpha)
            (by_wp,) = torch.autograd.grad(total, wp)
            return total.item(), by_wp.flatten().numpy()

        found = minimize(value, optimal.flatten().numpy(), jac=True, method="L-BFGS-B", options={"maxiter": 500})
        minimum = torch.from_numpy(found.x).view_as(optimal)
        # the normalised loss does not depend on the scale of Wp, so compare at the best scale
        scaled = minimum * ((minimum * optimal).sum() / minimum.square().sum())
        note = f"best scale; N = {settings.samples}"
        yield compare("Thm 4.6", f"minimiser of the normalised loss, alpha={alpha:g}", optimal, scaled, note, None)


# --- Theorem 4.7: the two gradients of App. A.4, and the flow they drive ----------------------------------------------

RATE_TOLERANCE = 0.02  # relative tolerance of a fitted decay rate
SOLVER_TOLERANCE = 1e-6  # relative tolerance of a matrix at the end of the solved flow
TIME_POINTS = 41  # times at which the flow is evaluated
Vector = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True)
class Flow:
    """dWp/dt = -predictor_speed dL/dWp - decay Wp and dW/dt = -dL/dW - decay W, from matrices of size `start`."""

    alpha: float = 0.5
    decay: float = 0.1
    lambda3: float = 1.0
    start: float = 1.0
    predictor_speed: float = 1.0
    length: float = 3.0

    @property
    def duration(self) -> float:
        """Until a part that decays at 2 * decay has fallen by exp(-2 length)."""
        return self.length / self.decay if self.decay > 0 else 20.0


@dataclass(frozen=True)
class Path:
    """Along a flow: W, W W', Wp'Wp - WW' and Wp'Wp / predictor_speed - WW' at each time."""

    times: list[float]
    weights: list[Tensor]
    grams: list[Tensor]
    differences: list[Tensor]
    weighted: list[Tensor]

    def rate_of(self, matrices: list[Tensor]) -> float:
        return -slope([(time, math.log(norm(value))) for time, value in zip(self.times, matrices, strict=True)])

    def ratio(self, at: int) -> float:
        """||Wp'Wp - WW'|| / ||WW'||."""
        return norm(self.differences[at]) / norm(self.grams[at])


def norm(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix))


def follow(flow: Flow, world: World, seed: int) -> Path:
    """Solve the flow with gradients by autograd through the shipped loss, the pool refilled with the current W."""
    sample, rows = model.exact_sample(world, seed), world.means.shape[1] - 1
    w, wp = (
        model.make_weights(rows, world.means.shape[1], seed, flow.start),
        model.make_predictor(rows, seed + 1, flow.start),
    )

    def split(state: Vector) -> tuple[Tensor, Tensor]:
        flat = torch.from_numpy(np.ascontiguousarray(state))
        return flat[: rows * rows].view(rows, rows), flat[rows * rows :].view(rows, -1)

    def motion(_time: float, state: Vector) -> Vector:
        current_wp, current_w = split(state)
        by_wp, by_w = model.gradients(sample, current_w, current_wp, flow.alpha, flow.lambda3)
        derivatives = (-flow.predictor_speed * by_wp - flow.decay * current_wp, -by_w - flow.decay * current_w)
        return torch.cat([derivative.flatten() for derivative in derivatives]).numpy()

    times, start = np.linspace(0, flow.duration, TIME_POINTS), torch.cat([wp.flatten(), w.flatten()]).numpy()
    solved = solve_ivp(motion, (0, flow.duration), start, method="DOP853", t_eval=times, rtol=1e-8, atol=1e-11)
    states = [split(state) for state in solved.y.T]
    weights, grams = [w_t for _, w_t in states], [w_t @ w_t.mT for _, w_t in states]
    pairs = [(wp_t.mT @ wp_t, gram) for (wp_t, _), gram in zip(states, grams, strict=True)]
    differences = [predictor - gram for predictor, gram in pairs]
    weighted = [predictor / flow.predictor_speed - gram for predictor, gram in pairs]
    return Path(times.tolist(), weights, grams, differences, weighted)


def decay(settings: Settings) -> Iterator[Check]:
    """Wp'Wp - WW' falls as exp(-2 eta t) without rotating; its ratio to ||WW'|| falls too, if WW' does not vanish."""
    world = model.make_world(3, 5, 0.5, settings.seed)
    flows = [Flow(alpha, eta) for alpha, eta in ((0.5, 0.05), (0.5, 0.1), (0.5, 0.15), (0.0, 0.1), (1.0, 0.1))]
    for flow in [*flows, Flow(lambda3=2.0)]:
        path = follow(flow, world, settings.seed)
        setting = f"alpha={flow.alpha:g}, eta={flow.decay:g}, lambda3={flow.lambda3:g}"
        expected, (first, last) = model.decay_rate(flow.decay), (path.differences[0], path.differences[-1])
        yield _rate(f"decay rate, {setting}", expected, path.rate_of(path.differences))
        factor, quantity = math.exp(-expected * flow.duration), "Wp'Wp - WW' at the end, e^(-2 eta t) c"
        yield compare("Thm 4.7", quantity, factor * first, last, setting, SOLVER_TOLERANCE)
        quantity = f"||Wp'Wp - WW'|| / ||WW'|| at the end, {setting}"
        note = f"{path.ratio(0):.3g} at the start; ||WW'|| {norm(path.grams[0]):.3g} -> {norm(path.grams[-1]):.3g}"
        yield _rate(quantity, factor * norm(first) / norm(path.grams[-1]), path.ratio(-1), note)
        if flow.decay == 0.1 and flow.lambda3 == 1:
            # the conclusion of Sec. 4.2, W learns to reduce intra-class variance: the paper gives no number
            ends = (path.weights[0], path.weights[-1])
            before, after = ((torch.trace(w @ world.within @ w.mT) / torch.trace(w @ w.mT)).item() for w in ends)
            quantity = f"tr(W S_W W') / tr(W W') at the end, alpha={flow.alpha:g}"
            yield Check("Sec. 4.2", quantity, None, after, None, note=f"{before:.4g} at the start")
    # outside the theorem's assumptions: no weight decay, two learning rates, W that vanishes
    still = follow(Flow(decay=0.0), world, settings.seed)
    expected, measured = model.decay_rate(0.0), still.rate_of(still.differences)
    numbers = expected, measured, abs(measured - expected), SOLVER_TOLERANCE
    yield Check("Thm 4.7", "decay rate, eta=0", *numbers, "without weight decay the difference stays")
    path, expected = follow(Flow(predictor_speed=2.0), world, settings.seed), model.decay_rate(0.1)
    note = f"ratio to ||WW'|| ends at {path.ratio(-1):.3g}"
    quantity = "decay rate, predictor's learning rate doubled, eta=0.1"
    yield dataclasses.replace(_rate(quantity, expected, path.rate_of(path.differences), note), tolerance=None)
    note = "two learning rates: Wp'Wp tends to their ratio times WW'"
    yield _rate("the same of ||Wp'Wp / 2 - WW'||", expected, path.rate_of(path.weighted), note)
    path = follow(Flow(start=0.1, decay=0.5, length=8.0), world, settings.seed)
    quantity = "||Wp'Wp - WW'|| / ||WW'|| where W vanishes, eta=0.5"
    note = (
        f"{path.ratio(0):.3g} at the start, {path.ratio(TIME_POINTS // 2):.3g} halfway; ||WW'|| "
        f"{norm(path.grams[0]):.2g} -> {norm(path.grams[-1]):.2g}: both vanish alike"
    )
    yield Check("Thm 4.7", quantity, None, path.ratio(-1), None, note=note)


def _rate(quantity: str, expected: float, measured: float, note: str = "") -> Check:
    return Check("Thm 4.7", quantity, expected, measured, abs(measured / expected - 1), RATE_TOLERANCE, note)


# --- all of them ------------------------------------------------------------------------------------------------------

GROUPS: dict[str, Callable[[Settings], Iterable[Check]]] = {
    "two forms": theory_checks.two_forms,
    "expansion": theory_checks.expansion,
    "expectation": theory_checks.expectation,
    "covariances": theory_checks.covariances,
    "eigenspaces": theory_checks.eigenspaces,
    "optimum": optimum,
    "coefficients": coefficients,
    "gains": gains,
    "conditions": conditions,
    "distances": distances,
    "closed gradients": theory_checks.closed_gradients,
    "aligned gradients": theory_checks.aligned_gradients,
    "decay": decay,
}


def run_and_time(settings: Settings) -> tuple[list[Check], dict[str, Any]]:
    """Run all checks; returns them and the result as JSON."""
    begin = time.perf_counter()
    groups = track(GROUPS.values(), "checks of the theory")
    checks = [check for group in groups for check in worst_of_each(group(settings))]
    rows = [{**dataclasses.asdict(check), "asserted": check.asserted, "passed": check.passed} for check in checks]
    return checks, {
        "checks": rows,
        "passed": all(check.passed is not False for check in checks),
        "seed": settings.seed,
        "samples": settings.samples,
        "seconds": round(time.perf_counter() - begin, 1),
        "versions": versions(),
    }


def theory_table(checks: list[Check]) -> Table:
    """A row per check."""

    def number(value: float | list[float] | None, form: str) -> str:
        if isinstance(value, list):
            return ", ".join(f"{each:.4f}" for each in value)
        return "-" if value is None else f"{value:{form}}"

    columns = ["statement", "quantity", "predicted", "measured", "error", "tolerance", "holds", "note"]
    rows = []
    for check in checks:
        numbers = [number(check.predicted, ".6g"), number(check.measured, ".6g")]
        numbers += [number(check.error, ".1e"), number(check.tolerance, ".1e")]
        holds = {True: "yes", False: "NO", None: "report"}[check.passed]
        rows.append([check.statement, check.quantity, *numbers, holds, check.note])
    return plain_table("Theory against the shipped loss", columns, rows)
