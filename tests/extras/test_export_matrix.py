"""Architectures x ways of loading: each cell gives our features, or is refused by name.

The code that is run is that of the model card, and nothing else: what a user copies from it.
"""

from __future__ import annotations

import contextlib
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from transformers import AutoModel

from supancl import Encoder, EncoderSpec, open_encoder
from supancl.runs.encoder_file import save_encoder
from supancl.use.export import export
from tests.helpers import quickly_built

SPECS = {
    "resnet18": EncoderSpec("resnet18", size=32),
    "cifar-resnet18": EncoderSpec("cifar-resnet18", size=16),
    "vit-small": EncoderSpec("vit-small", size=32),
    "cnn": EncoderSpec("cnn", channels=1, size=16, width=24, mean=(0.5,), std=(0.25,)),
    "timm:convnext_atto": EncoderSpec("timm:convnext_atto", channels=4, size=32, mean=(0.5,) * 4, std=(0.5,) * 4),
}
WAYS = ("timm", "transformers", "torchvision", "onnxruntime", "torch.export", "supancl")
TORCHVISION = ("resnet18",)  # the others are refused there; every other cell is equal
TOLERANCE = {"onnxruntime": 1e-4}
BATCHES = (1, 3, 17)


def images_of(encoder: Encoder, batch: int) -> torch.Tensor:
    return torch.randn(batch, encoder.spec.channels, encoder.size, encoder.size)


# one test for each architecture: its files are made once, also if several processes share the tests
@pytest.mark.parametrize("name", SPECS)
def test_every_way_of_loading_gives_our_features_or_is_left_out(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch.manual_seed(0)
    with quickly_built():
        encoder, file, out = SPECS[name].build(), tmp_path / "encoder.safetensors", tmp_path / "models" / "photos"
        encoder(images_of(encoder, 8))  # batch norm has seen images
        save_encoder(file, encoder.eval(), (), "matrix", short_side=encoder.size)
        formats = export(file, out)["formats"]
        assert set(formats) == {"hf", "onnx", "pt2", *["torchvision"] * (name in TORCHVISION)}
        for way in WAYS:
            if way != "torchvision" or name in TORCHVISION:
                check_cell(encoder, out, way)
            else:
                assert way not in card_code(out)
        check_descriptions_in_the_files(encoder, out)
        check_what_transformers_saves_again(encoder, out, tmp_path / "saved")


def card_code(folder: Path) -> dict[str, str]:
    """Per way of loading its code in the card."""
    return dict(re.findall(r"^With ([^\n]+):\n\n```python\n(.*?)```", (folder / "README.md").read_text(), re.S | re.M))


def check_cell(encoder: Encoder, out: Path, way: str) -> None:
    *load, use = card_code(out)[way].splitlines()
    names: dict[str, Any] = {}
    with contextlib.chdir(out), torch.inference_mode():
        exec("\n".join(load), names)
        for batch in BATCHES:
            names["images"] = images_of(encoder, batch)
            exec(use, names)
            ours, theirs = encoder(names["images"]), torch.as_tensor(names["features"])
            assert theirs.shape == ours.shape == (batch, encoder.width)
            assert (theirs - ours).abs().max() <= TOLERANCE.get(way, 1e-5) * ours.abs().max(), (way, batch)
            assert ours.std() > 0


def check_descriptions_in_the_files(encoder: Encoder, out: Path) -> None:
    """The batch of ONNX has a name, and files without a config.json say how to prepare images."""
    session = onnxruntime.InferenceSession(str(out / "model.onnx"))
    (given,), (returned,) = session.get_inputs(), session.get_outputs()
    spec = encoder.spec
    assert given.shape == ["batch", spec.channels, spec.size, spec.size]
    assert returned.shape == ["batch", encoder.width]
    settings = json.loads(session.get_modelmeta().custom_metadata_map["preprocessing"])
    assert settings["mean"] == pytest.approx(spec.mean)
    with zipfile.ZipFile(out / "model.pt2") as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("supancl.json"))
        assert json.loads(json.loads(archive.read(name))["preprocessing"]) == settings


def check_what_transformers_saves_again(encoder: Encoder, out: Path, folder: Path) -> None:
    """A folder without our metadata, as others publish it: architecture, arguments and images come from config.json."""
    AutoModel.from_pretrained(str(out)).save_pretrained(str(folder))
    back, images = open_encoder(folder), images_of(encoder, 3)
    assert (back.size, back.mean, back.std) == (encoder.size, encoder.mean, encoder.std)
    with torch.inference_mode():
        assert torch.equal(back(images), encoder(images))
