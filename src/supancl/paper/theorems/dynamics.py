"""The checks of Theorem 4.7: the two gradients of App. A.4, and the flow they drive."""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from supancl.paper.theorems import formulas
from supancl.paper.theorems.checks import Check, Settings, compare, slope, worst
from supancl.paper.theorems.world import (
    Sample,
    World,
    exact_sample,
    features,
    gradients,
    make_loss,
    make_predictor,
    make_weights,
    make_world,
)

STATEMENT = "Thm 4.7"
RATE_TOLERANCE = 0.02  # relative tolerance of a fitted decay rate
SOLVER_TOLERANCE = 1e-6  # relative tolerance of a matrix at the end of the solved flow
# Without stop-gradient the identity must fail by more than this fraction, seven orders above EXACT. Not 0.1: at
# alpha = 0 the leak scales with W S_B W' and the sides with ||Wp z1||^2, so it can be a few per cent
MIN_LEAK_FRACTION = 1e-3
TIME_POINTS = 41  # times at which the flow is evaluated

Vector = np.ndarray[tuple[int], np.dtype[np.float64]]


def closed_gradients(settings: Settings) -> list[Check]:
    """dL/dWp and dL/dW of App. A.3 and A.4 against autograd on exact moments."""
    world = make_world(4, 8, 0.5, settings.seed)
    sample = exact_sample(world, settings.seed)
    w, wp = make_weights(5, 8, settings.seed), make_predictor(5, settings.seed + 1)
    predictor, encoder = [], []
    for alpha, lambda3 in itertools.product((0.0, 0.5, 1.0), (1.0, 2.0)):
        by_wp, by_w = gradients(sample, w, wp, alpha, lambda3)
        cell = f"alpha={alpha:g}, lambda3={lambda3:g}"
        predicted = formulas.predictor_gradient(world, w, wp, alpha, lambda3)
        predictor.append(compare("App. A.3", "dL/dWp", predicted, by_wp, note=cell))
        predicted = formulas.encoder_gradient(world, w, wp, alpha, lambda3)
        encoder.append(compare("App. A.4", "dL/dW", predicted, by_w, note=cell))
    return [worst(predictor), worst(encoder)]


def aligned_gradients(settings: Settings) -> list[Check]:
    """Wp' dL/dWp = dL/dW W' with stop-gradient, for either form; without it, off by a known amount."""
    world = make_world(4, 8, 0.5, settings.seed)
    sample = exact_sample(world, settings.seed)
    # any Wp, not one near I: at alpha = 0 the leak is 2 (I - Wp) W S_B W'
    w, wp = make_weights(5, 8, settings.seed), make_weights(5, 5, settings.seed + 1)
    squared, cosine, leaking, broken = [], [], [], []
    for alpha in (0.0, 0.5, 1.0):
        cell = f"alpha={alpha:g}"
        left, right = formulas.aligned_sides(wp, w, *gradients(sample, w, wp, alpha, 2.0))
        squared.append(compare(STATEMENT, "Wp' dL/dWp = dL/dW W', squared loss", left, right, note=cell))
        left, right = formulas.aligned_sides(wp, w, *_batch_gradients(sample, w, wp, alpha, "cosine", True))
        cosine.append(compare(STATEMENT, "the same, cosine loss on unit-norm features", left, right, note=cell))
        left, right = formulas.aligned_sides(wp, w, *_batch_gradients(sample, w, wp, alpha, "squared", False))
        leak, leaked = formulas.leak(world, w, wp, alpha), right - left
        leaking.append(compare(STATEMENT, "dL/dW W' - Wp' dL/dWp without stop-gradient", leak, leaked, note=cell))
        fraction = (torch.linalg.matrix_norm(leaked) / torch.linalg.matrix_norm(left)).item()
        # otherwise the rows above would prove nothing
        quantity = "share by which it fails without stop-gradient"
        note = f"{cell}; asserted to exceed {MIN_LEAK_FRACTION:g}"
        excess = max(0.0, MIN_LEAK_FRACTION - fraction)
        broken.append((fraction, Check(STATEMENT, quantity, None, fraction, excess, 0.0, note)))
    return [worst(squared), worst(cosine), worst(leaking), min(broken, key=lambda pair: pair[0])[1]]


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
    """||Wp'Wp - WW'||, ||Wp'Wp / predictor_speed - WW'|| and ||WW'|| along the flow; Wp'Wp - WW' and W at both ends."""

    times: list[float]
    differences: list[float]
    weighted: list[float]
    sizes: list[float]
    first_difference: Tensor
    last_difference: Tensor
    start: Tensor
    end: Tensor

    @property
    def rate(self) -> float:
        return self.rate_of(self.differences)

    def rate_of(self, values: list[float]) -> float:
        return -slope([(time, math.log(value)) for time, value in zip(self.times, values, strict=True)])

    @property
    def ratios(self) -> list[float]:
        return [difference / size for difference, size in zip(self.differences, self.sizes, strict=True)]


