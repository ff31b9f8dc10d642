"""Memory before a run: what is estimated, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from supancl import BadInput, from_arrays, recipe
from supancl.training import checks as memory
from supancl.training.checks import check_memory, estimate_memory
from supancl.training.trainer import Trainer
from tests.helpers import class_folders, mentions, noise, supancl

CPU = torch.device("cpu")


def bytes_saved_in_a_real_step(chosen) -> float:
    """Bytes of the tensors that the backward pass of a real forward pass needs."""
    images = chosen.train.batch_size
    data = from_arrays(noise(images * 2, chosen.views.size, chosen.views.size, 3), np.arange(images * 2) % 2)
    branches = Trainer(chosen, data, CPU).model.branches
    weights, saved = {p.untyped_storage().data_ptr() for p in branches.parameters()}, {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    views = torch.randn(2, images, 3, chosen.views.size, chosen.views.size)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        outputs = branches(views)
    del outputs
    return float(sum(saved.values()))


@pytest.mark.parametrize("encoder", ["cifar-resnet18", "timm:mobilenetv3_small_050"])
@pytest.mark.parametrize("method", ["supsiam", "byol"])
def test_a_larger_batch_needs_what_a_real_step_keeps_for_its_images(method, encoder):
    chosen = recipe(f"auto.{method}").with_set({"views.size": 32, "train.batch_size": 8, "encoder.name": encoder})
    twice = estimate_memory(chosen.with_set({"train.batch_size": 16}), CPU)
    grown = twice - estimate_memory(chosen, CPU)
    assert grown == pytest.approx(memory.WORKSPACE * bytes_saved_in_a_real_step(chosen), rel=0.1)
    accumulated = chosen.with_set({"train.batch_size": 16, "train.accumulate": 2})
    assert estimate_memory(accumulated, CPU) == pytest.approx(twice - grown)


TIMM = ["resnet50", "vit_tiny_patch16_224", "convnext_tiny", "efficientnet_b0"]


@pytest.mark.parametrize("encoder", ["resnet18", *(f"timm:{name}" for name in TIMM)])
def test_a_run_that_does_not_fit_is_refused(encoder, monkeypatch):
    """Warnings are errors here, so none of torch's reaches the user."""
    chosen = recipe("imagenet100.supsiam").with_set({"encoder.name": encoder, "train.batch_size": 64})
    needed = estimate_memory(chosen, CPU)
    assert needed > memory.PROCESS_BYTES + 3 * 4 * 2e6  # weights, gradients and momentum of two million weights
    monkeypatch.setattr(memory, "available_memory", lambda device: 0.9 * needed)
    with pytest.raises(BadInput, match=mentions("memory", "train.batch_size")):
        check_memory(chosen, CPU)
    assert "memory" in check_memory(chosen.with_set({"train.batch_size": 16}), CPU)


def test_a_refused_run_reads_no_image_and_leaves_no_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(memory, "available_memory", lambda device: 1e9)
    monkeypatch.setattr("supancl.training.start.open_data", lambda *rest: pytest.fail("images were read"))
    said = supancl(capsys, "pretrain", "imagenet100.supsiam", "--data", class_folders(tmp_path / "data"),
                   "--out", tmp_path / "run")  # fmt: skip
    assert said.code == 2
    assert not (tmp_path / "run").exists()
