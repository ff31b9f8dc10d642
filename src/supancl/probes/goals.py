"""What a linear classifier learns, and by which figure it is judged: one label per image, or several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from supancl.probes.logistic import Problem
from supancl.probes.one_vs_rest import OneVsRest
from supancl.probes.precision import mean_average_precision


class Goal(Protocol):
    """Targets are labels (images,), or (images, classes) for several labels."""

    def problem(self, rows: Tensor, targets: Tensor) -> Problem:
        """What is to be minimised on these images."""

    def answers(self, logits: Tensor) -> Tensor:
        """What the logits (classes, images) say about each image, in the order of the images."""

    def quality(self, answers: Tensor, targets: Tensor) -> float:
        """How good the answers are, in percent."""


@dataclass(frozen=True)
class OneLabel:
    """Multinomial regression; an answer is the number of a class, and `measure` its accuracy."""

    classes: int
    measure: Callable[[Tensor, Tensor], float]

    def problem(self, rows: Tensor, targets: Tensor) -> Problem:
        return Problem(rows, targets, self.classes)

    def answers(self, logits: Tensor) -> Tensor:
        return logits.argmax(0)

    def quality(self, answers: Tensor, targets: Tensor) -> float:
        return self.measure(answers, targets)


@dataclass(frozen=True)
class SeveralLabels:
    """A regression per class; an answer is a score for every class, and its figure mean average precision."""

    def problem(self, rows: Tensor, targets: Tensor) -> Problem:
        return OneVsRest(rows, targets)

    def answers(self, logits: Tensor) -> Tensor:
        return logits.T

    def quality(self, answers: Tensor, targets: Tensor) -> float:
        return mean_average_precision(answers, targets)
