"""Learning rate and EMA momentum as functions of the step. Nothing else in the package changes either."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from supancl.config import Natural, Within

Schedule = Callable[[int], float]


@dataclass(frozen=True)
class ScheduleSpec:
    """Linear warm-up, then cosine to zero; the predictor's rate may be constant (App. C).

    An extended run (`pretrain --extend`) has no second warm-up: its cosine starts at `restart_rate` times the peak.
    """

    warmup_epochs: Natural = 0
    decay: Literal["cosine", "constant"] = "cosine"
    predictor: Literal["constant", "follows"] = "constant"
    granularity: Literal["step", "epoch"] = "step"  # the released code changes the rate once an epoch
    restart_epoch: Natural = 0  # of an extended run: where the run that it continues ended
    restart_rate: Annotated[float, Within(0, 1, exclusive_low=True)] = 1.0


def learning_rate(
    spec: ScheduleSpec, peak: float, epochs: int, steps_per_epoch: int, predictor: bool = False
) -> Schedule:
    """A function: step (0, 1, ...) -> learning rate.

    The recipe shortens a warm-up that leaves no epochs for the decay (recipes.recipe.resolve_warmup).

    >>> rate = learning_rate(ScheduleSpec(), peak=1.0, epochs=10, steps_per_epoch=1)
    >>> rate(0), round(rate(5), 3)
    (1.0, 0.5)
    >>> rate = learning_rate(ScheduleSpec(restart_epoch=6, restart_rate=0.2), peak=1.0, epochs=10, steps_per_epoch=1)
    >>> rate(6), round(rate(8), 3)
    (0.2, 0.1)
    """
    if predictor and spec.predictor == "constant":
        return lambda step: peak  # constant for the predictor, warm-up included: App. C
    warmup = spec.warmup_epochs
    decay_start, top = (spec.restart_epoch, peak * spec.restart_rate) if spec.restart_epoch else (warmup, peak)

    def rate(step: int) -> float:
        epoch = step / steps_per_epoch if spec.granularity == "step" else float(step // steps_per_epoch)
        if epoch < warmup:
            offset = 1 / steps_per_epoch if spec.granularity == "step" else 1  # so that the first rate is not 0
            return peak * min(1.0, (epoch + offset) / warmup)
        if spec.decay == "constant":
            return top
        return top * 0.5 * (1 + math.cos(math.pi * (epoch - decay_start) / (epochs - decay_start)))

    return rate


def ema_momentum(start: float, end: float, steps: int) -> Schedule:
    """m(t) = end - (end - start)(1 + cos(pi t / T)) / 2: from `start` to `end` over the run."""
    if start == end:
        return lambda step: start
    return lambda step: end - (end - start) * (1 + math.cos(math.pi * step / steps)) / 2
