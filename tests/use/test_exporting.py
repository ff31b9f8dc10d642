"""From a run to a folder for other libraries and back. What needs onnx or transformers is in tests/extras."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import timm
import torch

from supancl import BadInput, EncoderSpec, load_encoder
from supancl.runs.encoder_file import read_header, save_encoder
from supancl.runs.importing import fill_encoder
from supancl.use import export_encoder, formats
from supancl.use.exported import ExportedEncoder, crop_fraction
from supancl.use.formats import FORMATS
from supancl.use.images import measure_change
from tests.files import TINY, class_folders, mentions, picture, supancl
from tests.helpers import quickly_built
from tests.tiny import assert_same_bits

EXTRAS = ("onnx", "onnxscript", "onnxruntime", "transformers")
SIZE = ["--set", "encoder.size=8", "--set", "views.size=8"]


def hide_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an environment in which only supancl is installed."""
    monkeypatch.setattr(formats, "find_spec", lambda name: None if name in EXTRAS else find_spec(name))


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
        export_encoder(trained / "run", out)
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
    assert result["formats"]["hf"]["differences"] == {"timm": 0.0, "timm checkpoint_path": 0.0}
    assert result["image_processors"]["timm"]["moved"] == 0  # images as small as the input are not resized


def test_the_configuration_has_nothing_of_timms_own_weights(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with quickly_built():
        encoder = EncoderSpec("resnet18", size=32, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6)).build().eval()
        save_encoder(tmp_path / "encoder.safetensors", encoder, (), "mine")
        result = export_encoder(tmp_path / "encoder.safetensors", out, ["hf", "torchvision"])
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
    export_encoder(run, tmp_path / "first", ["hf"])
    photos.rename(tmp_path / "moved")
    for source, out in ((run, "moved-photos"), (run / "encoder.safetensors", "file"), (tmp_path / "first", "again")):
        said = supancl(capsys, "export", source, "--out", tmp_path / out, "--format", "hf")
        assert said.code == 0, said.err
    fractions = {
        out: json.loads((tmp_path / out / "config.json").read_text())["pretrained_cfg"]["crop_pct"]
        for out in ("first", "moved-photos", "file", "again")
    }
    assert set(fractions.values()) == {crop_fraction(8, side == 8)}
    save_encoder(tmp_path / "old.safetensors", load_encoder(run), (), "old")
    said = supancl(capsys, "export", tmp_path / "old.safetensors", "--out", tmp_path / "unknown")
    assert "warning" in said.err


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


def test_an_export_is_embedded_evaluated_and_exported_like_its_run(
    exported: Path, trained: Path, tmp_path: Path, capsys
) -> None:
    files = {}
    for encoder in (trained / "run", exported):
        file = tmp_path / f"{encoder.name}.npz"
        flags = ["--data", trained / "photos", "--device", "cpu", "--no-cache"]
        assert supancl(capsys, "embed", encoder, "--out", file, *flags).code == 0
        files[encoder.name] = np.load(file)["train_features"]
    assert np.array_equal(files["run"], files["cats"])
    said = supancl(capsys, "evaluate", "knn", exported, "--no-baselines", *flags)
    assert (said.code, "%" in said.out) == (0, True)
    export_encoder(exported, tmp_path / "again", ["hf"])
    again, once = (read_safetensors(folder / "model.safetensors")[1] for folder in (tmp_path / "again", exported))
    assert again == once


def test_a_run_starts_from_an_export(exported: Path, trained: Path, tmp_path: Path, capsys) -> None:
    words = ["--data", trained / "photos", "--init", exported, "--out", tmp_path / "next", *TINY, *SIZE]
    frozen = ["--set", "optimizer.encoder_lr_scale=0", "--quiet"]
    said = supancl(capsys, "pretrain", "digits.supsiam", *words, *frozen)
    assert said.code == 0, said.err
    weight = {name: load_encoder(path).body.state_dict()["0.weight"]
              for name, path in (("run", trained / "run"), ("next", tmp_path / "next"))}  # fmt: skip
    assert torch.equal(weight["run"], weight["next"])


def test_a_damaged_export_is_refused(exported: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(exported, tmp_path / "damaged")
    content = bytearray((damaged / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (damaged / "model.safetensors").write_bytes(content)
    with pytest.raises(BadInput, match=mentions("model.safetensors")):
        load_encoder(damaged)


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_an_interruption_leaves_nothing(trained: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    def interrupt(*_: object) -> str:
        assert [path.name[:5] for path in (tmp_path / "a/b").iterdir()] == [".out."]
        raise KeyboardInterrupt

    monkeypatch.setattr("supancl.use.exporting.write_card", interrupt)
    said = supancl(capsys, "export", trained / "run", "--out", tmp_path / "a/b/out", "--format", "hf")
    assert (said.code, list(tmp_path.iterdir())) == (130, [])


@pytest.mark.parametrize("change", [lambda x: x + 1e-3, lambda x: x * float("nan"), lambda x: x[:, :1]])
def test_a_format_with_other_features_is_not_kept(trained: Path, tmp_path: Path, monkeypatch, change) -> None:
    encoder = load_encoder(trained / "run")
    (way,) = FORMATS["pt2"].ways

    def write(encoded: ExportedEncoder) -> None:
        (encoded.folder / "model.pt2").touch()

    load = replace(way, load=lambda encoded: lambda images: change(encoder(images)))
    monkeypatch.setitem(FORMATS, "pt2", replace(FORMATS["pt2"], write=write, ways=(load,)))
    with pytest.raises(BadInput, match=mentions("format pt2")):
        export_encoder(trained / "run", tmp_path / "out", ["pt2"])
    result = export_encoder(trained / "run", tmp_path / "out")
    assert set(result["formats"]) == {"hf"}
    assert "pt2" in result["left_out"]
    assert not (tmp_path / "out/model.pt2").exists()


def test_the_weights_keep_the_metadata_of_the_run(exported: Path, trained: Path) -> None:
    ours, theirs = (
        read_header(file)[0] for file in (trained / "run/encoder.safetensors", exported / "model.safetensors")
    )
    assert theirs["format"] == "pt"
    assert {key: theirs[key] for key in ours if key != "digest"} == {k: v for k, v in ours.items() if k != "digest"}


@pytest.mark.parametrize("size", [8, 16, 28, 32, 64, 84, 96, 128, 160, 192, 224, 256, 384])
def test_timm_resizes_to_our_short_side(size: int) -> None:
    assert int(size / crop_fraction(size, False)) == round(size * 8 / 7)
    assert int(size / crop_fraction(size, True)) == size


def test_a_change_is_relative_to_the_distance_between_images() -> None:
    ours = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    assert measure_change(ours, ours).moved == 0
    assert measure_change(ours, ours + torch.tensor([0.5, 0.0])).moved == pytest.approx(0.1)
    assert measure_change(ours, ours[[1, 0]]).lowest_cosine == 0


def test_what_a_killed_export_left_is_removed_by_the_next_one(trained: Path, tmp_path: Path) -> None:
    for name in (".out.1-abc.tmp", ".other.1-abc.tmp", ".out.2-abc.tmp"):
        (tmp_path / name).mkdir()
    os.utime(tmp_path / ".out.1-abc.tmp", (0, 0))  # long ago: no process writes to it any more
    export_encoder(trained / "run", tmp_path / "out", ["hf"])
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.1-abc.tmp", ".out.2-abc.tmp", "out"]
