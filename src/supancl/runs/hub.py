"""Encoders by name: those in the caches of torchvision, timm and Hugging Face, and their names in timm."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from supancl.config import parse_json
from supancl.core.specs import EncoderSpec, suggest_timm
from supancl.errors import BadInput, did_you_mean
from supancl.files import did_you_mean_path, make_folder, read_text, reason


def split_encoder_name(text: str) -> tuple[str | None, Path]:
    """Split NAME@FILE into (NAME, FILE); an existing path gives (None, path), even with an @ in it.

    torchvision:MODEL and timm:MODEL stand for the file in the cache of these libraries, which fetch a missing one.
    A missing FILE is refused.
    """
    name, has_file, file = text.partition("@")
    if Path(text).exists():
        return None, Path(text)
    if has_file:
        if not Path(file).is_file():
            raise BadInput(f"no file {file} (of {text}); give NAME@FILE with a local weight file")
        return name, Path(file)
    if text.startswith(("torchvision:", "timm:")):
        return text, find_weights(text)
    options = "a run folder, an encoder.safetensors, a checkpoint, torchvision:NAME[@FILE] or timm:NAME[@FILE]"
    raise BadInput(f"no file {text}{did_you_mean_path(text) or suggest_timm(text) or f'; give {options}'}")


WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")


class DescribedWeights(NamedTuple):
    """A weight file with its architecture and, where they are known, the images that it was trained on."""

    name: str
    file: Path
    size: int | None = None
    mean: list[float] | None = None
    std: list[float] | None = None
    channels: int | None = None
    width: int | None = None  # of an architecture without a fixed one


def find_weights(name: str, fetch: bool = True) -> Path:
    """The file of torchvision:MODEL or timm:MODEL[.TAG] in that library's cache; it is fetched if it is not there."""
    kind, _, model = name.partition(":")
    repository, files, url = _timm_place(model) if kind == "timm" else ("", (), _torchvision_url(model))
    try:
        if url and (not repository or _torch_cache(url).is_file()):
            return _from_url(url, fetch)
        return _from_hub(repository, files, fetch)
    except Exception as error:  # each library for fetching has its own
        place = f"{files[0]} of https://huggingface.co/{repository}" if repository else url
        cache = "HF_HOME to a cache that has it" if repository else "TORCH_HOME to one that has it"
        raise BadInput(
            f"{name}: its weights are not on this machine and were not fetched ({reason(error)}); fetch {place} and "
            f"give {name}@FILE, or set {cache}"
        ) from None


def _from_hub(repository: str, files: Sequence[str], fetch: bool) -> Path:
    """The first of these files that the cache of Hugging Face has, or else the hub."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    failure: Exception = OSError("it is in no cache")
    for is_local in (True, False)[: 1 + fetch]:
        for file in files:
            try:
                return Path(hf_hub_download(repository, file, local_files_only=is_local))
            except EntryNotFoundError as error:
                failure = error
    raise failure


def _from_url(url: str, fetch: bool) -> Path:
    """A file in torch's cache, where it is fetched to."""
    import torch
    from huggingface_hub.constants import HF_HUB_OFFLINE

    path = _torch_cache(url)
    if not path.is_file():
        if HF_HUB_OFFLINE or not fetch:
            raise OSError("it is in no cache, and HF_HUB_OFFLINE is set" if fetch else "it is in no cache")
        make_folder(path.parent)
        digest = torch.hub.HASH_REGEX.search(path.name)
        torch.hub.download_url_to_file(url, str(path), digest[1] if digest else None)
    return path


def _torch_cache(url: str) -> Path:
    import torch

    return Path(torch.hub.get_dir(), "checkpoints", Path(url).name)


def _timm_place(model: str) -> tuple[str, tuple[str, ...], str]:
    """The repository of a model's weights on Hugging Face, the names that their file may have, and another address."""
    import timm

    if not timm.is_model(model):
        raise BadInput(f"timm has no model {model!r}{did_you_mean(model, timm.list_models())}")
    tagged = timm.list_pretrained(f"{model.partition('.')[0]}.*")
    if not tagged or ("." in model and model not in tagged):
        hint = did_you_mean(model, tagged) if tagged else f"; give timm:{model}@FILE"
        raise BadInput(f"timm has no weights {model!r}{hint}")
    settings: Any = timm.get_pretrained_cfg(model)
    named = settings.hf_hub_filename
    return settings.hf_hub_id or "", (named,) if named else WEIGHT_FILES, settings.url or ""


def _torchvision_url(model: str) -> str:
    import torchvision

    names = torchvision.models.list_models(module=torchvision.models)
    if model not in names:
        raise BadInput(f"torchvision has no classifier {model!r}{did_you_mean(model, names)}")
    return str(torchvision.models.get_model_weights(model).DEFAULT.url)


def is_model_folder(path: Path) -> bool:
    """Whether a folder is laid out like a model on Hugging Face, and is no run."""
    return (path / "config.json").is_file() and not (path / "encoder.safetensors").exists()


