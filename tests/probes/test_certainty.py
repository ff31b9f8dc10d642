"""How much an accuracy says: answers image by image, chance, the default k, what is not measurable."""

from dataclasses import replace

import pytest
import torch

from supancl.probes import (
    Features,
    accuracy,
    linear_probe,
    sgd_probe,
    transfer,
)
from supancl.probes.answers import Answers, image_weights
from supancl.stats import wilson_interval
from tests.probes.blobs import blobs

UNEQUAL = torch.tensor([0] * 6 + [1] * 2 + [5])


def test_answers_of_every_classifier_are_those_of_its_accuracy() -> None:
    train, validation, test = blobs(60, seed=0), blobs(30, seed=1), blobs(30, seed=2)
    for fitted in (
        linear_probe(train, test),
        linear_probe(train, test, "halves"),
        sgd_probe(train, test, epochs=2, batch_size=16),
        transfer(train, validation, test, weights=(0.1, 1.0)),
    ):
        assert 100 * float(fitted.measured.is_correct.double().mean()) == fitted.accuracy
    skewed = Features(test.values, test.labels.clone())
    fitted = transfer(train, validation, skewed, "mean-per-class", weights=(1.0,))
    assert fitted.measured.weighted("mean-per-class") == fitted.accuracy


def test_a_mean_per_class_counts_as_fewer_images_and_weighs_classes_equally() -> None:
    predictions = torch.tensor([0, 0, 0, 1, 1, 1, 1, 0, 5])
    answers, percent = (
        Answers(predictions == UNEQUAL, UNEQUAL, UNEQUAL),
        accuracy(predictions, UNEQUAL, "mean-per-class"),
    )
    assert answers.weighted("mean-per-class") == pytest.approx(percent)
    assert answers.interval == wilson_interval(answers.value, 9)
    # the variance of a mean of three class accuracies, if all images were equally hard
    effective, by_class = 9 / (1 / 6 + 1 / 2 + 1 / 1), replace(answers, metric="mean-per-class")
    assert by_class.interval == pytest.approx(wilson_interval(by_class.value, effective))
    assert float(image_weights(UNEQUAL, "mean-per-class").mean()) == pytest.approx(1.0)
    wrong = Answers(torch.zeros(9, dtype=torch.bool), UNEQUAL, UNEQUAL)
    assert by_class.minus(wrong).mean == pytest.approx(percent)
