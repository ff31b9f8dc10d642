"""From a run to a folder for other libraries and back. What needs onnx or transformers is in tests/extras."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from supancl import BadInput, EncoderSpec, load_encoder
from supancl.runs.encoder_file import read_safetensors, save_encoder
from supancl.runs.importing import fill_encoder
from supancl.use import exporting
from supancl.use.export import export
from supancl.use.exporting import FORMATS, Exported, crop_fraction
from tests.helpers import (
    TINY,
    assert_mentions,
    assert_same_bits,
    class_folders,
    mentions,
    picture,
    quickly_built,
    supancl,
)

EXTRAS = ("onnx", "onnxscript", "onnxruntime", "transformers")
SIZE = ["--set", "encoder.size=8", "--set", "views.size=8"]


def hide_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an environment in which only supancl is installed."""
    monkeypatch.setattr(exporting, "find_spec", lambda name: None if name in EXTRAS else find_spec(name))


@pytest.fixture(autouse=True)
def without_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_extras(monkeypatch)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with `photos` and `run`, which has one result."""
    root = tmp_path_factory.mktemp("trained")
    photos, run = class_folders(root / "photos", each=10), root / "run"
    from supancl.cli import main

    for words in (
        ["pretrain", "digits.supsiam", "--data", photos, "--out", run, *TINY, *SIZE],
        ["evaluate", "knn", run, "--device", "cpu", "--no-baselines", "--no-cache"],
    ):
        assert main([*map(str, words), "--quiet"]) == 0
    return root


@pytest.fixture(scope="module")
def exported(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("models") / "cats"
    with pytest.MonkeyPatch.context() as monkeypatch:
        hide_extras(monkeypatch)
        export(trained / "run", out)
    return out


def test_a_run_becomes_a_folder_of_every_format_that_works(trained: Path, tmp_path: Path, capsys) -> None:
    out, file = tmp_path / "models" / "cats", tmp_path / "result.json"
    said = supancl(capsys, "export", trained / "run", "--out", out, "--json", file)
    assert said.code == 0, said.err
    assert {path.name for path in out.iterdir()} == {"README.md", "config.json", "model.safetensors", "model.pt2"}
    assert [path.name for path in out.parent.iterdir()] == ["cats"]
    result = json.loads(file.read_text())
    assert set(result["formats"]) == {"hf", "pt2"}
    assert set(result["left_out"]) == {"onnx", "torchvision"}
    assert result["formats"]["hf"]["difference"] == 0
    assert result["compared_on"] == "4 images of the run"
    card = (out / "README.md").read_text()
    assert_mentions(card, "library_name: timm", "| knn", "| photos |", "digits.supsiam", "model.pt2")


def test_the_configuration_has_nothing_of_timms_own_weights(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with quickly_built():
        encoder = EncoderSpec("resnet18", size=32, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6)).build().eval()
        save_encoder(tmp_path / "encoder.safetensors", encoder, (), "mine")
        result = export(tmp_path / "encoder.safetensors", out, format=("hf", "torchvision"))
        model = timm.create_model(f"local-dir:{out}", pretrained=True, num_classes=5).eval()
    assert result["compared_on"].startswith("noise images")
    settings = model.pretrained_cfg
    assert settings["input_size"] == [3, 32, 32]
    assert (settings["mean"], settings["std"]) == ([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])
    assert settings["tag"] == tmp_path.name
    assert settings["license"] == "other"
    assert not {"url", "hf_hub_id", "origin_url", "paper_ids"} & {key for key, value in settings.items() if value}
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 5)
    assert torch.equal(model.conv1.weight, encoder.body.conv1.weight)


@pytest.mark.parametrize("side", [8, 20])
def test_without_the_images_the_encoder_says_how_large_they_were(side: int, tmp_path: Path, capsys) -> None:
    """An input of 8 px may be for images of 8 px, which are used whole, or for larger ones, whose margin is cut off."""
    photos, run = tmp_path / "photos", tmp_path / "run"
    for number in range(20):
        picture(photos / "ab"[number % 2] / f"{number}.png", size=(side, side), seed=number)
    assert supancl(capsys, "pretrain", "digits.supsiam", "--data", photos, "--out", run, *TINY, *SIZE).code == 0
    export(run, tmp_path / "first", format="hf")
    photos.rename(tmp_path / "moved")
    for source, out in ((run, "moved-photos"), (run / "encoder.safetensors", "file"), (tmp_path / "first", "again")):
        said = supancl(capsys, "export", source, "--out", tmp_path / out, "--format", "hf")
        assert said.code == 0, said.err
    fractions = {
        out: json.loads((tmp_path / out / "config.json").read_text())["pretrained_cfg"]["crop_pct"]
        for out in ("first", "moved-photos", "file", "again")
    }
    assert set(fractions.values()) == {crop_fraction(8, side == 8)}


# --- back again -------------------------------------------------------------------------------------------------------


def test_an_export_is_read_back_to_the_bit(exported: Path, trained: Path, tmp_path: Path, capsys) -> None:
    out, original = exported, load_encoder(trained / "run")
    back = load_encoder(out)
    assert back.spec == original.spec
    assert_same_bits(back.body.state_dict(), original.body.state_dict())
    assert supancl(capsys, "import", out, "--out", tmp_path / "imported").code == 0
    imported = load_encoder(tmp_path / "imported")
    assert imported.spec == original.spec
    assert_same_bits(imported.body.state_dict(), original.body.state_dict())
    start = original.spec.build()
    fill_encoder(start, out)
    assert_same_bits(start.body.state_dict(), original.body.state_dict())


def test_an_export_is_evaluated_and_exported_like_its_run(
    exported: Path, trained: Path, tmp_path: Path, capsys
) -> None:
    flags = ["--data", trained / "photos", "--device", "cpu", "--no-cache", "--no-baselines"]
    said = supancl(capsys, "evaluate", "knn", exported, *flags)
    assert (said.code, "%" in said.out) == (0, True)
    export(exported, tmp_path / "again", format="hf")
    again, once = (read_safetensors(folder / "model.safetensors")[1] for folder in (tmp_path / "again", exported))
    assert again == once


def test_a_damaged_export_is_refused(exported: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(exported, tmp_path / "damaged")
    content = bytearray((damaged / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (damaged / "model.safetensors").write_bytes(content)
    with pytest.raises(BadInput, match=mentions("model.safetensors")):
        load_encoder(damaged)


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [lambda x: x + 1e-3, lambda x: x * float("nan"), lambda x: x[:, :1]])
def test_a_format_with_other_features_is_not_kept(trained: Path, tmp_path: Path, monkeypatch, change) -> None:
    encoder = load_encoder(trained / "run")

    def write(exported: Exported) -> Any:
        (exported.folder / "model.pt2").touch()
        return lambda images: change(encoder(images))

    row = FORMATS["pt2"]._replace(write=write)
    monkeypatch.setitem(FORMATS, "pt2", row)
    with pytest.raises(BadInput, match=mentions("format pt2")):
        export(trained / "run", tmp_path / "out", format="pt2")
    result = export(trained / "run", tmp_path / "out")
    assert set(result["formats"]) == {"hf"}
    assert "pt2" in result["left_out"]
    assert not (tmp_path / "out/model.pt2").exists()


@pytest.mark.parametrize("size", [8, 28, 32, 84, 96, 224, 384])
def test_timm_resizes_to_our_short_side(size: int) -> None:
    assert int(size / crop_fraction(size, False)) == round(size * 8 / 7)
    assert int(size / crop_fraction(size, True)) == size
