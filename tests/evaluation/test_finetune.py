"""Fine-tuning: it learns, chooses on training images alone, keeps what it made and leaves the encoder as it was."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from supancl import load_encoder
from supancl.errors import BadInput, NonFinite
from tests.evaluation.made import bright, fine_tuned, linear, run_folder, source, subject
from tests.helpers import archive, noise, saved_result

QUICK = {"epochs": 20, "train_batch": 16, "lr": (0.3,)}


@pytest.fixture
def run(tmp_path):
    return subject(run_folder(tmp_path / "run", source=str(source(tmp_path / "own.npz", train=90, test=60))))


def test_it_learns_and_leaves_the_encoder_and_the_random_state_alone(run, tmp_path):
    before = {name: value.clone() for name, value in run.encoder.state_dict().items()}
    state = torch.get_rng_state()
    short = fine_tuned(run, epochs=1, train_batch=16, lr=(1e-6,))
    result = fine_tuned(run, **QUICK)
    assert result["accuracy"] > 80 > short["accuracy"]
    assert all(torch.equal(value, before[name]) for name, value in run.encoder.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert (result["lr"], result["tried"], result["images"], result["queries"], result["judged"]) == (
        0.3,
        {},
        90,
        60,
        "test",
    )
    assert saved_result(tmp_path / "run/evaluate/finetune-batch_size16-lrs0.3.json") == json.loads(json.dumps(result))


def test_it_starts_from_the_linear_classifier_and_keeps_the_statistics_of_batch_norm(run, tmp_path):
    barely = {"epochs": 1, "train_batch": 16, "lr": (1e-6,), "freeze_norm": True, "probe_first": True}
    found = fine_tuned(run, **barely, out=tmp_path / "tuned")
    assert found["accuracy"] == pytest.approx(linear(run)["accuracy"], abs=2)
    assert list((tmp_path / "run/evaluate").glob("finetune-*-freeze_norm-probe_first.json"))
    before, after = run.encoder.state_dict(), load_encoder(tmp_path / "tuned").state_dict()
    statistics = [name for name in before if "running" in name]
    assert statistics
    assert all(torch.equal(before[name].cpu(), after[name]) for name in statistics)


def test_the_learning_rate_is_chosen_without_the_test_images(run, tmp_path):
    settings = {"epochs": 4, "train_batch": 16, "lr": (1e-6, 0.3)}
    path = source(tmp_path / "x.npz", train=60, test=30)
    first = fine_tuned(run, str(path), **settings)
    assert first["lr"] == 0.3
    assert first["tried"]["0.3"] > first["tried"]["1e-06"]
    with np.load(path) as arrays:
        content = dict(arrays) | {"test_images": noise(30, 8, 8, seed=9)}
    second = fine_tuned(run, str(archive(path, **content)), **settings)
    assert (second["lr"], second["tried"]) == (first["lr"], first["tried"])
    assert second["accuracy"] < first["accuracy"]


def test_a_rate_that_diverges_is_not_chosen_and_all_that_do_are_an_error(run):
    result = fine_tuned(run, epochs=1, train_batch=16, lr=(1e30, 0.1))
    assert result["lr"] == 0.1
    assert np.isnan(result["tried"]["1e+30"])
    with pytest.raises(NonFinite):
        fine_tuned(run, epochs=1, train_batch=16, lr=(1e30, 1e31))


def test_what_was_made_can_be_used(run, tmp_path):
    result = fine_tuned(run, **QUICK, out=tmp_path / "tuned")
    encoder, head = load_encoder(tmp_path / "tuned"), load_file(tmp_path / "tuned/classifier.safetensors")
    assert head["weight"].shape == (3, 12)
    images, labels = bright(60, seed=2)
    with torch.no_grad():
        features = encoder((torch.from_numpy(images)[:, None] / 255 - 0.5) / 0.5)
    right = (features @ head["weight"].T + head["bias"]).argmax(1) == torch.from_numpy(labels)
    assert 100 * right.double().mean().item() == pytest.approx(result["accuracy"], abs=1.7)
    with pytest.raises(BadInput):  # it exists
        fine_tuned(run, **QUICK, out=tmp_path / "tuned")
