"""supancl's own encoders in timm."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import timm
import torch

import supancl.use.timm_models as registered
from supancl import EncoderSpec
from supancl.core.encoders import VARIANTS
from supancl.runs.hub import from_timm, to_timm
from tests.helpers import quickly_built


@pytest.mark.parametrize("name", ["cifar-resnet18", "cifar-resnet18-pad2", "cifar-resnet18-norelu", "cnn"])
def test_timm_builds_the_same_encoder(name: str) -> None:
    spec = EncoderSpec(name, channels=1, size=16, width=12 if name == "cnn" else None, mean=(0.5,), std=(0.5,))
    architecture, arguments = to_timm(spec)
    with quickly_built():
        encoder = spec.build().eval()
        model = timm.create_model(architecture, num_classes=0, in_chans=1, **arguments).eval()
    model.load_state_dict(encoder.body.state_dict())
    images = torch.randn(3, 1, 16, 16)
    with torch.inference_mode():
        assert torch.equal(model(images), encoder(images))
        assert torch.equal(model.forward_head(model.forward_features(images)), encoder(images))
    assert model.num_features == encoder.width
    model.reset_classifier(7)
    assert model(images).shape == (3, 7)
    assert model.get_classifier().out_features == 7


def test_every_cifar_encoder_is_registered_and_comes_back() -> None:
    for name in VARIANTS:
        architecture, arguments = to_timm(EncoderSpec(name))
        assert timm.is_model(architecture), name
        if name.startswith("cifar-"):
            assert from_timm(architecture, {"in_chans": 3, **arguments}) == (name, None)


def test_the_module_can_be_copied_into_a_project_without_supancl() -> None:
    tree = ast.parse(Path(registered.__file__).read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {str(name).split(".")[0] for name in modules} == {"__future__", "typing", "torch", "timm"}
