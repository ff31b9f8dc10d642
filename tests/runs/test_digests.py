"""What a run wrote is compared with a digest when it is read: one flipped bit anywhere is noticed or without effect."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from supancl import BadInput, load_encoder, pretrain
from supancl.runs.checkpoint import checkpoints, load_checkpoint
from supancl.runs.encoder_file import load_projector, read_safetensors
from supancl.runs.provenance import content_digest
from supancl.training.run import Run
from tests.helpers import mentions, tiny_data, tiny_recipe

ROUNDS = 60


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return pretrain(tiny_recipe("supbyol"), tiny_data(), tmp_path_factory.mktemp("digests") / "run")


def flip_bit(path: Path, seed: int) -> None:
    content = bytearray(path.read_bytes())
    generator = torch.Generator().manual_seed(seed)
    position = int(torch.randint(len(content), (), generator=generator))
    content[position] ^= 1 << int(torch.randint(8, (), generator=generator))
    path.write_bytes(content)


def test_the_digest_depends_on_every_name_value_type_and_shape() -> None:
    content = {"a": torch.arange(6.0), "b": [1, 2.5, None, "x", True], "c": {"d": (torch.ones(2), b"y")}}
    changed = [
        content | {"a": torch.arange(6.0).double()},
        content | {"a": torch.arange(6.0).reshape(2, 3)},
        content | {"a": torch.arange(6.0).flip(0)},
        content | {"b": [1, 2.5, None, "x", False]},
        content | {"b": [1, 2.5, None, "x", True, 0]},
        content | {"b": [1, 2, None, "x", True]},
        content | {"c": {"e": (torch.ones(2), b"y")}},
        {"a": content["a"], "b": content["b"]},
    ]
    digests = {content_digest(value) for value in (content, *changed)}
    assert len(digests) == 1 + len(changed)


def test_a_flipped_bit_of_a_checkpoint_is_noticed_or_without_effect(finished: Run, tmp_path: Path) -> None:
    source = checkpoints(finished.folder / "checkpoints")[-1]
    original = content_digest(load_checkpoint(source))
    noticed = 0
    for seed in range(ROUNDS):
        path = Path(shutil.copy(source, tmp_path / source.name))
        flip_bit(path, seed)
        try:
            loaded = load_checkpoint(path)
        except BadInput:
            noticed += 1
        else:
            assert content_digest(loaded) == original
    assert noticed > ROUNDS / 2


@pytest.mark.parametrize("load", [load_encoder, load_projector])
def test_a_flipped_bit_of_the_weights_is_noticed_or_carries_nothing(load, finished: Run, tmp_path: Path) -> None:
    original, noticed = content_digest(load(finished.folder).state_dict()), 0
    for seed in range(ROUNDS):
        path = Path(shutil.copy(finished.folder / f"{load.__name__[5:]}.safetensors", tmp_path))
        flip_bit(path, seed)
        try:
            loaded = load(tmp_path)
        except BadInput:
            noticed += 1
        else:  # a letter of the metadata, whose order changes from file to file
            assert content_digest(loaded.state_dict()) == original
    assert noticed > ROUNDS / 2


# --- recipe.json ------------------------------------------------------------------------------------------------------

CHANGES = {
    "loss.alpha": 0.9,
    "optimizer.lr": 0.06,
    "train.epochs": 3,
    "views.local": {"count": 2, "size": 4},
}


@pytest.mark.parametrize("key", CHANGES)
def test_a_changed_recipe_file_is_refused_on_resume(key: str, finished: Run, tmp_path: Path) -> None:
    run = shutil.copytree(finished.folder, tmp_path / "run")
    content = json.loads((run / "recipe.json").read_text())
    section, name = key.split(".")
    content["recipe"][section][name] = CHANGES[key]
    (run / "recipe.json").write_text(json.dumps(content))
    before = {path.name: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    with pytest.raises(BadInput, match=mentions(run / "recipe.json", key.partition(".")[0])):
        pretrain(None, tiny_data(), run, resume=True)
    after = {path.name: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    assert after == before


def test_weights_of_another_run_are_refused_and_written_again(finished: Run, tmp_path: Path) -> None:
    other = pretrain(tiny_recipe("supbyol", train__seed=1), tiny_data(), tmp_path / "other")
    run = shutil.copytree(finished.folder, tmp_path / "run")
    for name, load in (("encoder.safetensors", load_encoder), ("projector.safetensors", load_projector)):
        shutil.copy(other.folder / name, run / name)
        with pytest.raises(BadInput, match=mentions(run / name, "another run")):
            load(run)
    pretrain(None, tiny_data(), run, resume=True)
    for name in ("encoder.safetensors", "projector.safetensors"):
        assert read_safetensors(run / name)[1]["digest"] == read_safetensors(finished.folder / name)[1]["digest"]
    moved = Path(shutil.copy(other.folder / "encoder.safetensors", tmp_path / "encoder.safetensors"))
    assert load_encoder(moved).width == other.encoder.width  # without a recipe.json next to it


def test_what_may_change_on_resume_and_the_place_of_the_data_are_not_compared(finished: Run, tmp_path: Path) -> None:
    run = shutil.copytree(finished.folder, tmp_path / "run")
    content = json.loads((run / "recipe.json").read_text())
    content["recipe"]["train"]["on_collapse"] = "stop"
    content["recipe"]["data"]["source"] = str(tmp_path / "moved")
    (run / "recipe.json").write_text(json.dumps(content))
    assert pretrain(None, tiny_data(), run, resume=True).metrics
