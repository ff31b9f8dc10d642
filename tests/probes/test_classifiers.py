"""Classifiers of features: the linear one is that of the probe, temperatures calibrate, thresholds are percentiles."""

import math

import pytest
import torch

from supancl.probes import Features, knn_answers, linear_probe
from supancl.probes.classifiers import (
    Calibration,
    KnnClassifier,
    fit_linear_classifier,
    fit_means,
    rank_classes,
    unlike_threshold,
)


def temperature_of(logits: torch.Tensor, targets: torch.Tensor) -> float:
    return Calibration(logits, targets).temperature


def classify(classifier, values: torch.Tensor) -> torch.Tensor:
    return rank_classes(classifier, values, 5).labels[:, 0]


def blobs(count: int, seed: int, spread: float = 1.0) -> Features:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    centres = torch.tensor([[2.0, 0.0, 1.0], [0.0, 2.0, 1.0], [-1.0, -1.0, 1.0]])
    return Features(5 + centres[labels] + spread * torch.randn(count, 3, generator=generator), labels)


def test_the_nearest_class_mean_is_that_of_a_loop_however_large_a_class_is():
    values = torch.randn(30, 5, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([0] * 20 + [2] * 7 + [3] * 2 + [-1])
    units = values / values.norm(dim=1, keepdim=True)
    means = {label: sum(unit for unit in units[labels == label]) for label in (0, 2, 3)}
    queries = torch.randn(8, 5, generator=torch.Generator().manual_seed(2))
    expected = [max(means, key=lambda label: float(query @ means[label] / means[label].norm())) for query in queries]
    classifier = fit_means(Features(values, labels), 4)  # class 1 has no image
    found = classify(classifier, queries)
    assert found.tolist() == expected
    assert float(classifier.logits(values[:-1])[:, [0, 2, 3]].std(1).mean()) == pytest.approx(2.0, rel=1e-4)


def test_the_linear_classifier_has_the_accuracy_of_the_probe():
    train, held_out = blobs(90, 0), blobs(120, 1)
    classifier, ridge = fit_linear_classifier(train, held_out, 3)
    accuracy = 100 * float((classify(classifier, held_out.values) == held_out.labels).double().mean())
    assert accuracy == pytest.approx(linear_probe(train, held_out, None, (ridge["ridge"],)).accuracy)


def test_a_ridge_is_chosen_on_a_hundred_images_or_not_at_all():
    def ridge(train: int, held_out: int) -> tuple[float, str]:
        return tuple(fit_linear_classifier(blobs(train, 0), blobs(held_out, 1), 3)[1].values())

    assert ridge(90, 120) == (linear_probe(blobs(90, 0), blobs(120, 1), "halves").weight, "held-out")
    assert ridge(1100, 0)[1] == "10% of training"
    assert ridge(1100, 12)[1] == "none"
    assert ridge(90, 12) == (pytest.approx(0.9), "none")
    assert ridge(3, 0)[0] == pytest.approx(0.03)  # one image per class


def test_knn_predicts_as_the_probe_does_and_no_class_has_probability_0():
    train, queries = blobs(60, 0), blobs(30, 1)
    classifier = KnnClassifier(train, 3, 7)
    assert torch.equal(classify(classifier, queries.values), knn_answers(train, queries, (7,))[7])
    probability = classifier.logits(queries.values).softmax(1)
    assert float(probability.min()) > 0
    assert torch.allclose(probability.sum(1), torch.ones(30))


@pytest.mark.parametrize("true_temperature", [0.5, 1.0, 4.0])
def test_the_temperature_makes_confidence_the_fraction_that_is_right(true_temperature):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(4000, 4, generator=generator)
    labels = torch.multinomial((logits / true_temperature).softmax(1), 1, generator=generator)[:, 0]
    temperature = temperature_of(logits, labels)
    assert temperature == pytest.approx(true_temperature, rel=0.12)
    confidence, answers = (logits / temperature).softmax(1).max(1)
    assert float(confidence.mean()) == pytest.approx(float((answers == labels).float().mean()), abs=0.02)


def test_few_images_hardly_move_the_temperature_and_none_leave_it():
    logits, right = torch.tensor([[4.0, 0.0]]), torch.tensor([0])
    assert temperature_of(logits[:0], right[:0]) == 1
    assert 0.8 < temperature_of(logits, right) <= 1
    assert temperature_of(logits.repeat(500, 1), right.repeat(500)) <= 0.5
    assert 1 < temperature_of(logits, 1 - right) < 8


def test_the_threshold_is_the_first_percentile_of_images_that_were_held_out():
    references = Features(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]))
    angles = torch.linspace(0, 0.5, 101)
    held_out = torch.stack([angles.cos(), -angles.sin()], 1)  # each further from the first reference
    threshold, by = unlike_threshold(references, held_out)
    assert by == "held-out"
    assert math.acos(threshold) == pytest.approx(0.495, abs=2e-3)
    threshold, by = unlike_threshold(references, held_out[:5])  # too few: each reference and its nearest other one
    assert (by, threshold) == ("references", pytest.approx(0.0))
