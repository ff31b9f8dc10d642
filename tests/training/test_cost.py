"""Memory and time before a run: what is measured and refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from supancl import BadInput, from_arrays, pretrain, recipe
from supancl.core.encoders import BUILDERS, width_of
from supancl.data import survey
from supancl.data.opening import list_source
from supancl.training import cost
from supancl.training.memory import check_memory, estimate_memory
from supancl.training.trainer import Trainer
from tests.files import TINY, class_folders, mentions, noise, supancl

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


@pytest.mark.parametrize("name", ["auto.supsiam", "auto.byol"])
def test_activations_are_those_of_a_real_step(name):
    chosen = recipe(name).with_set({"views.size": 32, "train.batch_size": 8})
    memory = estimate_memory(chosen, CPU)
    assert memory.activations == pytest.approx(cost.WORKSPACE * bytes_saved_in_a_real_step(chosen), rel=0.05)
    twice = estimate_memory(chosen.with_set({"train.batch_size": 16}), CPU)
    assert twice.activations == pytest.approx(2 * memory.activations)
    accumulated = chosen.with_set({"train.batch_size": 16, "train.accumulate": 2})
    assert estimate_memory(accumulated, CPU).activations == pytest.approx(memory.activations)


def proposed_settings(error: BadInput) -> dict[str, object]:
    words = [word.partition("=") for word in str(error).split() if "=" in word]
    return {name: int(value) if value.isdigit() else value for name, _, value in words}


def test_a_run_that_does_not_fit_is_refused_with_settings_that_do(monkeypatch):
    monkeypatch.setattr(cost, "available_memory", lambda device: 4e9)
    large = recipe("imagenet100.supsiam")
    with pytest.raises(BadInput, match=mentions("memory")) as raised:
        check_memory(large, CPU)
    assert estimate_memory(large.with_set(proposed_settings(raised.value)), CPU).total <= 4e9
    monkeypatch.setattr(cost, "available_memory", lambda device: 1e8)
    with pytest.raises(BadInput, match=mentions("memory")):
        check_memory(large, CPU)


TIMM = ["resnet18", "resnet50", "vit_tiny_patch16_224", "convnext_tiny", "efficientnet_b0", "mobilenetv3_small_100"]


@pytest.mark.parametrize("name", TIMM)
def test_the_encoders_of_timm_have_an_estimate_and_can_be_too_large(name, monkeypatch):
    """Warnings are errors here, so none of torch's reaches the user."""
    chosen = recipe("imagenet100.supsiam").with_set({"encoder.name": f"timm:{name}", "train.batch_size": 256})
    memory = estimate_memory(chosen, CPU)
    assert memory is not None
    assert memory.weights > 3 * 4 * 2e6  # weights, gradients and momentum; the smallest of them has 2.5 million weights
    monkeypatch.setattr(cost, "available_memory", lambda device: memory.total / 2)
    with pytest.raises(BadInput, match=mentions("memory")) as raised:
        check_memory(chosen, CPU)
    assert estimate_memory(chosen.with_set(proposed_settings(raised.value)), CPU).total <= memory.total / 2


def test_the_activations_of_an_encoder_of_timm_are_those_of_a_real_step():
    chosen = recipe("auto.supsiam").with_set(
        {"encoder.name": "timm:mobilenetv3_small_050", "views.size": 32, "train.batch_size": 8}
    )
    saved = bytes_saved_in_a_real_step(chosen)
    assert estimate_memory(chosen, CPU).activations == pytest.approx(cost.WORKSPACE * saved, rel=0.1)


def test_a_run_that_starts_from_weights_keeps_its_encoder(monkeypatch):
    chosen = recipe("imagenet100.supsiam").with_set({"encoder.name": "timm:resnet50"})
    smaller = estimate_memory(chosen.with_set({"train.batch_size": 16}), CPU)
    monkeypatch.setattr(cost, "available_memory", lambda device: smaller.total)
    for keeps_encoder in (False, True):
        with pytest.raises(BadInput, match=mentions("memory")):
            check_memory(chosen, CPU, keeps_encoder)


def test_an_encoder_that_needs_real_numbers_is_trained_without_an_estimate(monkeypatch):
    class Thresholded(torch.nn.Linear):
        def forward(self, images):
            return super().forward(images.flatten(1) * (images.sum().item() > 0))

    monkeypatch.setitem(BUILDERS, "thresholded", lambda spec: (body := Thresholded(192, 4), width_of(body, spec)))
    chosen = recipe("auto.supsiam").with_set({"encoder.name": "thresholded", "views.size": 8})
    assert chosen.encoder.build().width == 4
    assert estimate_memory(chosen, CPU) is None


def test_a_refused_run_reads_no_image_and_leaves_no_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cost, "available_memory", lambda device: 1e9)
    monkeypatch.setattr("supancl.training.start.open_data", lambda *rest: pytest.fail("images were read"))
    said = supancl(capsys, "pretrain", "imagenet100.supsiam", "--data", class_folders(tmp_path / "data"),
                   "--out", tmp_path / "run")  # fmt: skip
    assert said.code == 2
    assert not (tmp_path / "run").exists()


def test_without_a_recipe_labels_decide_the_method(tmp_path, capsys, monkeypatch):
    """The source is listed once for both, the method and its settings."""
    class_folders(tmp_path / "labelled", each=20)
    listed = []
    monkeypatch.setattr(survey, "list_source", lambda *given: listed.append(given) or list_source(*given))
    small = [word for word in TINY if not word.startswith(("encoder.", "pool."))]
    small = [*small[:6], "--set", "encoder.name=cnn", "--set", "encoder.width=8"]
    for data, method in ((tmp_path / "labelled", "supsiam"), (tmp_path / "labelled" / "cat", "simsiam")):
        run = tmp_path / method
        said = supancl(capsys, "pretrain", "--data", data, *small, "--out", run)
        assert said.code == 0, said.err
        assert json.loads((run / "recipe.json").read_text())["recipe"]["name"] == f"auto.{method}"
        assert len(listed) == 1
        listed.clear()
        again = supancl(capsys, "pretrain", f"auto.{method}", "--data", data, *small, "--resume", "--out", run)
        assert again.code == 0, again.err
        listed.clear()
    with pytest.raises(BadInput, match=mentions("differs")):
        pretrain(recipe("auto.simsiam").with_set({"data.source": str(data), "train.epochs": 9}), out=run, resume=True)
