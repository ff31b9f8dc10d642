"""What a check of the theory is; those of Eq. 4, Eq. 5, App. A.1 and Proposition 4.5 (`supancl paper theory`)."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from supancl.paper import theory_model as model
from supancl.paper.theory_model import DTYPE, Sample, World, features

EXACT = 1e-10  # tolerance where both sides differ only by rounding
SIGMAS = 4.0  # tolerance of a Monte-Carlo mean, in standard errors
SLOPE = 0.15  # tolerance of a fitted Monte-Carlo exponent, expected -1/2
REPEATS = 48  # independent samples for every Monte-Carlo figure
# Without stop-gradient the identity must fail by more than this fraction, seven orders above EXACT. Not 0.1: at
# alpha = 0 the leak scales with W S_B W' and the sides with ||Wp z1||^2, so it can be a few per cent
MIN_LEAK_FRACTION = 1e-3
T = TypeVar("T")
Number = float | list[float]


@dataclass(frozen=True)
class Settings:
    """What the user chooses; `samples` is the size of one Monte-Carlo sample."""

    seed: int = 0
    samples: int = 8000


@dataclass(frozen=True)
class Check:
    """One line of the table. For a matrix, predicted and measured are Frobenius norms; the error compares entries.

    A check without a tolerance is only reported: it neither passes nor fails.
    """

    statement: str
    quantity: str
    predicted: Number | None
    measured: Number
    error: float | None
    tolerance: float | None = None
    note: str = ""

    @property
    def asserted(self) -> bool:
        return self.tolerance is not None

    @property
    def passed(self) -> bool | None:
        if self.tolerance is None:
            return None
        return self.error is not None and self.error <= self.tolerance  # NaN fails

    @property
    def excess(self) -> float:
        """The error relative to the tolerance; infinite if it is not a number."""
        ratio = (math.nan if self.error is None else self.error) / (self.tolerance or 1.0)
        return math.inf if math.isnan(ratio) else ratio


def compare(
    statement: str, quantity: str, predicted: Tensor, measured: Tensor, note: str = "", tolerance: float | None = EXACT
) -> Check:
    """Compare two scalars or matrices; the error is relative unless the prediction is zero."""
    size = torch.linalg.vector_norm(predicted)
    distance = torch.linalg.vector_norm(measured - predicted)
    error = distance / size if size > 1e-12 else distance
    shown, found = (torch.linalg.vector_norm(value) if value.ndim else value for value in (predicted, measured))
    return Check(statement, quantity, shown.item(), found.item(), error.item(), tolerance, note)


def worst_of_each(checks: Iterable[Check]) -> list[Check]:
    """Of the checks of each quantity the one with the largest error relative to its tolerance."""
    cells: dict[tuple[str, str], list[Check]] = {}
    for check in checks:
        cells.setdefault((check.statement, check.quantity), []).append(check)
    chosen = []
    for same in cells.values():
        first = max(same, key=lambda check: check.excess)
        count = f"worst of {len(same)} cells" if len(same) > 1 else ""
        chosen.append(dataclasses.replace(first, note="; ".join(filter(None, (first.note, count)))))
    return chosen


# --- Monte Carlo ------------------------------------------------------------------------------------------------------


def estimates(settings: Settings, world: World, measure: Callable[[Sample], T]) -> Callable[[int, int], T]:
    """What is measured on the drawn sample of a size and a number; each sample is drawn once.

    The pool draws from torch's global generator, which is seeded too and restored afterwards.
    """

    @cache
    def estimate(size: int, repeat: int) -> T:
        seed = 1_000_000 * settings.seed + 10_007 * repeat + size
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return measure(model.draw_sample(world, size, seed))

    return estimate


def sampling(
    statement: str, quantity: str, predicted: Tensor, estimate: Callable[[int, int], Tensor], size: int, note: str = ""
) -> Check:
    """Compare the mean of independent estimates with the prediction, within a few standard errors."""
    found = torch.stack([estimate(size, repeat) for repeat in range(REPEATS)])
    standard_error = torch.linalg.vector_norm(found.std(0)) / math.sqrt(REPEATS)
    tolerance = SIGMAS * (standard_error / torch.linalg.vector_norm(predicted)).item()
    notes = "; ".join(filter(None, (f"N = {size}, {REPEATS} samples", note)))
    return compare(statement, quantity, predicted, found.mean(0), notes, tolerance)


def sampling_slope(
    statement: str, quantity: str, predicted: Tensor, estimate: Callable[[int, int], Tensor], size: int
) -> Check:
    """The exponent with which the root-mean-square error falls as the sample grows from size/27 to size."""
    # a single number scatters more than the norm of a matrix
    repeats = 3 * REPEATS if predicted.ndim == 0 else REPEATS
    points = []
    for smaller in (size // 27, size // 9, size // 3, size):
        squares = [(estimate(smaller, repeat) - predicted).square().sum() for repeat in range(repeats)]
        points.append((math.log(smaller), 0.5 * torch.stack(squares).mean().log().item()))
    measured, expected = slope(points), model.SAMPLING_RATE
    note = f"N = {size // 27} to {size}, {repeats} samples each"
    return Check(statement, quantity, expected, measured, abs(measured - expected), SLOPE, note)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Least squares."""
    across, up = torch.tensor(points, dtype=torch.float64).unbind(1)
    across = across - across.mean()
    return ((across * up).sum() / across.square().sum()).item()


