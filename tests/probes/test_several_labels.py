"""Scores of several labels per image against scikit-learn and plain loops: one-vs-rest regression, k-NN, transfer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.calibration import _SigmoidCalibration
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, f1_score
from sklearn.multiclass import OneVsRestClassifier

from supancl.data.labels import pairs_from_matrix
from supancl.probes import Features, linear_probe
from supancl.probes.answers import ClassScores, mean_average_precision
from supancl.probes.classifiers import (
    Calibration,
    KnnClassifier,
    RankedClasses,
    fit_linear_classifier,
    mean_f1,
    platt_scaling,
)
from supancl.probes.features import hold_out
from supancl.probes.knn import knn_answers
from supancl.probes.logistic import OneVsRest, append_ones, polish, solve

CLASSES = 4


def several(images: int, seed: int = 0, width: int = 5, soft: bool = False) -> Features:
    """Features in which every class has a direction, and images of one to three classes."""
    random = np.random.default_rng(seed)
    has_class = random.random((images, CLASSES)) < (0.5, 0.3, 0.3, 0.15)
    has_class[np.arange(images), random.integers(0, CLASSES, images)] = True
    directions = np.random.default_rng(100).normal(size=(CLASSES, width))
    values = has_class @ directions + 1.5 * random.normal(size=(images, width))
    weights = has_class * (random.uniform(0.2, 2, has_class.shape) if soft else 1.0)
    pairs = pairs_from_matrix(weights, 16, "made")
    rarest = np.where(has_class, has_class.sum(0), images + 1).argmin(1)
    return Features(torch.from_numpy(values).float(), torch.from_numpy(rarest), pairs)


def scikit_logits(values: np.ndarray, targets: np.ndarray, weight: float, test: np.ndarray) -> np.ndarray:
    """One regression per class; the ridge covers the bias, so the ones are a feature."""
    ones = [np.concatenate([block, np.ones((len(block), 1))], 1) for block in (values, test)]
    model = LogisticRegression(C=1 / (2 * weight), fit_intercept=False, tol=1e-12, max_iter=10_000)
    return OneVsRestClassifier(model).fit(ones[0], targets.astype(int)).decision_function(ones[1])


def standardized(train: Features, *others: Features) -> list[np.ndarray]:
    values = train.values.double().numpy()
    mean, scale = values.mean(0), values.std(0)
    return [(block.values.double().numpy() - mean) / scale for block in (train, *others)]


@pytest.mark.parametrize("weight", [1e-2, 1.0, 100.0])
def test_the_optimum_is_that_of_scikit_learn_per_class(weight):
    train = several(80)
    rows = append_ones(train.values.double())
    problem, single = OneVsRest(rows, train.targets(CLASSES)), OneVsRest(rows.float(), train.targets(CLASSES))
    found = polish(problem, single, weight, solve(single, weight).parameters, tolerance=1e-9)
    expected = scikit_logits(
        train.values.double().numpy(), train.targets(CLASSES).numpy(), weight, rows[:, :-1].numpy()
    )
    np.testing.assert_allclose((rows @ found.parameters.T).numpy(), expected, atol=1e-5)
    assert not found.cut_off


def test_slope_and_curvature_are_those_of_autograd():
    train = several(30)
    rows, targets = append_ones(train.values.double()), train.targets(CLASSES)
    problem = OneVsRest(rows, targets)
    parameters = torch.randn(CLASSES, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def loss(flat: torch.Tensor) -> torch.Tensor:
        logits = rows @ flat.view(CLASSES, 6).T
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, targets.double(), reduction="sum")

    value, residual = problem.slope(problem.margins(parameters))
    assert value == pytest.approx(float(loss(parameters.flatten())))
    assert problem.loss_at_zero == pytest.approx(float(loss(torch.zeros(CLASSES * 6, dtype=torch.float64))))
    gradient = torch.autograd.functional.jacobian(loss, parameters.flatten()).view(CLASSES, 6)
    torch.testing.assert_close(problem.gradient(residual), gradient)
    hessian = torch.autograd.functional.hessian(loss, parameters.flatten())
    torch.testing.assert_close(problem.curvature(residual).flatten(), hessian.diagonal())
    direction = torch.ones_like(parameters)
    product = (hessian @ direction.flatten()).view_as(direction)
    torch.testing.assert_close(problem.hessian_product(residual, direction), product)
    along = problem.margins(direction)
    assert problem.curvature_along(residual * along, along) == pytest.approx(float((direction * product).sum()))


def mean_precision(scores: np.ndarray, targets: np.ndarray) -> float:
    return 100 * float(np.mean([average_precision_score(targets[:, i], scores[:, i]) for i in range(CLASSES)]))


WEIGHTS = (0.01, 1.0, 30.0, 1000.0)


def test_the_linear_scores_are_those_of_the_best_ridge_on_the_images_that_choose():
    train, test = several(90), several(60, seed=1)
    found, held = linear_probe(train, test, None, WEIGHTS, classes=CLASSES), hold_out(train.labels).numpy()
    values, targets = standardized(train)[0], train.targets(CLASSES).numpy()
    by_weight = [
        mean_precision(scikit_logits(values[~held], targets[~held], weight, values[held]), targets[held])
        for weight in WEIGHTS
    ]
    assert found.held_out == pytest.approx(by_weight, abs=0.5)
    assert by_weight[WEIGHTS.index(found.weight)] == pytest.approx(max(by_weight), abs=1e-6)
    expected = scikit_logits(values, targets, found.weight, standardized(train, test)[1])
    np.testing.assert_allclose(found.measured.scores.numpy(), expected, atol=1e-3)
    assert found.images == (int((~held).sum()), int(held.sum()), 60)
    assert found.accuracy == pytest.approx(mean_precision(expected, test.targets(CLASSES).numpy()), abs=0.5)


def test_neighbours_divide_their_votes_among_their_classes():
    reference, queries = several(40, soft=True), several(15, seed=1, soft=True)
    found = knn_answers(reference, queries, (3, 7), 0.2, classes=CLASSES)
    unit = torch.nn.functional.normalize
    similarity = unit(queries.values, dim=1) @ unit(reference.values, dim=1).T
    for k in (3, 7):
        for row in range(15):
            votes = np.zeros(CLASSES)
            for column in similarity[row].argsort(descending=True)[:k].tolist():
                labels = {int(number): float(weight) for number, weight in reference.pairs[column] if number >= 0}
                for number, weight in labels.items():
                    votes[number] += math.exp(float(similarity[row, column]) / 0.2) * weight / sum(labels.values())
            np.testing.assert_allclose(found[k][row].numpy(), votes / votes.sum(), rtol=1e-4, atol=1e-7)


# --- the figure -------------------------------------------------------------------------------------------------------


def test_the_interval_and_the_difference_are_percentiles_over_the_same_draws():
    test = several(40)
    targets = test.targets(CLASSES)
    random = torch.Generator().manual_seed(0)
    ours = ClassScores(0.6 * targets + torch.rand(40, CLASSES, generator=random), targets)
    theirs = ClassScores(torch.rand(40, CLASSES, generator=random), targets)
    assert ours.value == mean_average_precision(ours.scores, targets)
    assert ours.interval.low == pytest.approx(np.percentile(ours.draws, 2.5))
    assert ours.interval.low < ours.value <= ours.interval.high
    gap = ours.minus(theirs)
    assert gap.mean == ours.value - theirs.value
    assert gap.high == pytest.approx(np.percentile(ours.draws - theirs.draws, 97.5))
    assert gap.low > 0
    assert ours.minus(ours) == (0, 0, 0)


# --- predicted labels ------------------------------------------------------------------------------------------------


def test_the_probability_of_knn_is_the_part_of_votes_for_images_with_the_class():
    references, queries = several(50), several(7, seed=1)
    found = KnnClassifier(references, CLASSES, 5).logits(queries.values).sigmoid()
    unit = [torch.nn.functional.normalize(part.values.double(), dim=1) for part in (references, queries)]
    has = references.targets(4).numpy()
    for row in range(7):
        similarity = (unit[0] @ unit[1][row]).numpy()
        nearest = np.argsort(-similarity)[:5]
        votes = np.exp((similarity[nearest] - similarity[nearest[0]]) / 0.1)
        for number in range(4):
            part = (votes[has[nearest, number]].sum() + has[:, number].mean()) / (votes.sum() + 1)
            assert float(found[row, number]) == pytest.approx(np.clip(part, 1e-6, 1 - 1e-6), abs=2e-5)


def test_the_mean_f1_is_scikit_learns():
    targets = several(160).targets(CLASSES)
    scores = torch.from_numpy(np.random.default_rng(0).uniform(0, 0.6, (160, 4))).float() + 0.35 * targets
    order = scores.sort(dim=1, descending=True)
    listed = (scores >= 0.5).numpy()
    listed[np.arange(160), scores.argmax(1).numpy()] = True
    found = mean_f1(RankedClasses(order.indices, order.values), targets)
    assert found.mean == pytest.approx(100 * f1_score(targets.numpy(), listed, average="samples"))
    assert found.low < found.mean < found.high


def test_platts_scaling_is_scikit_learns():
    random = np.random.default_rng(3)
    logits = random.normal(0, 1e-3, (200, 2))
    targets = random.uniform(size=(200, 2)) < 1 / (1 + np.exp(-2000 * logits + 1))
    scale, shift = platt_scaling(torch.from_numpy(logits), torch.from_numpy(targets))
    for number in range(2):
        expected = _SigmoidCalibration().fit(logits[:, number], targets[:, number])
        assert (float(scale[number]), float(shift[number])) == pytest.approx((-expected.a_, -expected.b_), rel=1e-3)
    separated = platt_scaling(torch.tensor([[-1.0], [1.0]]).double(), torch.tensor([[False], [True]]))
    assert float(torch.sigmoid(separated[0] + separated[1])) == pytest.approx(2 / 3, abs=1e-4)


def test_a_class_without_a_reference_is_never_listed_and_probabilities_are_frequencies():
    train, test = several(400), several(300, seed=5)
    classifier, ridge = fit_linear_classifier(train, train.take(torch.arange(0)), CLASSES + 1)
    assert ridge["ridge_chosen_on"] == "none"
    logits = classifier.logits(test.values)
    temperature = Calibration(logits[:, :-1], test.targets(CLASSES)).temperature
    assert 0.5 < temperature < 2
    probability = (logits / temperature).sigmoid()
    assert float(probability[:, -1].max()) == 0
    frequency = test.targets(CLASSES).double().mean(0)
    assert probability[:, :-1].mean(0).tolist() == pytest.approx(frequency.tolist(), abs=0.07)
