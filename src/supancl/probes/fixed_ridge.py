"""A linear classifier with one fixed ridge: cheap enough to be fitted while training."""

from __future__ import annotations

import math

import torch

from supancl.probes.features import Features
from supancl.probes.logistic import Problem, answers, onto_axes, principal_axes, solve

RIDGE = 0.01  # of the ridge's weight per image that is fitted
TOLERANCE = 0.05


def fixed_ridge_accuracy(fit: Features, test: Features) -> float:
    """Accuracy in percent on `test` of multinomial logistic regression on the standardised features of `fit`.

    The objective is that of `linear_probe`, but the ridge is fixed, so nothing is held out to choose it. There is no
    randomness. Not a number where fewer than two classes can be fitted or no test image has a label.

    >>> fit = Features(torch.tensor([[0.0], [1.0], [4.0], [5.0]]), torch.tensor([3, 3, 8, 8]))
    >>> fixed_ridge_accuracy(fit, Features(torch.tensor([[0.5], [9.0], [9.0]]), torch.tensor([3, 8, 3])))
    66.66666666666666
    """
    fit, test = fit.labelled(), test.labelled()
    classes, labels = torch.unique(fit.labels, return_inverse=True)
    if len(classes) < 2 or not len(test.labels):
        return math.nan
    mean, scale = fit.values.mean(0), fit.values.std(0, correction=0)
    scale = torch.where(scale > 1e-6 * scale.max(), scale, torch.ones_like(scale))  # a dead unit stays dead
    values = (fit.values - mean) / scale
    try:
        axes = principal_axes(values, torch.float32)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # a look in passing must not end a run
        return math.nan
    problem = Problem(onto_axes(values, axes), labels, len(classes))
    found = solve(problem, RIDGE * len(labels), tolerance=TOLERANCE)
    answered = classes[answers(found.parameters, axes, (test.values - mean) / scale)]
    return 100 * float((answered == test.labels).double().mean())
