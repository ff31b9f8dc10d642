"""An MLP spec: depth, widths, where batch norm and bias stand."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from supancl.core.specs import MLP


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
    assert len(parts(head, nn.Linear)) == len(hidden) + 1
    if bias == "auto" and (hidden or norm == "batch"):  # else weights look alike under two specs
        assert MLP.describe(head.state_dict()) == (spec, 5)
    assert head(torch.randn(4, 5)).shape == (4, 3)


def test_a_hidden_width_of_none_follows_the_input_and_no_bias_is_described_as_such():
    assert MLP(hidden=(None,), out=4).build(6)[0].out_features == 6
    spec = MLP(hidden=(8,), out=4, bias="none")  # no norm follows the last layer, so the first rule would not tell
    assert MLP.describe(spec.build(6).state_dict())[0] == spec
