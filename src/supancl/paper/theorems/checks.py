"""What a check is, and the checks of Eq. 4, Eq. 5, App. A.1 and Proposition 4.5."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from supancl.paper.theorems.formulas import Formulas, Multipliers, printed_expansion
from supancl.paper.theorems.world import (
    Sample,
    World,
    draw_sample,
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

EXACT = 1e-10  # tolerance where both sides differ only by rounding
SIGMAS = 4.0  # tolerance of a Monte-Carlo mean, in standard errors
SLOPE = 0.15  # tolerance of a fitted Monte-Carlo exponent, expected -1/2
REPEATS = 48  # independent samples for every Monte-Carlo figure
SIZES = ((2, 4, 4), (3, 6, 9), (5, 8, 8), (10, 16, 12))  # classes, input width, feature width
NAMES = ("E[z1 z1']", "E[z2 z1']", "E[z2sup z1']")

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

    def to_json(self) -> dict[str, object]:
        return {**dataclasses.asdict(self), "asserted": self.asserted, "passed": self.passed}


def compare(
    statement: str, quantity: str, predicted: Tensor, measured: Tensor, tolerance: float | None, note: str = ""
) -> Check:
    """Compare two scalars or matrices; the error is relative unless the prediction is zero."""
    size = torch.linalg.vector_norm(predicted)
    distance = torch.linalg.vector_norm(measured - predicted)
    error = distance / size if size > 1e-12 else distance
    return Check(
        statement, quantity, _value_or_norm(predicted), _value_or_norm(measured), error.item(), tolerance, note
    )


def worst(cells: Sequence[Check], note: str = "") -> Check:
    """The check with the largest error relative to its tolerance, which represents all of them."""

    def excess(cell: Check) -> float:
        ratio = (cell.error if cell.error is not None else math.nan) / (cell.tolerance or 1.0)
        return math.inf if math.isnan(ratio) else ratio

    cell_with_worst = max(cells, key=excess)
    notes = (cell_with_worst.note, f"worst of {len(cells)} cells" if len(cells) > 1 else "", note)
    return dataclasses.replace(cell_with_worst, note="; ".join(text for text in notes if text))


def sampling(
    statement: str, quantity: str, predicted: Tensor, estimate: Callable[[int, int], Tensor], size: int, note: str = ""
) -> Check:
    """Compare the mean of independent estimates with the prediction, within a few standard errors."""
    estimates = torch.stack([estimate(size, repeat) for repeat in range(REPEATS)])
    mean = estimates.mean(0)
    standard_error = torch.linalg.vector_norm(estimates.std(0)) / math.sqrt(REPEATS)
    tolerance = SIGMAS * (standard_error / torch.linalg.vector_norm(predicted)).item()
    notes = (f"N = {size}, {REPEATS} samples", note)
    return compare(statement, quantity, predicted, mean, tolerance, "; ".join(text for text in notes if text))


def sampling_slope(
    statement: str, quantity: str, predicted: Tensor, estimate: Callable[[int, int], Tensor], size: int, expected: float
) -> Check:
    """The exponent with which the root-mean-square error falls as the sample grows from size/27 to size."""
    # a single number scatters more than the norm of a matrix
    repeats = 3 * REPEATS if predicted.ndim == 0 else REPEATS
    points = []
    for smaller in (size // 27, size // 9, size // 3, size):
        squares = [(estimate(smaller, repeat) - predicted).square().sum() for repeat in range(repeats)]
        points.append((math.log(smaller), 0.5 * torch.stack(squares).mean().log().item()))
    measured = slope(points)
    note = f"N = {size // 27} to {size}, {repeats} samples each"
    return Check(statement, quantity, expected, measured, abs(measured - expected), SLOPE, note)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Least squares."""
    across, up = torch.tensor(points, dtype=torch.float64).unbind(1)
    across = across - across.mean()
    return ((across * up).sum() / across.square().sum()).item()