def follow(flow: Flow, world: World, seed: int) -> Path:
    """Solve the flow with gradients by autograd through the shipped loss, the pool refilled with the current W."""
    sample = exact_sample(world, seed)
    rows = world.width - 1
    w = make_weights(rows, world.width, seed, flow.start)
    wp = make_predictor(rows, seed + 1, flow.start)

    def motion(_time: float, state: Vector) -> Vector:
        current_wp, current_w = _split(state, rows)
        by_wp, by_w = gradients(sample, current_w, current_wp, flow.alpha, flow.lambda3)
        derivatives = (-flow.predictor_speed * by_wp - flow.decay * current_wp, -by_w - flow.decay * current_w)
        return torch.cat([derivative.flatten() for derivative in derivatives]).numpy()

    times = np.linspace(0, flow.duration, TIME_POINTS)
    start = torch.cat([wp.flatten(), w.flatten()]).numpy()
    solved = solve_ivp(motion, (0, flow.duration), start, method="DOP853", t_eval=times, rtol=1e-8, atol=1e-11)
    states = [_split(state, rows) for state in solved.y.T]
    pairs = [(wp_t.mT @ wp_t, current_w @ current_w.mT) for wp_t, current_w in states]
    norm = torch.linalg.matrix_norm
    return Path(
        times.tolist(),
        differences=[norm(predictor - gram).item() for predictor, gram in pairs],
        weighted=[norm(predictor / flow.predictor_speed - gram).item() for predictor, gram in pairs],
        sizes=[norm(gram).item() for _, gram in pairs],
        first_difference=pairs[0][0] - pairs[0][1],
        last_difference=pairs[-1][0] - pairs[-1][1],
        start=states[0][1],
        end=states[-1][1],
    )


def decay(settings: Settings) -> list[Check]:
    """Wp'Wp - WW' falls as exp(-2 eta t) without rotating; its ratio to ||WW'|| falls too, if WW' does not vanish."""
    world = make_world(3, 5, 0.5, settings.seed)
    checks, final_differences = [], []
    flows = [Flow(alpha, eta) for alpha, eta in ((0.5, 0.05), (0.5, 0.1), (0.5, 0.15), (0.0, 0.1), (1.0, 0.1))]
    for flow in [*flows, Flow(lambda3=2.0)]:
        path = follow(flow, world, settings.seed)
        setting = f"alpha={flow.alpha:g}, eta={flow.decay:g}, lambda3={flow.lambda3:g}"
        expected = formulas.decay_rate(flow.decay)
        checks.append(_rate(f"decay rate, {setting}", expected, path.rate))
        factor = math.exp(-expected * flow.duration)
        quantity, first, last = "Wp'Wp - WW' at the end, e^(-2 eta t) c", path.first_difference, path.last_difference
        final_differences.append(compare(STATEMENT, quantity, factor * first, last, SOLVER_TOLERANCE, setting))
        quantity = f"||Wp'Wp - WW'|| / ||WW'|| at the end, {setting}"
        note = f"{path.ratios[0]:.3g} at the start; ||WW'|| {path.sizes[0]:.3g} -> {path.sizes[-1]:.3g}"
        checks.append(_rate(quantity, factor * path.differences[0] / path.sizes[-1], path.ratios[-1], note))
        if flow.decay == 0.1 and flow.lambda3 == 1:
            # the conclusion of Sec. 4.2, W learns to reduce intra-class variance: the paper gives no number
            before, after = (
                (torch.trace(w @ world.within @ w.mT) / torch.trace(w @ w.mT)).item() for w in (path.start, path.end)
            )
            quantity = f"tr(W S_W W') / tr(W W') at the end, alpha={flow.alpha:g}"
            checks.append(Check("Sec. 4.2", quantity, None, after, None, note=f"{before:.4g} at the start"))
    return [*checks, worst(final_differences), *limits(settings, world)]