def read_model_folder(path: Path) -> DescribedWeights:
    """The weights of a folder with config.json and model.safetensors, as timm writes it."""
    try:
        config = parse_json(read_text(path / "config.json"))
    except (OSError, ValueError) as error:
        raise BadInput(f"{path / 'config.json'}: cannot be read ({reason(error)}); fetch the folder again") from None
    file = next((path / name for name in WEIGHT_FILES if (path / name).is_file()), None)
    if file is None:
        raise BadInput(f"{path} has a config.json and no {WEIGHT_FILES[0]}; fetch it into the same folder")
    config = config if isinstance(config, dict) else {}
    if not isinstance(architecture := config.get("architecture"), str):
        raise BadInput(
            f"{path / 'config.json'} names no architecture of timm; give timm:NAME@{file}; if this is a "
            "model of transformers, take the same one from timm"
        )
    given = (config.get(key) for key in ("pretrained_cfg", "model_args"))
    images, arguments = (value if isinstance(value, dict) else {} for value in given)
    try:
        name, width = from_timm(architecture, arguments)
        mean, std = (_numbers(images, key) for key in ("mean", "std"))
    except BadInput as error:
        raise BadInput(f"{path / 'config.json'}: {error}") from None
    sides = images.get("input_size")
    channels, size = (sides[0], sides[-1]) if isinstance(sides, list) and len(sides) == 3 else (None, None)
    side = arguments.get("img_size", size)
    side = side[-1] if isinstance(side, list) and side else side
    return DescribedWeights(name, file, _count(side), mean, std, _count(arguments.get("in_chans", channels)), width)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _numbers(images: dict[str, Any], key: str) -> list[float] | None:
    values = images.get(key)
    if values is None:
        return None
    if not isinstance(values, list) or not all(isinstance(value, (int, float)) for value in values):
        raise BadInput(f"pretrained_cfg.{key} is no list of numbers; correct it")
    return [float(value) for value in values]


CIFAR_RESNET = re.compile(r"cifar-(resnet\d+)(-pad2|-norelu)?")
STEM_ARGUMENTS: dict[str | None, dict[str, Any]] = {
    None: {},
    "-pad2": {"stem_padding": 2},
    "-norelu": {"stem_relu": False},
}
VIT_SMALL = "vit_small_patch16_224", {"num_heads": 12}  # timm's has 6; no tensor shows it
# these say what the rest of a folder says too, or matter only in training
WITHOUT_EFFECT = ("in_chans", "img_size", "num_classes", "drop_rate", "drop_path_rate")


class TimmModel(NamedTuple):
    """A name for `timm.create_model`, and arguments besides in_chans, img_size and num_classes."""

    architecture: str
    arguments: dict[str, Any]

    @property
    def is_ours(self) -> bool:
        """Whether timm knows it only after `import supancl.use.timm_models`."""
        return self.architecture.startswith("supancl_")


def to_timm(spec: EncoderSpec) -> TimmModel:
    """The model of timm that may hold this encoder; whether timm has it is not looked up.

    >>> to_timm(EncoderSpec("cifar-resnet18-pad2"))
    TimmModel(architecture='supancl_cifar_resnet18', arguments={'stem_padding': 2})
    """
    if spec.name == "vit-small":
        return TimmModel(*VIT_SMALL)
    if spec.name == "cnn":
        return TimmModel("supancl_cnn", {"width": spec.width or 128})
    if match := CIFAR_RESNET.fullmatch(spec.name):
        return TimmModel(f"supancl_cifar_{match[1]}", STEM_ARGUMENTS[match[2]])
    return TimmModel(spec.name.rpartition(":")[2].partition(".")[0], {})


def from_timm(architecture: str, arguments: Mapping[str, Any]) -> tuple[str, int | None]:
    """The name of an encoder and its width, if that is not fixed; other arguments than ours are refused.

    >>> from_timm("vit_small_patch16_224", {"img_size": 32, "num_heads": 12})
    ('vit-small', None)
    """
    given = {key: value for key, value in arguments.items() if key not in WITHOUT_EFFECT}
    if (architecture, given) == VIT_SMALL:
        return "vit-small", None
    if architecture == "supancl_cnn" and set(given) <= {"width"}:
        width = given.get("width", 128)
        if not isinstance(width, int) or width < 1:
            raise BadInput(f"model_args.width = {width!r}: must be a whole number of at least 1")
        return "cnn", width
    if architecture.startswith("supancl_cifar_"):
        for suffix, stem in STEM_ARGUMENTS.items():
            if given == stem:
                return f"cifar-{architecture.removeprefix('supancl_cifar_')}{suffix or ''}", None
    if given:
        raise BadInput(
            f"model_args sets {', '.join(sorted(map(str, given)))}, which changes {architecture}, and supancl has no "
            "encoder for that; register one in a --plugin FILE (docs/extending.md)"
        )
    return f"timm:{architecture}", None
