"""An MLP spec: depth, widths, where batch norm and bias stand."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from supancl.core.heads import MLP


def parts(head, kind):
    return [layer for layer in head if isinstance(layer, kind)]


@pytest.mark.parametrize("hidden", [(), (7,), (7, 9), (7, 9, 4)])
@pytest.mark.parametrize("norm", ["batch", "none"])
@pytest.mark.parametrize("last_norm", ["none", "batch", "batch-no-affine"])
@pytest.mark.parametrize("bias", ["auto", "none"])
def test_layers_stand_where_the_spec_says(hidden, norm, last_norm, bias):
    spec = MLP(hidden=hidden, out=3, norm=norm, last_norm=last_norm, bias=bias)
    expected: list[tuple] = []
    widths = (5, *hidden)
    for before, after in pairwise(widths):
        expected.append((nn.Linear, before, after, bias == "auto" and norm == "none"))
        expected += [(nn.BatchNorm1d, after, True)] if norm == "batch" else []
        expected.append((nn.ReLU,))
    expected.append((nn.Linear, widths[-1], 3, bias == "auto" and last_norm == "none"))
    expected += [] if last_norm == "none" else [(nn.BatchNorm1d, 3, last_norm == "batch")]

    def described(layer):
        if isinstance(layer, nn.Linear):
            return nn.Linear, layer.in_features, layer.out_features, layer.bias is not None
        if isinstance(layer, nn.BatchNorm1d):
            return nn.BatchNorm1d, layer.num_features, layer.affine
        return (type(layer),)

    head = spec.build(5)
    assert [described(layer) for layer in head] == expected
    assert spec.depth == len(hidden) + 1 == len(parts(head, nn.Linear))
    if bias == "auto" and (hidden or norm == "batch"):  # else weights look alike under two specs
        assert MLP.describe(head.state_dict()) == (spec, 5)
    assert head(torch.randn(4, 5)).shape == (4, 3)


def test_a_bias_is_left_out_exactly_where_batch_norm_would_cancel_it():
    for spec in (MLP((6,), 4), MLP((6,), 4, norm="none"), MLP((6,), 4, last_norm="batch"), MLP((6, 6), 4, norm="none")):
        layers = list(spec.build(5))
        for layer, following in zip(layers, [*layers[1:], None], strict=True):
            if isinstance(layer, nn.Linear):
                assert (layer.bias is None) == isinstance(following, nn.BatchNorm1d)


def test_an_output_norm_without_affine_gives_columns_of_mean_zero_and_unit_variance():
    torch.manual_seed(0)
    out = MLP((6,), 4, last_norm="batch-no-affine").build(5)(torch.randn(64, 5))
    torch.testing.assert_close(out.mean(0), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(out.var(0, correction=0), torch.ones(4), atol=1e-3, rtol=0)


def test_a_head_does_not_change_its_input():
    features = torch.randn(8, 5)
    before = features.clone()
    MLP((), 4).build(5)(features)
    MLP((6,), 4, norm="none").build(5)(features)
    assert torch.equal(features, before)


def test_widths_that_follow_the_input_and_biases_of_some_layers():
    assert [layer.out_features for layer in MLP(hidden=(None,), out=4).build(6) if isinstance(layer, nn.Linear)] == [
        6,
        4,
    ]
    spec = MLP(
        hidden=(8,), out=4, bias="none"
    )  # no norm follows the last layer, so the first rule alone would not tell
    assert MLP.describe(spec.build(6).state_dict())[0] == spec
