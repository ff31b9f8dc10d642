"""The two probes against scikit-learn and against SGD written out."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression

from supancl.errors import BadInput
from supancl.evaluate import Features, linear_probe, sgd_probe
from supancl.evaluate.linear import hold_out, shuffled
from tests.evaluate.blobs import blobs


def test_the_held_out_part_is_stratified_and_reproducible() -> None:
    labels = torch.cat([torch.full((40,), 3), torch.full((11,), 5), torch.full((2,), 9)])
    held = hold_out(labels, 0.1, seed=4)
    assert {name: int(held[labels == name].sum()) for name in (3, 5, 9)} == {3: 4, 5: 1, 9: 1}
    assert torch.equal(held, hold_out(labels, 0.1, seed=4))
    assert not torch.equal(held, hold_out(labels, 0.1, seed=5))
    assert int(hold_out(labels, 0.9)[labels == 9].sum()) == 1  # never all of a class


def test_the_probe_is_scikit_learns_regression_at_the_chosen_weight() -> None:
    train, test = blobs(240, noise=1.5), blobs(400, noise=1.5, seed=1)
    found = linear_probe(train, test, weights=(0.1, 1.0, 30.0, 1000.0), share=0.25, tolerance=1e-3)
    mean, scale = train.values.double().mean(0), train.values.double().std(0, correction=0)

    def rows(values: torch.Tensor) -> torch.Tensor:
        standard = (values.double() - mean) / scale
        return torch.cat([standard, torch.ones(len(standard), 1).double()], 1)  # so that the bias is in the ridge

    held, scores = hold_out(train.labels, 0.25), {}
    for weight in found.weights:
        model = LogisticRegression(C=1 / (2 * weight), fit_intercept=False, max_iter=5000, tol=1e-8)
        model.fit(rows(train.values[~held]).numpy(), train.labels[~held].numpy())
        scores[weight] = 100 * model.score(rows(train.values[held]).numpy(), train.labels[held].numpy())
    assert list(found.held_out) == pytest.approx([scores[weight] for weight in found.weights])
    assert found.weight == max(w for w in scores if scores[w] == max(scores.values()))  # ties: the stronger
    model = LogisticRegression(C=1 / (2 * found.weight), fit_intercept=False, max_iter=5000, tol=1e-8)
    model.fit(rows(train.values).numpy(), train.labels.numpy())
    expected = 100 * model.score(rows(test.values).numpy(), test.labels.numpy())
    assert found.accuracy == pytest.approx(expected, abs=0.26)  # one image of 400, for float32
    assert json.loads(json.dumps(found.to_json()))["images"] == [180, 60, 400]


def test_a_dead_unit_does_no_harm() -> None:
    train, test = blobs(80), blobs(80, seed=1)
    dead = [Features(torch.cat([part.values, torch.full((80, 1), 7.0)], 1), part.labels) for part in (train, test)]
    expected = linear_probe(train, test, weights=(1.0,), tolerance=1e-3).accuracy
    assert linear_probe(*dead, weights=(1.0,), tolerance=1e-3).accuracy == expected


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
    assert json.loads(json.dumps(found.to_json()))["epochs"] == 6


def test_epochs_from_a_function_are_the_cached_ones_if_they_are_equal() -> None:
    train, test = blobs(70), blobs(50, seed=1)
    settings = {"epochs": 4, "batch_size": 16, "lr": 1.0, "seed": 2}
    cached = sgd_probe(train, test, **settings)
    asked = []

    def epochs(epoch: int):
        asked.append(epoch)
        return shuffled(train, 16, 2)(epoch)

    assert sgd_probe(epochs, test, classes=4, **settings) == cached
    assert asked == [0, 1, 2, 3]


def test_the_papers_settings_are_the_defaults() -> None:
    found = sgd_probe(blobs(40, noise=0.2), blobs(40, noise=0.2, seed=1))
    assert (found.epochs, found.batch_size, found.lr) == (100, 256, 30.0)
    assert found.accuracy > 90


@pytest.mark.parametrize(
    ("work", "line"),
    [
        (lambda: linear_probe(blobs(40), blobs(40, classes=3)), "test split: no image of class 3"),
        (lambda: linear_probe(Features(torch.randn(2, 2), torch.tensor([0, 1])), blobs(4, 2, 2)),
         "every class has 1 image; holding out a part of a class needs 2"),
        (lambda: linear_probe(blobs(40), blobs(40), choose="half"), "choose = 'half' with 40 test images"),
        (lambda: linear_probe(blobs(40), blobs(40), choose=Features(torch.randn(2, 6), torch.tensor([7, 8]))),
         "choose features: no image of the training classes"),
        (lambda: linear_probe(blobs(40), blobs(40), weights=()), "weights: at least one is needed"),
        (lambda: hold_out(torch.zeros(4), 1.0), "share = 1: must lie between 0 and 1"),
        (lambda: sgd_probe(lambda epoch: [], blobs(40)), "classes: the number of classes is needed"),
        (lambda: sgd_probe(lambda epoch: [], blobs(40), classes=4), "the probe's epoch 0 has no images"),
        (lambda: sgd_probe(lambda epoch: [(torch.full((4, 6), math.nan), torch.arange(4))], blobs(40), classes=4),
         "epoch 0 has a loss that is not finite"),
    ],
)
def test_bad_input_is_one_line(work, line: str) -> None:
    with pytest.raises(BadInput, match=line):
        work()