def _rate(quantity: str, expected: float, measured: float, note: str = "") -> Check:
    return Check(STATEMENT, quantity, expected, measured, abs(measured / expected - 1), RATE_TOLERANCE, note)


def limits(settings: Settings, world: World) -> list[Check]:
    """Outside the theorem's assumptions: no weight decay, two learning rates, W that vanishes."""
    no_decay = follow(Flow(decay=0.0), world, settings.seed)
    expected, note = formulas.decay_rate(0.0), "without weight decay the difference stays"
    error = abs(no_decay.rate - expected)
    still = Check(STATEMENT, "decay rate, eta=0", expected, no_decay.rate, error, SOLVER_TOLERANCE, note)
    two_rates = follow(Flow(predictor_speed=2.0), world, settings.seed)
    expected, note = formulas.decay_rate(0.1), f"ratio to ||WW'|| ends at {two_rates.ratios[-1]:.3g}"
    doubled = _rate("decay rate, predictor's learning rate doubled, eta=0.1", expected, two_rates.rate, note)
    note = "two learning rates: Wp'Wp tends to their ratio times WW'"
    weighted = _rate("the same of ||Wp'Wp / 2 - WW'||", expected, two_rates.rate_of(two_rates.weighted), note)
    vanishing = follow(Flow(start=0.1, decay=0.5, length=8.0), world, settings.seed)
    quantity = "||Wp'Wp - WW'|| / ||WW'|| where W vanishes, eta=0.5"
    note = (
        f"{vanishing.ratios[0]:.3g} at the start, {vanishing.ratios[TIME_POINTS // 2]:.3g} halfway; ||WW'|| "
        f"{vanishing.sizes[0]:.2g} -> {vanishing.sizes[-1]:.2g}: both vanish alike"
    )
    vanished = Check(STATEMENT, quantity, None, vanishing.ratios[-1], None, note=note)
    return [still, dataclasses.replace(doubled, tolerance=None), weighted, vanished]


def _batch_gradients(
    sample: Sample, w: Tensor, wp: Tensor, alpha: float, form: Literal["cosine", "squared"], stop_gradient: bool
) -> tuple[Tensor, Tensor]:
    """With the batch's class mean for z_sup: a pool detaches what it stores, so only here can a gradient flow."""
    w, wp = w.detach().requires_grad_(), wp.detach().requires_grad_()
    outputs = features(sample, w, wp, unit=form == "cosine", stop_gradient=stop_gradient)
    total = make_loss(alpha, sample, form)(outputs.anchors, outputs.targets, sample.labels).total
    by_wp, by_w = torch.autograd.grad(total, (wp, w))
    return by_wp, by_w


def _split(state: Vector, rows: int) -> tuple[Tensor, Tensor]:
    flat = torch.from_numpy(np.ascontiguousarray(state))
    return flat[: rows * rows].view(rows, rows), flat[rows * rows :].view(rows, -1)
