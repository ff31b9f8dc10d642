"""Weight files that torchvision, timm and Hugging Face keep on this machine. Nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from supancl.config import parse_json
from supancl.errors import BadInput, did_you_mean
from supancl.files import read_text, reason
from supancl.weights.timm_names import from_timm

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


def find_cached_weights(name: str) -> Path:
    """The file in which the library keeps torchvision:MODEL or timm:MODEL[.TAG]; else say what to fetch, and where."""
    kind, _, model = name.partition(":")
    return _find_timm(model) if kind == "timm" else _find_torchvision(model)


def _find_timm(model: str) -> Path:
    import timm
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.constants import HF_HUB_CACHE

    if not timm.is_model(model):
        raise BadInput(f"timm has no model {model!r}{did_you_mean(model, timm.list_models())}")
    tagged = timm.list_pretrained(f"{model.partition('.')[0]}.*")
    if not tagged or ("." in model and model not in tagged):
        hint = did_you_mean(model, tagged) if tagged else f"; give timm:{model}@FILE"
        raise BadInput(f"timm has no weights {model!r}{hint}")
    settings: Any = timm.get_pretrained_cfg(model)
    repository = settings.hf_hub_id
    for file in (settings.hf_hub_filename, *WEIGHT_FILES) if repository else ():
        cached = try_to_load_from_cache(repository, file) if file else None
        if isinstance(cached, str):
            return Path(cached)
    if settings.url and (path := _hub_folder() / Path(settings.url).name).is_file():
        return path
    fetch = (
        f"fetch them with: hf download {repository} {settings.hf_hub_filename or WEIGHT_FILES[0]} (into {HF_HUB_CACHE})"
        if repository
        else f"fetch {settings.url} into {_hub_folder()}"
    )
    raise BadInput(
        f"timm:{model}: no weight file on this machine, and nothing is downloaded; {fetch}, or give timm:{model}@FILE"
    )


def _find_torchvision(model: str) -> Path:
    import torchvision

    names = torchvision.models.list_models(module=torchvision.models)
    if model not in names:
        raise BadInput(f"torchvision has no classifier {model!r}{did_you_mean(model, names)}")
    url = torchvision.models.get_model_weights(model).DEFAULT.url
    path = _hub_folder() / Path(url).name
    if path.is_file():
        return path
    raise BadInput(
        f"torchvision:{model}: no weight file on this machine, and nothing is downloaded; fetch {url} into "
        f"{path.parent}, or give torchvision:{model}@FILE"
    )


def _hub_folder() -> Path:
    import torch

    return Path(torch.hub.get_dir(), "checkpoints")


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
    architecture, images = config.get("architecture"), config.get("pretrained_cfg")
    if not isinstance(architecture, str):
        if "model_type" in config:
            raise BadInput(
                f"{path / 'config.json'} is a model of transformers ({config['model_type']}), whose weights have other "
                "names than timm's; take the same model from timm, such as timm:resnet50"
            )
        raise BadInput(f"{path / 'config.json'} names no architecture of timm; name it yourself: timm:NAME@{file}")
    images, arguments = (value if isinstance(value, dict) else {} for value in (images, config.get("model_args")))
    try:
        name, width = from_timm(architecture, arguments)
        mean, std = (_numbers(images, key) for key in ("mean", "std"))
    except BadInput as error:
        raise BadInput(f"{path / 'config.json'}: {error}") from None
    channels, size = _input_size(images, arguments)
    return DescribedWeights(name, file, size, mean, std, channels, width)


def _input_size(images: dict[str, Any], arguments: dict[str, Any]) -> tuple[int | None, int | None]:
    """Channels and side of the input, as far as they are said."""
    sides = images.get("input_size")
    channels, size = (sides[0], sides[-1]) if isinstance(sides, list) and len(sides) == 3 else (None, None)
    side = arguments.get("img_size", size)
    side = side[-1] if isinstance(side, list) and side else side
    return _count(arguments.get("in_chans", channels)), _count(side)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _numbers(images: dict[str, Any], key: str) -> list[float] | None:
    values = images.get(key)
    if values is None:
        return None
    if not isinstance(values, list) or not all(isinstance(value, (int, float)) for value in values):
        raise BadInput(f"pretrained_cfg.{key} is no list of numbers; correct it")
    return [float(value) for value in values]
