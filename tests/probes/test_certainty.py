"""How much an accuracy says: answers image by image, chance, the default k, what is not measurable."""

import math

import pytest
import torch
import torch.nn.functional as F

from supancl.probes import (
    Features,
    accuracy,
    collapse,
    knn_accuracy,
    knn_leave_one_out,
    linear_probe,
    sgd_probe,
    transfer,
    variance,
)
from supancl.probes.certainty import Answers, accuracy_interval, chance, difference, image_weights, weighted_accuracy
from supancl.probes.knn import default_k, knn_answers
from supancl.probes.linear import stratified_folds
from supancl.stats import wilson_interval
from tests.probes.blobs import blobs

UNEQUAL = torch.tensor([0] * 6 + [1] * 2 + [5])


@pytest.mark.parametrize(
    ("per_class", "expected"), [(1, 1), (4, 1), (8, 2), (40, 10), (79, 20), (80, 20), (500, 20)]
)  # fmt: skip
def test_k_is_a_quarter_of_the_references_per_class_and_never_above_20(per_class: int, expected: int) -> None:
    labels = torch.arange(3).repeat_interleave(per_class)
    assert default_k(torch.cat([labels, torch.tensor([-1] * 50)])) == expected


def test_k_follows_the_median_class_and_counts_what_leaving_one_out_leaves() -> None:
    assert default_k(torch.tensor([0] * 1000 + [1] * 8 + [2] * 8)) == 2
    assert (default_k(torch.arange(2).repeat(7)), default_k(torch.arange(2).repeat(7), leave_one_out=True)) == (2, 2)
    assert (default_k(torch.arange(2).repeat(6)), default_k(torch.arange(2).repeat(6), leave_one_out=True)) == (2, 1)
    assert default_k(torch.tensor([-1])) == 20


def test_answers_of_k_nn_are_those_of_its_accuracy() -> None:
    reference, queries = blobs(40, seed=0), blobs(30, seed=1)
    for k, said in knn_answers(reference, queries, (1, 5)).items():
        assert accuracy(said, queries.labels) == knn_accuracy(reference, queries, k)
    everyone = knn_answers(reference, reference, (5,), leave_one_out=True)[5]
    assert accuracy(everyone, reference.labels) == knn_leave_one_out(reference, 5)


def test_leaving_one_out_may_add_references_that_are_not_tested() -> None:
    tested, others = blobs(12, seed=0), blobs(9, seed=1)
    everything = Features(torch.cat([tested.values, others.values]), torch.cat([tested.labels, others.labels]))
    found = knn_answers(everything, tested, (3,), leave_one_out=True)[3]
    for i in range(len(tested.labels)):
        rest = [j for j in range(len(everything.labels)) if j != i]
        alone = Features(tested.values[i : i + 1], tested.labels[i : i + 1])
        naive = knn_answers(Features(everything.values[rest], everything.labels[rest]), alone, (3,))[3]
        assert int(found[i]) == int(naive[0])


def test_answers_of_every_classifier_are_those_of_its_accuracy() -> None:
    train, validation, test = blobs(60, seed=0), blobs(30, seed=1), blobs(30, seed=2)
    for fitted in (
        linear_probe(train, test),
        linear_probe(train, test, "halves"),
        sgd_probe(train, test, epochs=2, batch_size=16),
        transfer(train, validation, test, weights=(0.1, 1.0)),
    ):
        assert 100 * float(fitted.is_correct.double().mean()) == fitted.accuracy
        assert not {"is_correct", "answers", "targets"} & set(fitted.to_json())
    skewed = Features(test.values, test.labels.clone())
    fitted = transfer(train, validation, skewed, "mean-per-class", weights=(1.0,))
    answers = Answers(fitted.is_correct, skewed.labels, train.labels)
    assert weighted_accuracy(answers, "mean-per-class") == pytest.approx(fitted.accuracy)


def test_a_mean_per_class_counts_as_fewer_images_and_weighs_classes_equally() -> None:
    predictions = torch.tensor([0, 0, 0, 1, 1, 1, 1, 0, 5])
    answers, percent = (
        Answers(predictions == UNEQUAL, UNEQUAL, UNEQUAL),
        accuracy(predictions, UNEQUAL, "mean-per-class"),
    )
    assert weighted_accuracy(answers, "mean-per-class") == pytest.approx(percent)
    assert accuracy_interval(50.0, UNEQUAL) == wilson_interval(50.0, 9)
    # the variance of a mean of three class accuracies, if all images were equally hard
    effective = 9 / (1 / 6 + 1 / 2 + 1 / 1)
    assert accuracy_interval(50.0, UNEQUAL, "mean-per-class") == pytest.approx(wilson_interval(50.0, effective))
    assert float(image_weights(UNEQUAL, "mean-per-class").mean()) == pytest.approx(1.0)
    wrong = Answers(torch.zeros(9, dtype=torch.bool), UNEQUAL, UNEQUAL)
    assert difference(answers, wrong, "mean-per-class").mean == pytest.approx(percent)


def test_chance_is_the_most_frequent_class_of_the_references() -> None:
    assert chance(UNEQUAL) == pytest.approx(100 * 6 / 9)
    assert chance(torch.cat([UNEQUAL, torch.tensor([-1])]), "mean-per-class") == pytest.approx(100 / 3)


def test_folds_are_even_in_every_class_and_cover_everything() -> None:
    labels = torch.tensor([0] * 11 + [1] * 5 + [2] * 3)
    fold = stratified_folds(labels, 5, seed=3)
    assert torch.equal(fold, stratified_folds(labels, 5, seed=3))
    assert not torch.equal(fold, stratified_folds(labels, 5, seed=4))
    for label in range(3):
        sizes = torch.bincount(fold[labels == label], minlength=5)
        assert int(sizes.max() - sizes.min()) <= 1


def test_the_variance_within_classes_of_one_image_each_is_not_measurable() -> None:
    values = F.normalize(torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    single = Features(values, torch.arange(5))
    assert math.isnan(variance(single).within)
    assert math.isnan(variance(single).ratio)
    assert variance(single).total > 0
    outcome = collapse(single).to_json()
    assert [outcome[name] for name in ("within", "ratio", "nc1", "nc4")] == [None] * 4
    assert outcome["spread"] == [None] * 5
    assert outcome["total"] > 0
    pair = collapse(Features(values, torch.tensor([0, 0, 1, 2, 3]))).to_json()
    assert pair["within"] > 0
    assert pair["spread"][0] > 0
    assert pair["spread"][1:] == [None] * 3
