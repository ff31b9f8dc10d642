"""Encoders by name: those in the caches of torchvision, timm and Hugging Face, and their names in timm."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from supancl.config import parse_json
from supancl.core.specs import EncoderSpec
from supancl.errors import BadInput, did_you_mean
from supancl.files import did_you_mean_path, make_folder, read_text, reason

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")


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
    raise BadInput(f"no file {text}{did_you_mean_path(text) or f'; give {options}'}")


def find_weights(name: str, fetch: bool = True) -> Path:
    """The file of torchvision:MODEL or timm:MODEL[.TAG] in that library's cache; it is fetched if it is not there."""
    import torch
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.constants import HF_HUB_OFFLINE

    kind, _, model = name.partition(":")
    repository, file, url = _place_in_timm(model) if kind == "timm" else ("", "", _url_in_torchvision(model))
    cached = Path(torch.hub.get_dir(), "checkpoints", Path(url or "none").name)
    if cached.is_file():
        return cached
    if repository and isinstance(path := try_to_load_from_cache(repository, file), str):
        return Path(path)
    try:
        if HF_HUB_OFFLINE or not fetch:
            raise OSError("HF_HUB_OFFLINE is set" if fetch else "a run folder fetches nothing")
        if repository:
            return Path(hf_hub_download(repository, file))
        make_folder(cached.parent)
        digest = torch.hub.HASH_REGEX.search(cached.name)
        torch.hub.download_url_to_file(url, str(cached), digest[1] if digest else None)
    except Exception as error:  # each library for fetching has its own
        place = f"{file} of https://huggingface.co/{repository}" if repository else url
        raise BadInput(
            f"{name}: its weights are in no cache and were not fetched ({reason(error)}); fetch {place} and give "
            f"{name}@FILE, or set {'HF_HOME' if repository else 'TORCH_HOME'} to a cache that has it"
        ) from None
    return cached


def _place_in_timm(model: str) -> tuple[str, str, str]:
    """The repository of a model's weights on Hugging Face, the name of their file, and another address."""
    import timm

    names = timm.list_pretrained()
    untagged = {name.partition(".")[0] for name in names}
    if model not in names and model not in untagged:
        has_none = timm.is_model(model) and "." not in model
        hint = f"; give timm:{model}@FILE" if has_none else did_you_mean(model, [*names, *untagged])
        raise BadInput(f"timm has no weights {model!r}{hint}")
    settings: Any = timm.get_pretrained_cfg(model)
    return settings.hf_hub_id or "", settings.hf_hub_filename or WEIGHT_FILES[0], settings.url or ""


def _url_in_torchvision(model: str) -> str:
    import torchvision

    names = torchvision.models.list_models(module=torchvision.models)
    if model not in names:
        raise BadInput(f"torchvision has no classifier {model!r}{did_you_mean(model, names)}")
    return str(torchvision.models.get_model_weights(model).DEFAULT.url)


# --- folders with config.json and model.safetensors -------------------------------------------------------------------


def is_model_folder(path: Path) -> bool:
    """Whether a folder is laid out like a model on Hugging Face, and is no run."""
    return (path / "config.json").is_file() and not (path / "encoder.safetensors").exists()


def read_model_folder(path: Path) -> tuple[Path, dict[str, Any]]:
    """The weights of a folder as timm writes it, and the fields of EncoderSpec that its config.json tells."""
    config_file = path / "config.json"
    file = next((path / name for name in WEIGHT_FILES if (path / name).is_file()), None)
    if file is None:
        raise BadInput(f"{config_file}: no {WEIGHT_FILES[0]} beside it; fetch it into the same folder")
    try:
        config = parse_json(read_text(config_file))
        architecture, images = config["architecture"], config.get("pretrained_cfg") or {}
        arguments = config.get("model_args") or {}
        name, width = from_timm(architecture, arguments)
        channels, *_, side = images.get("input_size") or (3, None)
        side = arguments.get("img_size", side)
        fields = {
            "name": name,
            "width": width,
            "channels": arguments.get("in_chans", channels),
            "size": side[-1] if isinstance(side, list) else side,
            "mean": images.get("mean"),
            "std": images.get("std"),
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise BadInput(
            f"{config_file}: it does not describe a model of timm ({reason(error)}); fetch the folder again, or give "
            f"timm:NAME@{file}; if this is a model of transformers, take the same one from timm"
        ) from None
    except BadInput as error:
        raise BadInput(f"{config_file}: {error}") from None
    return file, {key: value for key, value in fields.items() if value is not None}


VIT_SMALL = "vit_small_patch16_224", {"num_heads": 12}  # timm's has 6; no tensor shows it
STEMS: dict[str, dict[str, Any]] = {"": {}, "-pad2": {"stem_padding": 2}, "-norelu": {"stem_relu": False}}
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
    if spec.name.startswith("cifar-"):
        resnet, dash, stem = spec.name.removeprefix("cifar-").partition("-")
        return TimmModel(f"supancl_cifar_{resnet}", STEMS[dash + stem])
    return TimmModel(spec.name.rpartition(":")[2].partition(".")[0], {})


def from_timm(architecture: str, arguments: Mapping[str, Any]) -> tuple[str, int | None]:
    """The name of an encoder and its width, if that is not fixed; other arguments than ours are refused.

    >>> from_timm("vit_small_patch16_224", {"img_size": 32, "num_heads": 12})
    ('vit-small', None)
    """
    given = {key: value for key, value in arguments.items() if key not in WITHOUT_EFFECT}
    if architecture == "supancl_cnn":
        given = {"width": 128, **given}
    resnet = architecture.removeprefix("supancl_cifar_")
    for name in ("vit-small", "cnn", *(f"cifar-{resnet}{stem}" for stem in STEMS)):
        width = given.get("width") if name == "cnn" else None
        if to_timm(EncoderSpec(name, width=width)) == (architecture, given):
            return name, width
    if given:
        raise BadInput(
            f"model_args sets {', '.join(sorted(map(str, given)))}, which changes {architecture}, and supancl has no "
            "encoder for that; register one in a --plugin FILE (docs/extending.md)"
        )
    return f"timm:{architecture}", None