# --- the loss: Eq. 4, Eq. 5, App. A.1 and Proposition 4.5 -------------------------------------------------------------


def two_forms(settings: Settings) -> Iterator[Check]:
    """Eq. 4: the second line is `Align` with alpha = 1 on the interpolated target."""
    sample = model.exact_sample(model.make_world(4, 8, 0.5, settings.seed), settings.seed, one_target_each=True)
    for (unit, norms), alpha in itertools.product(((True, "unit norm"), (False, "any norm")), (0.2, 0.5, 0.8)):
        wp = model.make_predictor(5, settings.seed + 1).requires_grad_()
        outputs = features(sample, model.make_weights(5, 8, settings.seed), wp, unit)
        sup, first = outputs.supervised, outputs.loss(alpha)
        target = model.mix(outputs.other_view, sup, alpha)
        # `Align` flips the views of its targets, so they are flipped before
        second = model.make_loss(1.0, sample)(outputs.anchors, target.flip(0), sample.labels).total
        cell, gap = f"alpha={alpha:g}", model.gap(outputs.other_view, sup, alpha)
        yield compare("Eq. 4", f"first form - second form, {norms}", gap, (first - second).detach(), cell)
        (by_first,) = torch.autograd.grad(first, wp, retain_graph=True)
        (by_second,) = torch.autograd.grad(second, wp)
        yield compare("Eq. 4", f"d/dWp of both forms, {norms}", by_second, by_first, cell)


def expansion(settings: Settings) -> Iterator[Check]:
    """App. A.1: the expansion under the constraints, that is on unit-norm features and with M = 1."""
    sample = model.exact_sample(model.make_world(4, 8, 0.5, settings.seed), settings.seed, one_target_each=True)
    outputs = features(
        sample, model.make_weights(5, 8, settings.seed), model.make_predictor(5, settings.seed + 1), unit=True
    )
    for alpha in (0.0, 0.3, 0.5, 1.0):
        measured, cell = outputs.loss(alpha), f"alpha={alpha:g}"
        arguments = outputs.anchors, outputs.other_view, outputs.supervised, alpha
        yield compare("App. A.1", "expanded loss, sign put right", model.expansion(*arguments), measured, cell)
        if alpha == 0.3:
            wrong, note = model.printed_expansion(*arguments), f"{cell}; the printed + is a slip"
            yield compare("App. A.1", "expanded loss, last line as printed", wrong, measured, note, None)


