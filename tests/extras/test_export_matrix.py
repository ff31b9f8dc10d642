"""Architectures x ways of loading: each cell gives our features, or is refused by name.

The code that is run is that of the model card, and nothing else: what a user copies from it.
"""

from __future__ import annotations

import contextlib
import json
import re
import zipfile
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Made:
    """An encoder with random weights, its file, its export and what the command found."""

    encoder: Encoder
    file: Path
    out: Path
    result: dict[str, Any]

    def images(self, batch: int) -> torch.Tensor:
        return torch.randn(batch, self.encoder.spec.channels, self.encoder.size, self.encoder.size)


def make(name: str, root: Path) -> Made:
    torch.manual_seed(0)
    encoder = SPECS[name].build()
    made = Made(encoder, root / "encoder.safetensors", root / "models" / "photos", {})
    encoder(made.images(8))  # batch norm has seen images
    save_encoder(made.file, encoder.eval(), (), "matrix", short_side=encoder.size)
    made.result.update(export(made.file, made.out))
    return made


# one test for each architecture: its files are made once, also if several processes share the tests
@pytest.mark.parametrize("name", SPECS)
def test_every_way_of_loading_gives_our_features_or_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with quickly_built():
        made = make(name, tmp_path)
        assert set(made.result["formats"]) == {"hf", "onnx", "pt2", *["torchvision"] * (name in TORCHVISION)}
        for way in WAYS:
            if way != "torchvision" or name in TORCHVISION:
                check_cell(made, way)
            else:
                assert way not in card_code(made.out)
        check_descriptions_in_the_files(made)
        check_what_transformers_saves_again(made, tmp_path / "saved")


def card_code(folder: Path) -> dict[str, str]:
    """Per way of loading its code in the card."""
    return dict(re.findall(r"^With ([^\n]+):\n\n```python\n(.*?)```", (folder / "README.md").read_text(), re.S | re.M))


def check_cell(made: Made, way: str) -> None:
    *load, use = card_code(made.out)[way].splitlines()
    names: dict[str, Any] = {}
    with contextlib.chdir(made.out), torch.inference_mode():
        exec("\n".join(load), names)
        for batch in BATCHES:
            names["images"] = made.images(batch)
            exec(use, names)
            ours, theirs = made.encoder(names["images"]), torch.as_tensor(names["features"])
            assert theirs.shape == ours.shape == (batch, made.encoder.width)
            assert (theirs - ours).abs().max() <= TOLERANCE.get(way, 1e-5) * ours.abs().max(), (way, batch)
            assert ours.std() > 0


def check_descriptions_in_the_files(made: Made) -> None:
    """The batch of ONNX has a name, and files without a config.json say how to prepare images."""
    session = onnxruntime.InferenceSession(str(made.out / "model.onnx"))
    (given,), (returned,) = session.get_inputs(), session.get_outputs()
    spec = made.encoder.spec
    assert given.shape == ["batch", spec.channels, spec.size, spec.size]
    assert returned.shape == ["batch", made.encoder.width]
    settings = json.loads(session.get_modelmeta().custom_metadata_map["preprocessing"])
    assert settings["mean"] == pytest.approx(spec.mean)
    with zipfile.ZipFile(made.out / "model.pt2") as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("supancl.json"))
        assert json.loads(json.loads(archive.read(name))["preprocessing"]) == settings


def check_what_transformers_saves_again(made: Made, folder: Path) -> None:
    """A folder without our metadata, as others publish it: architecture, arguments and images come from config.json."""
    AutoModel.from_pretrained(str(made.out)).save_pretrained(str(folder))
    back, images = open_encoder(folder), made.images(3)
    assert (back.size, back.mean, back.std) == (made.encoder.size, made.encoder.mean, made.encoder.std)
    with torch.inference_mode():
        assert torch.equal(back(images), made.encoder(images))
