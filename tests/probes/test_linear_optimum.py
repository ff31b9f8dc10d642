"""At its default settings the linear probe answers as the optimum in double precision does, found by scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from supancl.probes import Features, linear_probe

ASKED = 2400


def draw_problem(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Training rows, labels and rows to ask about in float32, and a ridge; sizes, overlap and scales vary."""
    random = np.random.default_rng(seed)
    classes, width = int(random.integers(2, 13)), int(random.integers(3, 90))
    images, overlap = int(random.integers(12 * classes, 600)), 10 ** random.uniform(-0.5, 0.8)
    centres, mix = random.normal(size=(classes, width)), random.normal(size=(width, width))
    decay = np.logspace(0, -random.uniform(0, 2.5), width)  # features that hang together
    scales = 10 ** random.uniform(-3, 3) * 10 ** random.uniform(-1, 1, width)
    offset = random.normal(size=width) * random.choice([0, 3])

    def rows(labels: np.ndarray) -> np.ndarray:
        plain = (centres[labels] + overlap * random.normal(size=(len(labels), width))) * decay
        return ((plain @ mix + offset) * scales).astype(np.float32)

    labels = np.concatenate([np.arange(classes), random.integers(0, classes, images - classes)])
    ridge = float(10.0 ** random.integers(-3, 4))
    return rows(labels), labels, rows(np.arange(ASKED) % classes), ridge


def answers_at_optimum(train: np.ndarray, labels: np.ndarray, asked: np.ndarray, ridge: float) -> np.ndarray:
    """Summed cross-entropy + ridge * (squared norm with the bias): C = 1 / (2 ridge) and a column of ones."""
    mean, deviation = train.astype(np.float64).mean(0), train.astype(np.float64).std(0)

    def rows(values: np.ndarray) -> np.ndarray:
        return np.hstack([(values - mean) / deviation, np.ones((len(values), 1))])

    if len(np.unique(labels)) == 2:  # scikit-learn has one row of parameters for two classes, the half of two rows
        ridge /= 2
    model = LogisticRegression(C=1 / (2 * ridge), fit_intercept=False, solver="newton-cg", tol=1e-11, max_iter=2000)
    return model.fit(rows(train), labels).predict(rows(asked))


@pytest.mark.parametrize("seed", range(20))
def test_the_probe_answers_as_the_optimum_does(seed: int) -> None:
    train, labels, asked, ridge = draw_problem(seed)
    expected = answers_at_optimum(train, labels, asked, ridge)
    assert set(expected) == set(labels)  # so that they can stand in for the labels
    fit, test = Features(*map(torch.from_numpy, (train, labels))), Features(*map(torch.from_numpy, (asked, expected)))
    found = linear_probe(fit, test, weights=(ridge,))
    assert round((100 - found.accuracy) * ASKED / 100) <= 1
    assert not found.cut_off