def expectation(settings: Settings) -> Iterator[Check]:
    """Eq. 5 from the shipped loss, by both of its forms, on exact moments and by Monte Carlo."""
    world = model.make_world(4, 8, 0.5, settings.seed)
    sample = model.exact_sample(world, settings.seed, one_target_each=True)
    w, wp = model.make_weights(5, 8, settings.seed), model.make_predictor(5, settings.seed + 1)
    outputs = features(sample, w, wp)
    for alpha, general in itertools.product((0.0, 0.3, 1.0), (False, True)):
        multipliers = (0.7, -0.4, 2.5) if general else (alpha, 1 - alpha, 1.0)
        predicted = model.lagrangian(world, w, wp, alpha, multipliers)
        rows = (outputs.other_view, outputs.supervised, outputs.anchors)
        constraints = [model.norm_squared(values) - 1 for values in rows]
        squared, cosine = outputs.loss(alpha), 2 + 2 * outputs.loss(alpha, "cosine")
        # the squared form holds each norm with these weights, the cosine form none
        for multiplier, weight, constraint in zip(multipliers, (alpha, 1 - alpha, 1.0), constraints, strict=True):
            squared = squared + (multiplier - weight) * constraint
            cosine = cosine + multiplier * constraint
        note = f"alpha={alpha:g}, lambda={', '.join(f'{value:g}' for value in multipliers)}"
        yield compare("Eq. 5", "squared loss + (lambda - own weight) constraints", predicted, squared, note)
        yield compare("Eq. 5", "2 + 2 cosine loss + lambda constraints", predicted, cosine, note)
    value = model.lagrangian(world, w, wp, 0.3, (0.3, 0.7, 1.0))
    arguments = (
        value,
        estimates(settings, world, lambda drawn: model.shipped_lagrangian(drawn, w, wp, 0.3)),
        settings.samples,
    )
    yield sampling("Eq. 5", "the plain squared loss by Monte Carlo", *arguments, "lambda=0.3, 0.7, 1")
    yield sampling_slope("Eq. 5", "exponent of the Monte-Carlo error", *arguments)


