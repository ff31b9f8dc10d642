"""Scores of labels: against naive references, and on labels that were flipped."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import Tensor

from supancl.probes.features import Features
from supancl.probes.label_scores import (
    KNN_TEMPERATURE,
    judged_rows,
    label_scores,
    share_of_wrong_labels,
)


def flip_labels(labels: Tensor, classes: int, rate: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Labels of which this share is replaced by another class, and which."""
    generator = torch.Generator().manual_seed(seed)
    is_flipped = torch.rand(len(labels), generator=generator) < rate
    other = (labels + torch.randint(1, classes, (len(labels),), generator=generator)) % classes
    return torch.where(is_flipped, other, labels), is_flipped


def clusters(images: int = 400, classes: int = 4, deviation: float = 1.0) -> Features:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(images) % classes
    means = 3 * torch.randn(classes, 8, generator=generator)
    return Features(means[labels] + deviation * torch.randn(images, 8, generator=generator), labels)


@pytest.fixture(scope="module")
def digits() -> Features:
    values, labels = load_digits(return_X_y=True)
    return Features(torch.tensor(values, dtype=torch.float32), torch.tensor(labels))


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.4])
def test_flipped_digits_are_found_and_counted(digits: Features, rate: float) -> None:
    """Measured: AUROC .999, .999 and .998; 95% of the suggestions are right or more."""
    labels, is_flipped = flip_labels(digits.labels, 10, rate)
    scores = label_scores(Features(digits.values, labels))
    assert roc_auc_score(is_flipped, -scores.score) > 0.985
    assert float((scores.suggested == digits.labels)[is_flipped].double().mean()) > 0.9
    share = share_of_wrong_labels(scores)
    assert share is not None
    assert share.percent.low < 100 * float(is_flipped.double().mean()) < share.percent.high


@pytest.mark.parametrize(("deviation", "is_reliable"), [(3.0, True), (12.0, False)])
@pytest.mark.parametrize("rate", [0.0, 0.2])
def test_no_share_is_told_from_features_that_do_not_separate_the_classes(
    deviation: float, is_reliable: bool, rate: float
) -> None:
    """Wrong labels hardly lower the agreement of k-NN with the linear classifier; poor features do."""
    features = clusters(3000, 10, deviation)
    labels, is_flipped = flip_labels(features.labels, 10, rate)
    share = share_of_wrong_labels(label_scores(Features(features.values, labels)))
    assert share is not None
    assert share.is_reliable == is_reliable
    error = share.percent.mean - 100 * float(is_flipped.double().mean())
    assert (error < 5) == is_reliable


def test_votes_and_margins_equal_a_naive_computation() -> None:
    features = clusters(60, 3)
    scores = label_scores(features, k=5)
    units = features.values.double().numpy()
    units = units / np.linalg.norm(units, axis=1, keepdims=True)
    labels = features.labels.numpy()
    for image in range(0, 60, 7):
        others = np.delete(np.arange(60), image)
        similarity = units[others] @ units[image]
        nearest = np.argsort(-similarity)[:5]
        weights = np.exp(similarity[nearest] / KNN_TEMPERATURE)
        share = weights[labels[others[nearest]] == labels[image]].sum() / weights.sum()
        cosines = []
        for label in range(3):
            mean = units[others[labels[others] == label]].mean(0)
            cosines.append(mean @ units[image] / np.linalg.norm(mean))
        margin = cosines[labels[image]] - max(np.delete(cosines, labels[image]))
        assert float(scores.vote[image]) == pytest.approx(share, abs=1e-4)
        assert float(scores.margin[image]) == pytest.approx(margin, abs=1e-4)


def test_an_image_cannot_support_its_own_label() -> None:
    """Its given label changes neither its neighbours' vote nor the linear probabilities of its own fold."""
    features = clusters(80, 2)
    changed = features.labels.clone()
    changed[0] = 1 - changed[0]
    before = label_scores(features, k=5)
    after = label_scores(Features(features.values, changed), k=5)
    torch.testing.assert_close(before.votes[0], after.votes[0])
    assert float(before.score[0]) > 0.5 > float(after.score[0])
    assert int(after.suggested[0]) == int(features.labels[0])


def test_unlabelled_images_and_single_images_are_not_judged() -> None:
    features = clusters(40, 2)
    labels = features.labels.clone()
    labels[:10], labels[10] = -1, 9
    assert judged_rows(labels).tolist() == list(range(11, 40))
    scores = label_scores(Features(features.values, labels))
    assert scores.rows.tolist() == list(range(11, 40))
    assert scores.classes.tolist() == [0, 1]
    assert share_of_wrong_labels(scores) is None  # 29 labels are too few to say
