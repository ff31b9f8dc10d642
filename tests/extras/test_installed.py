"""The packages that `make test-extras` is about are there: their tests must not pass by being skipped."""

from __future__ import annotations

import importlib.util

import pytest

PACKAGES = "onnx onnxscript onnxruntime transformers wandb mlflow lightning accelerate selenium openTSNE"


@pytest.mark.parametrize("name", PACKAGES.split())
def test_a_package_of_the_extras_is_installed(name: str) -> None:
    assert importlib.util.find_spec(name) is not None
