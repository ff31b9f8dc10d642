"""What a check of the theory is, and how measurements are compared: exactly, or within a Monte-Carlo error."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

from supancl.paper.theorems import formulas
from supancl.paper.theorems.world import Sample, World, draw_sample

EXACT = 1e-10  # tolerance where both sides differ only by rounding
SIGMAS = 4.0  # tolerance of a Monte-Carlo mean, in standard errors
SLOPE = 0.15  # tolerance of a fitted Monte-Carlo exponent, expected -1/2
REPEATS = 48  # independent samples for every Monte-Carlo figure
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

    def to_json(self) -> dict[str, object]:
        return {**dataclasses.asdict(self), "asserted": self.asserted, "passed": self.passed}


def compare(
    statement: str, quantity: str, predicted: Tensor, measured: Tensor, tolerance: float | None = EXACT, note: str = ""
) -> Check:
    """Compare two scalars or matrices; the error is relative unless the prediction is zero."""
    size = torch.linalg.vector_norm(predicted)
    distance = torch.linalg.vector_norm(measured - predicted)
    error = distance / size if size > 1e-12 else distance
    shown, found = (torch.linalg.vector_norm(value) if value.ndim else value for value in (predicted, measured))
    return Check(statement, quantity, shown.item(), found.item(), error.item(), tolerance, note)


def worst(cells: Sequence[Check], note: str = "") -> Check:
    """The check with the largest error relative to its tolerance, which represents all of them."""

    def excess(cell: Check) -> float:
        ratio = (cell.error if cell.error is not None else math.nan) / (cell.tolerance or 1.0)
        return math.inf if math.isnan(ratio) else ratio

    chosen = max(cells, key=excess)
    notes = (chosen.note, f"worst of {len(cells)} cells" if len(cells) > 1 else "", note)
    return dataclasses.replace(chosen, note="; ".join(filter(None, notes)))


# --- Monte Carlo ------------------------------------------------------------------------------------------------------


def sample_seed(seed: int, size: int, repeat: int) -> int:
    """A different seed for every sample and every run."""
    return 1_000_000 * seed + 10_007 * repeat + size


def estimates(settings: Settings, world: World, measure: Callable[[Sample], T]) -> Callable[[int, int], T]:
    """What is measured on the drawn sample of a size and a number; each sample is drawn once.

    The pool draws from torch's global generator, which is seeded too and restored afterwards.
    """

    @cache
    def estimate(size: int, repeat: int) -> T:
        seed = sample_seed(settings.seed, size, repeat)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return measure(draw_sample(world, size, seed))

    return estimate


def sampling(
    statement: str, quantity: str, predicted: Tensor, estimate: Callable[[int, int], Tensor], size: int, note: str = ""
) -> Check:
    """Compare the mean of independent estimates with the prediction, within a few standard errors."""
    estimates = torch.stack([estimate(size, repeat) for repeat in range(REPEATS)])
    standard_error = torch.linalg.vector_norm(estimates.std(0)) / math.sqrt(REPEATS)
    tolerance = SIGMAS * (standard_error / torch.linalg.vector_norm(predicted)).item()
    notes = "; ".join(filter(None, (f"N = {size}, {REPEATS} samples", note)))
    return compare(statement, quantity, predicted, estimates.mean(0), tolerance, notes)


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
    measured = slope(points)
    note, expected = f"N = {size // 27} to {size}, {repeats} samples each", formulas.SAMPLING_RATE
    return Check(statement, quantity, expected, measured, abs(measured - expected), SLOPE, note)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Least squares."""
    across, up = torch.tensor(points, dtype=torch.float64).unbind(1)
    across = across - across.mean()
    return ((across * up).sum() / across.square().sum()).item()
