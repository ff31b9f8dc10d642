"""The start of a run: every word that names an encoder, from the flag to the comparison with the start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file

from supancl import BadInput, load_encoder, recipe
from supancl.core.encoders import EncoderSpec
from supancl.runs.encoder_file import save_encoder
from supancl.runs.folder import RunFolder
from supancl.runs.importing import describe_init, fill_encoder, follow_start, load_init, open_encoder
from tests.helpers import assert_refused, class_folders, mentions, quickly_built, supancl

SMALL = "test_resnet"  # a model of timm for tests: 0.5 million weights
TAGGED = f"{SMALL}.r160_in1k"
MEAN = (0.5, 0.5, 0.5)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The caches of the libraries, which are empty, and the working folder."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr("torch.hub._hub_dir", None)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return timm.create_model(SMALL).state_dict()


def cache_for_timm(home: Path, weights: dict[str, torch.Tensor]) -> Path:
    repository = home / "hf" / f"models--timm--{TAGGED}"
    for folder in ("refs", "snapshots/abc"):
        (repository / folder).mkdir(parents=True)
    (repository / "refs/main").write_text("abc")
    file = repository / "snapshots/abc/model.safetensors"
    save_file(weights, file)
    return file


def model_folder(path: Path, weights: dict[str, torch.Tensor], **config: object) -> Path:
    path.mkdir()
    images = {"input_size": [3, 64, 64], "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}
    (path / "config.json").write_text(json.dumps(config or {"architecture": SMALL, "pretrained_cfg": images}))
    save_file(weights, path / "model.safetensors")
    return path


def test_weights_of_timm_are_fetched_into_its_cache_once_they_are_named(home: Path, weights, monkeypatch) -> None:
    for name in (SMALL, TAGGED):
        places = (f"timm:{name}", f"https://huggingface.co/timm/{TAGGED}", "HF_HOME", "@FILE")
        with pytest.raises(BadInput, match=mentions(*places)):
            open_encoder(f"timm:{name}")
    fetched: list[tuple[str, str]] = []

    def fetch(repository: str, file: str) -> str:
        fetched.append((repository, file))
        return str(cache_for_timm(home, weights))

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", fetch)
    for _ in range(2):  # the second time it is in the cache
        encoder = open_encoder(f"timm:{TAGGED}")
        assert torch.equal(encoder.body.state_dict()["conv1.0.weight"], weights["conv1.0.weight"])
        assert encoder.mean == MEAN
        assert fetched == [(f"timm/{TAGGED}", "model.safetensors")]
    with pytest.raises(BadInput, match=mentions("r16_in1k", TAGGED)):
        open_encoder(f"timm:{SMALL}.r16_in1k")


def test_weights_of_torchvision_come_from_its_cache(home: Path) -> None:
    url = torchvision.models.get_model_weights("resnet18").DEFAULT.url
    with pytest.raises(BadInput, match=mentions("HF_HUB_OFFLINE", url, "TORCH_HOME", "@FILE")):
        open_encoder("torchvision:resnet18")
    with quickly_built():
        state = torchvision.models.resnet18().state_dict()
    (home / "torch/hub/checkpoints").mkdir(parents=True)
    torch.save(
        {name: torch.zeros_like(value) for name, value in state.items()},
        home / "torch/hub/checkpoints" / Path(url).name,
    )
    assert not open_encoder("torchvision:resnet18").body.conv1.weight.any()


def test_a_model_folder_describes_its_images(home: Path, weights) -> None:
    encoder = open_encoder(model_folder(home / "model", weights))
    assert (encoder.spec.name, encoder.size, encoder.mean, encoder.std) == (
        f"timm:{SMALL}", 64, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    )  # fmt: skip
    other = model_folder(home / "other", weights, model_type="vit")
    with pytest.raises(BadInput, match=mentions(other / "config.json", "transformers", "timm:")):
        open_encoder(other)
    (other / "model.safetensors").unlink()
    with pytest.raises(BadInput, match=mentions(other, "model.safetensors")):
        open_encoder(other)
    (other / "config.json").write_text("{")
    with pytest.raises(BadInput, match=mentions(other / "config.json")):
        open_encoder(other)


def test_an_open_encoder_follows_the_start(home: Path, weights) -> None:
    model_folder(home / "model", weights)
    followed = follow_start(recipe("auto.supsiam"), "model")
    assert followed.encoder == EncoderSpec(f"timm:{SMALL}", 3, 64, None, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert followed.views.size == 64
    assert "model" in followed.sources["encoder.name"]
    smaller = recipe("auto.supsiam").with_set({"views.size": 32, "encoder.mean": [0.0, 0.0, 0.0]})
    followed = follow_start(smaller, "model")
    assert (followed.encoder.size, followed.encoder.mean, followed.encoder.std) == (32, (0, 0, 0), (0.4, 0.5, 0.6))


@pytest.mark.parametrize("kind", ["cached", "file", "folder", "foreign checkpoint", "encoder file"])
def test_every_kind_of_start_can_be_rebuilt(kind: str, home: Path, weights) -> None:
    with quickly_built():
        encoder = EncoderSpec(f"timm:{SMALL}", size=64).build()
    if kind == "cached":
        file, start = cache_for_timm(home, weights), f"timm:{TAGGED}"
    elif kind == "file":
        file, start = home / "w.safetensors", f"timm:{SMALL}@w.safetensors"
        save_file(weights, file)
    elif kind == "folder":
        file, start = model_folder(home / "model", weights) / "model.safetensors", "model"
    elif kind == "foreign checkpoint":
        encoder = EncoderSpec("resnet18", size=32).build()
        file, start = home / "moco.pth", "moco.pth"
        state = {f"module.encoder_q.{name}": value + 1 for name, value in encoder.body.state_dict().items()}
        torch.save({"state_dict": state}, file)
    else:
        file, start = home / "encoder.safetensors", "encoder.safetensors"
        save_encoder(file, encoder, (), "x")
    before = {name: value.clone() for name, value in encoder.body.state_dict().items()}
    fill_encoder(encoder, start)
    record = describe_init(encoder, start)
    assert kind == "encoder file" or any(not torch.equal(before[n], v) for n, v in encoder.body.state_dict().items())
    with quickly_built():
        rebuilt = load_init(encoder.spec.build(), record)
    assert all(torch.equal(v, rebuilt.body.state_dict()[n]) for n, v in encoder.body.state_dict().items())
    changed = {name: value + 1 for name, value in encoder.body.state_dict().items()}
    if kind != "encoder file":
        torch.save(changed, file) if file.suffix == ".pth" else save_file(changed, file)
        with pytest.raises(BadInput, match=mentions(start.rpartition("@")[2], "changed")):
            load_init(rebuilt, record)


def test_from_the_command_to_the_comparison_with_the_start(home: Path, weights, capsys) -> None:
    cache_for_timm(home, weights)
    data = class_folders(home / "photos", each=12)
    start = f"timm:{TAGGED}"
    words = ("pretrain", "--data", data, "--epochs", "1", "--device", "cpu", "--set", "views.size=32")
    said = supancl(capsys, *words, "--init", start, "--out", "run")
    assert said.code == 0, said.err
    assert f"encoder.name = timm:{SMALL}" in said.out
    assert f"of the start, {start}" in said.out
    encoder = load_encoder(home / "run")
    assert (encoder.spec.name, encoder.size, encoder.mean) == (f"timm:{SMALL}", 32, MEAN)
    record = RunFolder(home / "run").read_init()
    assert record is not None
    assert record["from"] == start
    said = supancl(capsys, "evaluate", "knn", "run", "--data", data)
    assert said.code == 0, said.err
    assert "its start" in said.out
    said = supancl(capsys, "pretrain", "cifar100.supsiam", *words[1:], "--init", start, "--out", "other")
    assert_refused(said, start, "cifar-resnet18", f"set encoder.name=timm:{SMALL}")
    assert not (home / "other").exists()
