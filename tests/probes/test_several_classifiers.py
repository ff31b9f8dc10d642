"""Several predicted labels per image: k-NN and F1 against loops and scikit-learn, Platt's scaling."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.calibration import _SigmoidCalibration
from sklearn.metrics import f1_score

from supancl.probes.several_classifiers import (
    LinearClassifier,
    RankedClasses,
    SeveralKnnClassifier,
    fit_several_linear,
    fit_several_temperature,
    mean_f1,
    platt_scaling,
    rank_classes,
)
from supancl.probes.several_labels import SeveralFeatures


def made(count: int, seed: int, classes: int = 4) -> SeveralFeatures:
    """Features with a direction per class; an image has one or two classes, never the last."""
    random = np.random.default_rng(seed)
    pairs = np.full((count, 2, 2), (-1.0, 0.0), np.float32)
    values = random.normal(0, 1.2, (count, 6))
    for row in range(count):
        for place, number in enumerate(random.permutation(classes - 1)[: random.integers(1, 3)]):
            pairs[row, place] = number, (1.0, 0.5)[place]
            values[row, number] += 3
    tensor = torch.from_numpy(pairs)
    return SeveralFeatures(torch.from_numpy(values).float(), tensor, tensor[:, 0, 0].long())


def test_the_probability_of_knn_is_the_part_of_votes_for_images_with_the_class():
    references, queries = made(50, 0), made(7, 1)
    found = SeveralKnnClassifier(references, 4, 5).logits(queries.values).sigmoid()
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
    held_out = made(160, 2)
    targets = held_out.targets(4)
    scores = torch.from_numpy(np.random.default_rng(0).uniform(0, 0.6, (160, 4))).float() + 0.35 * targets
    order = scores.sort(dim=1, descending=True)
    listed = (scores >= 0.5).numpy()
    listed[np.arange(160), scores.argmax(1).numpy()] = True
    found = mean_f1(RankedClasses(order.indices, order.values), targets)
    assert found.mean == pytest.approx(100 * f1_score(targets.numpy(), listed, average="samples"))
    assert found.low < found.mean < found.high


def test_labels_are_those_from_the_threshold_on_and_always_one():
    classifier = LinearClassifier(torch.eye(3), torch.zeros(3))
    ranked = rank_classes(classifier, torch.tensor([[2.0, 1.0, -2.0], [-3.0, -1.0, -2.0]]), 3, 2, 1.0)
    assert ranked.labels.tolist() == [[0, 1], [1, -1]]
    assert ranked.confidence.tolist() == pytest.approx([1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))])
    assert rank_classes(classifier, torch.empty(0, 3), 3, 2, 1.0).labels.shape == (0, 2)


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
    train, test = made(400, 4), made(300, 5)
    classifier, ridge = fit_several_linear(train, made(0, 0), 4)
    assert ridge.chosen_on == "none"
    logits = classifier.logits(test.values)
    temperature = fit_several_temperature(logits[:, :3], test.targets(4)[:, :3])
    assert 0.5 < temperature < 2
    probability = (logits / temperature).sigmoid()
    assert float(probability[:, 3].max()) == 0
    assert probability[:, :3].mean(0).tolist() == pytest.approx(
        test.targets(4)[:, :3].double().mean(0).tolist(), abs=0.05
    )
