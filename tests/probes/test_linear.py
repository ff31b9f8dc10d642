"""The two probes against scikit-learn and against SGD written out."""

import inspect
import json
import math

import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from supancl.probes import Features, linear_accuracy, linear_probe, sgd_probe
from supancl.probes.features import hold_out, stratified_folds
from tests.probes.blobs import blobs


def best_of(scores: dict[float, float], images: int) -> float:
    """The weight of the highest score; of equal ones that nearest to 0.01 per image."""
    best = [weight for weight in scores if scores[weight] == max(scores.values())]
    return min(best, key=lambda weight: abs(math.log(weight / (0.01 * images))))


def test_the_probe_is_scikit_learns_regression_at_the_chosen_weight() -> None:
    train, test = blobs(240, noise=1.5), blobs(400, noise=1.5, seed=1)
    found = linear_probe(train, test, weights=(0.1, 1.0, 30.0, 1000.0), share=0.25, tolerance=1e-3)
    held = hold_out(train.labels, 0.25)
    right = {w: fitted_by_scikit_learn(train.take(~held), train, w, train.take(held)) for w in found.weights}
    scores = {weight: 100 * float(each.double().mean()) for weight, each in right.items()}
    assert list(found.held_out) == pytest.approx([scores[weight] for weight in found.weights])
    assert found.weight == best_of(scores, 240)
    expected = 100 * float(fitted_by_scikit_learn(train, train, found.weight, test).double().mean())
    assert found.accuracy == pytest.approx(expected, abs=0.26)  # one image of 400, for float32
    assert json.loads(json.dumps(found.to_json()))["images"] == [180, 60, 400]


def fitted_by_scikit_learn(fit: Features, scaled_by: Features, weight: float, asked: Features) -> torch.Tensor:
    """Which rows the optimum answers right."""
    values = scaled_by.values.double()

    def rows(some: Features) -> torch.Tensor:
        scaled = (some.values - values.mean(0)) / values.std(0, correction=0)
        return torch.cat([scaled, torch.ones(len(scaled), 1)], 1)

    model = LogisticRegression(C=1 / (2 * weight), fit_intercept=False, max_iter=5000, tol=1e-8)
    model.fit(rows(fit).numpy(), fit.labels.numpy())
    return torch.from_numpy(model.predict(rows(asked).numpy()) == asked.labels.numpy())


WEIGHTS = (0.1, 1.0, 30.0, 1000.0)


def test_other_features_choose_and_then_are_fitted_too() -> None:
    train, choose, test = (blobs(120, noise=2.0, seed=seed) for seed in range(3))
    found = linear_probe(train, test, choose, WEIGHTS)
    both = Features(torch.cat([train.values, choose.values]), torch.cat([train.labels, choose.labels]))
    scores = [float(fitted_by_scikit_learn(train, both, weight, choose).double().mean()) for weight in WEIGHTS]
    assert list(found.held_out) == pytest.approx([100 * score for score in scores], abs=0.9)  # of a rough solution
    assert found.weight == best_of(dict(zip(WEIGHTS, scores, strict=True)), 240)
    right = fitted_by_scikit_learn(both, both, found.weight, test)
    assert found.accuracy == pytest.approx(100 * float(right.double().mean()))
    assert (found.chosen_on, found.chosen_on_images, found.images) == ("held-out", 120, (120, 120, 120))
    assert "weight_by_half" not in found.to_json()


def test_of_halves_each_has_the_weight_that_is_best_on_the_other() -> None:
    train, test = blobs(60, noise=2.0), blobs(201, noise=2.0, seed=1)
    found = linear_probe(train, test, "halves", WEIGHTS)
    half = stratified_folds(test.labels, 2) == 0
    right = {w: fitted_by_scikit_learn(train, train, w, test) for w in WEIGHTS}
    expected = torch.zeros(201, dtype=torch.bool)
    for mine, weight in zip((half, ~half), found.weight_by_half, strict=True):
        counts = {each: int(right[each][~mine].sum()) for each in WEIGHTS}
        assert counts[weight] == max(counts.values())
        expected |= mine & right[weight]
    assert found.accuracy == pytest.approx(100 * float(expected.double().mean()))
    assert (found.chosen_on, found.chosen_on_images) == ("other half", 201)
    assert found.weight == best_of({weight: float(each.sum()) for weight, each in right.items()}, 60)
    assert json.loads(json.dumps(found.to_json()))["weight_by_half"] == list(found.weight_by_half)