def measure_covariances(sample: Sample, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """E[z1 z1'], E[z2 z1'], E[z2sup z1'] read off the shipped loss: its gradient in Wp is linear in them.

    The loss is symmetric in the views, so the first two come as the mean over both orders.
    """
    zero, identity = torch.zeros(len(w), len(w), dtype=w.dtype), torch.eye(len(w), dtype=w.dtype)
    at_zero, _ = model.gradients(sample, w, zero, alpha=1.0)
    at_one, _ = model.gradients(sample, w, identity, alpha=1.0)
    supervised, _ = model.gradients(sample, w, zero, alpha=0.0)
    return (at_one - at_zero) / 2, -at_zero / 2, -supervised / 2


NAMES = ("E[z1 z1']", "E[z2 z1']", "E[z2sup z1']")


def covariances(settings: Settings) -> Iterator[Check]:
    """Eq. 6 by Monte Carlo, at several class counts and widths."""
    for classes, width, rows in ((2, 4, 4), (3, 6, 9), (5, 8, 8), (10, 16, 12)):
        world, w = (
            model.make_world(classes, width, 0.5, settings.seed),
            model.make_weights(rows, width, settings.seed + 1),
        )
        estimate = estimates(settings, world, partial(measure_covariances, w=w))
        closed_forms = (model.view_covariance, model.cross_covariance, model.supervised_covariance)
        for index, (name, formula) in enumerate(zip(NAMES, closed_forms, strict=True)):

            def one(size: int, repeat: int, estimate: Any = estimate, index: int = index) -> Tensor:
                found: Tensor = estimate(size, repeat)[index]
                return found

            arguments = formula(world, w), one, settings.samples
            yield sampling("Prop. 4.5", f"{name}, C={classes}, d={width}, k={rows}", *arguments)
            if classes == 5:
                yield sampling_slope("Prop. 4.5", f"exponent of the error of {name}", *arguments)


def eigenspaces(settings: Settings) -> Iterator[Check]:
    """Eq. 7 on exact moments: in data space the three share V; in feature space only if W'W commutes with S_B."""
    world = model.make_world(4, 6, 0.5, settings.seed)
    sample, (vectors, *spectra) = model.exact_sample(world, settings.seed), model.spectra(world)
    tall = model.make_weights(9, 6, settings.seed)
    inverse = torch.linalg.pinv(tall)  # W+ W = I for W of full column rank
    inner = [inverse @ matrix @ inverse.mT for matrix in measure_covariances(sample, tall)]
    for name, matrix, values in zip(NAMES, inner, spectra, strict=True):
        quantity, measured = f"V' W+ {name} W+' V, diagonal", vectors.mT @ matrix @ vectors
        yield compare("Prop. 4.5", quantity, torch.diag(values), measured, "W 9 x 6, full column rank")
    predicted, measured = model.commutator(world, torch.eye(6, dtype=DTYPE)), inner[0] @ inner[2]
    yield compare("Prop. 4.5", "commutator in data space", predicted, measured - inner[2] @ inner[0])
    commuting = model.make_weights(9, 6, settings.seed, basis=torch.linalg.eigh(world.between).eigenvectors)
    for w, which, note in (
        (commuting, "W'W commutes with S_B", ""),
        (tall, "any W", "not zero: no shared eigenspace here"),
    ):
        view, _, supervised = measure_covariances(sample, w)
        predicted, measured = model.commutator(world, w), view @ supervised - supervised @ view
        yield compare("Prop. 4.5", f"commutator in feature space, {which}", predicted, measured, note)


# --- the two gradients of App. A.3 and A.4 ----------------------------------------------------------------------------


def closed_gradients(settings: Settings) -> Iterator[Check]:
    """dL/dWp and dL/dW of App. A.3 and A.4 against autograd on exact moments."""
    world = model.make_world(4, 8, 0.5, settings.seed)
    sample = model.exact_sample(world, settings.seed)
    w, wp = model.make_weights(5, 8, settings.seed), model.make_predictor(5, settings.seed + 1)
    for alpha, lambda3 in itertools.product((0.0, 0.5, 1.0), (1.0, 2.0)):
        by_wp, by_w = model.gradients(sample, w, wp, alpha, lambda3)
        arguments, cell = (world, w, wp, alpha, lambda3), f"alpha={alpha:g}, lambda3={lambda3:g}"
        yield compare("App. A.3", "dL/dWp", model.predictor_gradient(*arguments), by_wp, cell)
        yield compare("App. A.4", "dL/dW", model.encoder_gradient(*arguments), by_w, cell)


def aligned_gradients(settings: Settings) -> Iterator[Check]:
    """Wp' dL/dWp = dL/dW W' with stop-gradient, for either form; without it, off by a known amount."""
    world = model.make_world(4, 8, 0.5, settings.seed)
    sample = model.exact_sample(world, settings.seed)
    # any Wp, not one near I: at alpha = 0 the leak is 2 (I - Wp) W S_B W'
    w, wp = model.make_weights(5, 8, settings.seed), model.make_weights(5, 5, settings.seed + 1)
    for alpha in (0.0, 0.5, 1.0):
        cell = f"alpha={alpha:g}"
        left, right = model.aligned_sides(wp, w, *model.gradients(sample, w, wp, alpha, 2.0))
        yield compare("Thm 4.7", "Wp' dL/dWp = dL/dW W', squared loss", left, right, cell)
        left, right = model.aligned_sides(wp, w, *_batch_gradients(sample, w, wp, alpha, "cosine", True))
        yield compare("Thm 4.7", "the same, cosine loss on unit-norm features", left, right, cell)
        left, right = model.aligned_sides(wp, w, *_batch_gradients(sample, w, wp, alpha, "squared", False))
        leak, leaked = model.leak(world, w, wp, alpha), right - left
        yield compare("Thm 4.7", "dL/dW W' - Wp' dL/dWp without stop-gradient", leak, leaked, cell)
        fraction = (torch.linalg.matrix_norm(leaked) / torch.linalg.matrix_norm(left)).item()
        # otherwise the rows above would prove nothing
        shortfall = MIN_LEAK_FRACTION / fraction if fraction else math.inf
        note = f"{cell}; asserted to exceed {MIN_LEAK_FRACTION:g}"
        yield Check("Thm 4.7", "share by which it fails without stop-gradient", None, fraction, shortfall, 1.0, note)


def _batch_gradients(
    sample: Sample, w: Tensor, wp: Tensor, alpha: float, form: Literal["cosine", "squared"], stop_gradient: bool
) -> tuple[Tensor, Tensor]:
    """With the batch's class mean for z_sup: a pool detaches what it stores, so only here can a gradient flow."""
    w, wp = w.detach().requires_grad_(), wp.detach().requires_grad_()
    outputs = features(sample, w, wp, unit=form == "cosine", stop_gradient=stop_gradient)
    total = model.make_loss(alpha, sample, form)(outputs.anchors, outputs.targets, sample.labels).total
    by_wp, by_w = torch.autograd.grad(total, (wp, w))
    return by_wp, by_w