def sample_seed(seed: int, size: int, repeat: int) -> int:
    """A different seed for every sample and every run."""
    return 1_000_000 * seed + 10_007 * repeat + size


@contextmanager
def seed_torch(seed: int) -> Iterator[None]:
    """Seed torch's global generator, from which the pool draws; its state is restored afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def two_forms(settings: Settings, formulas: Formulas) -> list[Check]:
    """Eq. 4: the second line is `Align` with alpha = 1 on the interpolated target."""
    world = make_world(4, 8, 0.5, settings.seed)
    sample = exact_sample(world, settings.seed, one_target_each=True)
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
            cell = f"alpha={alpha:g}"
            gap, difference = formulas.gap(outputs.other_view(), sup, alpha), (first - second).detach()
            gaps.append(compare("Eq. 4", f"first form - second form, {norms}", gap, difference, EXACT, cell))
            (by_first,) = torch.autograd.grad(first, wp, retain_graph=True)
            (by_second,) = torch.autograd.grad(second, wp)
            slopes.append(compare("Eq. 4", f"d/dWp of both forms, {norms}", by_second, by_first, EXACT, cell))
        checks += [worst(gaps), worst(slopes)]
    return checks


def expansion(settings: Settings, formulas: Formulas) -> list[Check]:
    """App. A.1: the expansion under the constraints, that is on unit-norm features and with M = 1."""
    world = make_world(4, 8, 0.5, settings.seed)
    sample = exact_sample(world, settings.seed, one_target_each=True)
    w, wp = make_weights(5, 8, settings.seed), make_predictor(5, settings.seed + 1)
    cells = []
    for alpha in (0.0, 0.3, 0.5, 1.0):
        outputs = features(sample, w, wp, unit=True)
        loss = make_loss(alpha, sample)
        sup = loss.supervised_target(outputs.other_view(), sample.labels, outputs.pool)
        measured = loss(outputs.anchors, outputs.targets, sample.labels, outputs.pool).total
        predicted = formulas.expansion(outputs.anchors, outputs.other_view(), sup, alpha)
        cell = f"alpha={alpha:g}"
        cells.append(compare("App. A.1", "expanded loss, sign put right", predicted, measured, EXACT, cell))
        if alpha == 0.3:
            wrong = printed_expansion(outputs.anchors, outputs.other_view(), sup, alpha)
            note = f"{cell}; the printed + is a slip"
            printed = compare("App. A.1", "expanded loss, last line as printed", wrong, measured, None, note)
    return [worst(cells), printed]


def expectation(settings: Settings, formulas: Formulas) -> list[Check]:
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
            squared.append(
                compare("Eq. 5", "squared loss + (lambda - own weight) constraints", predicted, by_squared, EXACT, note)
            )
            cosine.append(compare("Eq. 5", "2 + 2 cosine loss + lambda constraints", predicted, by_cosine, EXACT, note))

    alpha, multipliers_of_loss = 0.3, Multipliers(0.3, 0.7, 1.0)
    value = formulas.lagrangian(world, w, wp, alpha, multipliers_of_loss)

    def estimate(size: int, repeat: int) -> Tensor:
        seed = sample_seed(settings.seed, size, repeat)
        with seed_torch(seed):
            return lagrangian(draw_sample(world, size, seed), w, wp, alpha)

    return [
        worst(squared, "own weight: alpha, 1 - alpha, 1"),
        worst(cosine),
        sampling(
            "Eq. 5", "the plain squared loss by Monte Carlo", value, estimate, settings.samples, "lambda=0.3, 0.7, 1"
        ),
        sampling_slope(
            "Eq. 5", "exponent of the Monte-Carlo error", value, estimate, settings.samples, formulas.sampling_rate
        ),
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


class _Estimates:
    """Monte-Carlo estimates of the three covariances; each sample is drawn once and serves all three."""

    def __init__(self, world: World, w: Tensor, seed: int) -> None:
        self.world, self.w, self.seed = world, w, seed
        self.cached: dict[tuple[int, int], tuple[Tensor, Tensor, Tensor]] = {}

    def estimator(self, index: int) -> Callable[[int, int], Tensor]:
        def estimate(size: int, repeat: int) -> Tensor:
            if (size, repeat) not in self.cached:
                seed = sample_seed(self.seed, size, repeat)
                with seed_torch(seed):
                    self.cached[size, repeat] = measure_covariances(draw_sample(self.world, size, seed), self.w)
            return self.cached[size, repeat][index]

        return estimate


def covariances(settings: Settings, formulas: Formulas) -> list[Check]:
    """Eq. 6 by Monte Carlo, at several class counts and widths."""
    closed_forms = (formulas.view_covariance, formulas.cross_covariance, formulas.supervised_covariance)
    checks, slopes = [], []
    for classes, width, rows in SIZES:
        world = make_world(classes, width, 0.5, settings.seed)
        w = make_weights(rows, width, settings.seed + 1)
        estimates = _Estimates(world, w, settings.seed)
        for index, (name, formula) in enumerate(zip(NAMES, closed_forms, strict=True)):
            predicted = formula(world, w)
            arguments = predicted, estimates.estimator(index), settings.samples
            checks.append(sampling("Prop. 4.5", f"{name}, C={classes}, d={width}, k={rows}", *arguments))
            if classes == 5:
                quantity = f"exponent of the error of {name}"
                slopes.append(sampling_slope("Prop. 4.5", quantity, *arguments, formulas.sampling_rate))
    return checks + slopes


def eigenspaces(settings: Settings, formulas: Formulas) -> list[Check]:
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
        checks.append(compare("Prop. 4.5", quantity, predicted, measured, EXACT, note))
    predicted = formulas.commutator(world, torch.eye(6, dtype=tall.dtype))
    measured = inner[0] @ inner[2] - inner[2] @ inner[0]
    checks.append(compare("Prop. 4.5", "commutator in data space", predicted, measured, EXACT))
    basis = torch.linalg.eigh(world.between).eigenvectors
    for w, which in ((make_weights(9, 6, settings.seed, basis=basis), "W'W commutes with S_B"), (tall, "any W")):
        view, _, supervised = measure_covariances(sample, w)
        predicted, measured = formulas.commutator(world, w), view @ supervised - supervised @ view
        note = "not zero: no shared eigenspace here" if which == "any W" else ""
        checks.append(compare("Prop. 4.5", f"commutator in feature space, {which}", predicted, measured, EXACT, note))
    return checks


def _lagrangian_of_both(
    sample: Sample, w: Tensor, wp: Tensor, alpha: float, multipliers: Multipliers
) -> tuple[Tensor, Tensor]:
    """Eq. 5 from the squared form, which holds each norm with weights alpha, 1 - alpha, 1, and from the cosine."""
    outputs = features(sample, w, wp)
    loss = make_loss(alpha, sample)
    sup = loss.supervised_target(outputs.other_view(), sample.labels, outputs.pool)
    constraints = [norm_squared(rows) - 1 for rows in (outputs.other_view(), sup, outputs.anchors)]
    squared = loss(outputs.anchors, outputs.targets, sample.labels, outputs.pool).total
    cosine = make_loss(alpha, sample, "cosine")(outputs.anchors, outputs.targets, sample.labels, outputs.pool).total
    for multiplier, weight, constraint in zip(multipliers, (alpha, 1 - alpha, 1.0), constraints, strict=True):
        squared = squared + (multiplier - weight) * constraint
        cosine = cosine + multiplier / 2 * constraint
    return squared, 2 + 2 * cosine


def _value_or_norm(value: Tensor) -> float:
    return value.item() if value.ndim == 0 else torch.linalg.vector_norm(value).item()
