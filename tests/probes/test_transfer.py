"""Transfer against a plain loop of torch's L-BFGS over the regularisers, as the protocol has it."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from supancl.probes import Features, accuracy, transfer
from supancl.probes.linear import TRANSFER_WEIGHTS as WEIGHTS
from tests.probes.blobs import blobs


def plain_fit(values: torch.Tensor, labels: torch.Tensor, weight: float, layer: torch.nn.Linear) -> None:
    optimizer = torch.optim.LBFGS(
        layer.parameters(), max_iter=5000, tolerance_grad=1e-10, line_search_fn="strong_wolfe"
    )

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        ridge = sum(parameter.square().sum() for parameter in layer.parameters())
        loss = F.cross_entropy(layer(values), labels, reduction="sum") + weight * ridge
        loss.backward()
        return loss

    optimizer.step(closure)


def plain_transfer(train: Features, validation: Features, test: Features, weights, metric: str) -> tuple[float, float]:
    """The protocol word for word: upwards, warm-started, the first best on validation, a refit on both."""
    layer = torch.nn.Linear(train.values.shape[1], int(train.labels.max()) + 1).double()
    for parameter in layer.parameters():
        torch.nn.init.zeros_(parameter)
    best, chosen = -1.0, 0.0
    for weight in weights:
        plain_fit(train.values.double(), train.labels, weight, layer)
        score = accuracy(layer(validation.values.double()).argmax(1), validation.labels, metric)
        if score > best:
            best, chosen = score, weight
    both = Features(torch.cat([train.values, validation.values]), torch.cat([train.labels, validation.labels]))
    plain_fit(both.values.double(), both.labels, chosen, layer)
    return accuracy(layer(test.values.double()).argmax(1), test.labels, metric), chosen


@pytest.mark.parametrize("metric", ["top-1", "mean-per-class"])
def test_accuracy_and_choice_are_those_of_the_plain_loop(metric: str) -> None:
    train, validation, test = blobs(60, noise=1.5), blobs(43, noise=1.5, seed=1), blobs(301, noise=1.5, seed=2)
    weights = WEIGHTS[8:40:2]
    expected, chosen = plain_transfer(train, validation, test, weights, metric)
    found = transfer(train, validation, test, metric=metric, weights=weights)
    assert found.weight == chosen
    assert found.accuracy == pytest.approx(expected)


def test_equal_scores_choose_the_smallest_weight_and_the_report_is_json() -> None:
    easy = blobs(40, noise=0.01)
    found = transfer(easy, blobs(20, noise=0.01, seed=1), blobs(20, noise=0.01, seed=2))
    assert found.accuracy == 100.0
    assert found.weights == pytest.approx(np.logspace(-6, 5, 45))
    best = max(found.held_out)
    assert found.weight == min(w for w, score in zip(found.weights, found.held_out, strict=True) if score == best)
    assert json.loads(json.dumps(found.to_json()))["images"] == [40, 20, 20]
    assert found.residual <= 1e-3