def test_fewer_than_a_hundred_images_choose_no_ridge() -> None:
    train, few, many = blobs(90, noise=2.0), blobs(99, noise=2.0, seed=1), blobs(100, noise=2.0, seed=1)
    for choose, on in (("halves", "other half"), (many, "held-out")):
        assert linear_probe(train, few, None).chosen_on == linear_probe(train, few, "halves").chosen_on == "none"
        assert linear_probe(train, many, choose).chosen_on == on
    assert linear_probe(train, few, few).weight == pytest.approx(0.01 * (90 + 99))
    assert linear_probe(train, few, few).accuracy == linear_probe(train, few, few, weights=(0.01 * 189,)).accuracy
    assert linear_probe(blobs(1100), few).chosen_on == "10% of training"


def test_the_best_ridge_is_not_at_the_edge_of_the_grid() -> None:
    """Noise in 400 dimensions needs a stronger ridge than 1e5, three copies of few images a weaker one than 1e-3."""
    generator = torch.Generator().manual_seed(0)
    labels, tested = torch.arange(3000) % 2, torch.arange(400) % 2
    values, others = (torch.randn(len(some), 400, generator=generator) for some in (labels, tested))
    values[:, 0] += 0.2 * labels
    others[:, 0] += 0.2 * tested
    found = linear_probe(Features(values, labels), Features(others, tested), "halves")
    assert found.weights[0] < found.weight < found.weights[-1]


def test_test_images_may_lack_a_class_and_those_of_unknown_classes_are_wrong() -> None:
    train, test = blobs(80), blobs(90, seed=1)
    some = test.labels != 2
    right = fitted_by_scikit_learn(train, train, 1.0, test)
    found = linear_probe(train, Features(test.values[some], test.labels[some]), weights=(1.0,))
    assert found.accuracy == pytest.approx(100 * float(right[some].double().mean()))
    unknown = Features(test.values, torch.where(some, test.labels, 9))
    found = linear_probe(train, unknown, weights=(1.0,))
    assert found.accuracy == pytest.approx(100 * float((right & some).sum()) / 90)


def test_the_sgd_probe_is_sgd_written_out() -> None:
    train, test = blobs(70, width=5), blobs(90, width=5, seed=1)
    found = sgd_probe(train, test, epochs=6, batch_size=32, lr=2.0, milestones=(3, 5), seed=3)
    weight = 0.01 * torch.randn(4, 5, generator=torch.Generator().manual_seed(3))
    bias, moved = torch.zeros(4), [torch.zeros(4, 5), torch.zeros(4)]
    losses = []
    for epoch in range(6):
        lr = 2.0 * 32 / 256 * (0.1 if epoch >= 3 else 1) * (0.1 if epoch >= 5 else 1)
        order = torch.randperm(70, generator=torch.Generator().manual_seed(3 * 1_000_003 + epoch))
        total = 0.0
        for start in range(0, 70, 32):
            rows = order[start : start + 32]
            logits = train.values[rows] @ weight.T + bias
            total += float(F.cross_entropy(logits, train.labels[rows], reduction="sum"))
            error = (logits.softmax(1) - F.one_hot(train.labels[rows], 4)) / len(rows)
            for index, gradient in enumerate((error.T @ train.values[rows], error.sum(0))):
                moved[index] = 0.9 * moved[index] + gradient
            weight, bias = weight - lr * moved[0], bias - lr * moved[1]
        losses.append(total / 70)
    assert list(found.losses) == pytest.approx(losses, rel=1e-4)
    expected = 100 * float(((test.values @ weight.T + bias).argmax(1) == test.labels).double().mean())
    assert found.accuracy == pytest.approx(expected)
    assert inspect.signature(sgd_probe).parameters["milestones"].default == (60, 80)


def test_linear_accuracy_is_scikit_learns() -> None:
    train, test = blobs(80, noise=2.0), blobs(90, noise=2.0, seed=1)
    train.labels[::5] = -1
    kept, model = train.labelled(), make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=2000))
    model.fit(kept.values.numpy(), kept.labels.numpy())
    expected = 100 * model.score(test.values.numpy(), test.labels.numpy())
    assert linear_accuracy(train, test, 0.1) == pytest.approx(expected)
    assert linear_accuracy(train, test, 10.0) != expected
