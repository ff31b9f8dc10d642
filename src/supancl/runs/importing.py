"""Open the ENCODER argument of evaluations: a run, NAME@FILE, or another library's checkpoint.

Nothing in a file is executed. Of two branches the online one is used unless the target is requested.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from supancl.config import from_json, to_json
from supancl.core.encoders import Encoder, EncoderSpec, tensor_shapes
from supancl.core.specs import IMAGENET_MEAN, IMAGENET_STD
from supancl.errors import BadInput
from supancl.files import Output, make_folder
from supancl.recipes import Recipe
from supancl.recipes.auto import AS_FOR_IMAGENET, TO_BE_CHOSEN
from supancl.recipes.recipe import has_fixed_size
from supancl.reporter import current_reporter
from supancl.runs.checkpoint import load_tensors
from supancl.runs.encoder_file import (
    check_shapes,
    find_encoder_file,
    is_exported,
    load_encoder,
    load_weights,
    read_encoder_spec,
    read_header,
    read_safetensors,
    save_encoder,
)
from supancl.runs.formats import (
    FORMATS,
    PATCHES,
    RESNETS,
    STATE_DICT_KEYS,
    WRAPPER,
    Format,
    Identified,
    backbone,
    identify,
    image_side,
    locate,
)
from supancl.runs.hub import find_weights, is_model_folder, read_model_folder, split_encoder_name
from supancl.runs.provenance import content_digest, has_plain_bytes

__all__ = ["FORMATS", "Format", "Identified", "convert_checkpoint", "identify", "open_encoder"]

# classifiers and projectors under the backbone's prefix
HEADS = ("fc.", "head.", "heads.", "head_dist.", "classifier.", "linear.", "projection_head.", "prototypes.")
# SupContrast and others store their command line with the weights; loading a Namespace only sets attributes
SAFE_CLASSES = (argparse.Namespace,)
MAX_EXTRA_WEIGHTS = 2**24  # an encoder with so many weights more than its file is compared before it is built
T = TypeVar("T")
SUPANCL_FILE = Identified("supancl", "", "")


def open_encoder(
    text: str | Path, *, size: int | None = None, mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None, branch: str = "online", prefix: str | None = None,
) -> Encoder:  # fmt: skip
    """The encoder that `text` names, in eval mode.

    `text` is a run folder, an encoder.safetensors, NAME@FILE (NAME is torchvision:MODEL, timm:MODEL or an encoder of
    this package, FILE its weights), torchvision:MODEL or timm:MODEL[.TAG] if these libraries have its weights in their
    cache, a folder with config.json and model.safetensors, or a checkpoint in one of FORMATS. Other libraries' files do
    not describe their images. Defaults: `size` fits the position embedding of a vision transformer, else it is 32 for a
    3 x 3 stem and 224 otherwise; `mean` and `std` are ImageNet's. `prefix` selects the backbone's tensors where no
    format matches.
    """
    return _open(str(text), size, mean, std, branch, prefix)[0]


def convert_checkpoint(text: str | Path, out: str | Path, **settings: Any) -> dict[str, Any]:
    """Write what `open_encoder` opens as encoder.safetensors (`out`, or in the folder `out`) and describe it."""
    path = Path(out) if Path(out).suffix == ".safetensors" else Path(out) / "encoder.safetensors"
    Output(path, (".safetensors",)).check()  # before reading the file, which may be large
    encoder, identified = _open(str(text), **settings)
    make_folder(path.parent)
    save_encoder(path, encoder, (), f"import:{identified.format}")
    return {
        "format": identified.format, "prefix": identified.prefix, "encoder": encoder.spec.name, "width": encoder.width,
        "channels": encoder.spec.channels, "size": encoder.size, "mean": list(encoder.mean), "std": list(encoder.std),
        "out": str(path),
    }  # fmt: skip


def _open(
    text: str, size: int | None = None, mean: Sequence[float] | None = None, std: Sequence[float] | None = None,
    branch: str = "online", prefix: str | None = None,
) -> tuple[Encoder, Identified]:  # fmt: skip
    name, file = split_encoder_name(text)
    if (short := (name or "").removeprefix("torchvision:")) in RESNETS.values():
        name = short
    settings = {"size": size, "mean": mean, "std": std, "prefix": prefix}
    described = None
    if name is None and is_model_folder(file) and not is_exported(file):
        described = read_model_folder(file)
        name, file = described.name, described.file
        size, mean, std = size or described.size, mean or described.mean, std or described.std
    if file.is_dir() or (name is None and _is_supancl_file(file)):
        overrides = [key for key, value in settings.items() if value is not None] + ["branch"] * (branch != "online")
        if overrides:
            raise BadInput(f"{file} has its own encoder settings; leave {', '.join(overrides)} out")
        return load_encoder(file), SUPANCL_FILE
    for key, values in (("mean", mean), ("std", std)):
        if any(value > 1 for value in values or ()):
            raise BadInput(f"{key} {max(values or ()):g}: pixels are from 0 to 1; divide by 255")
    state = _read(file)
    try:
        if name is not None:
            identified, names = _use_named_architecture(state, name, branch, prefix)
        else:
            identified = identify(state, branch, prefix)
            names = backbone(state, identified.prefix)
        spec = _spec(identified.architecture, names, size, mean, std, is_named=name is not None)
        if described is not None:
            spec = replace(spec, channels=described.channels or spec.channels, width=described.width)
        expected = tensor_shapes(spec)
        shapes = {key: value.shape for key, value in names.items()}
        if expected is not None and _count(expected) > _count(shapes) + MAX_EXTRA_WEIGHTS:
            check_shapes(_fit_names(shapes, expected), expected, spec.name, file)
        encoder = spec.build()
    except BadInput as error:
        raise BadInput(str(error) if str(file) in str(error) else f"{file}: {error}") from None
    _load_into(encoder, names, file)
    return encoder.eval(), identified


def _is_supancl_file(file: Path) -> bool:
    return file.suffix == ".safetensors" and "encoder" in read_header(file)[0]


def _read(file: Path) -> dict[str, Tensor]:
    """The state dict of a file, from any of STATE_DICT_KEYS."""
    if file.suffix == ".safetensors":
        return read_safetensors(file)[0]
    content = load_tensors(file, SAFE_CLASSES, mapped=True)
    if "schema_version" in content:
        raise BadInput(f"{file} is a checkpoint of a run of supancl; give the run folder")
    for key_path in STATE_DICT_KEYS:
        inner: Any = content
        for key in filter(None, key_path.split(".")):
            inner = inner.get(key) if isinstance(inner, Mapping) else None
        items = inner.items() if isinstance(inner, Mapping) else ()
        tensors = {str(key): value for key, value in items if isinstance(value, Tensor)}
        if tensors:
            return tensors
    raise BadInput(
        f"{file}: no state dict at the top level or under {', '.join(filter(None, STATE_DICT_KEYS))}; "
        f"its keys are {', '.join(map(str, list(content)[:6])) or 'none'}; save a state dict"
    )


def _count(shapes: Mapping[str, torch.Size]) -> int:
    return sum(shape.numel() for shape in shapes.values())


def _use_named_architecture(
    state: dict[str, Tensor], name: str, branch: str, prefix: str | None
) -> tuple[Identified, dict[str, Tensor]]:
    """Use the named architecture; the prefix is that of the format, or none if no format matches."""
    try:
        row, backbone_prefix = locate(state, branch, prefix)
    except BadInput:
        if branch != "online" or prefix is not None:
            raise
        weights = {WRAPPER.sub("", key): value for key, value in state.items()}
        return Identified("weights", "", name), weights
    return Identified(row.name, backbone_prefix, name), backbone(state, backbone_prefix)


def _spec(
    name: str, names: Mapping[str, Tensor], size: int | None, mean: Sequence[float] | None,
    std: Sequence[float] | None, is_named: bool,
) -> EncoderSpec:  # fmt: skip
    stem = next((names[key] for key in ("conv1.weight", PATCHES) if key in names), None)
    channels = 3 if stem is None or stem.ndim != 4 else int(stem.shape[1])
    if channels != 3 and (mean is None or std is None):
        raise BadInput(
            f"its images have {channels} channels, and ImageNet's mean and std are for 3; give mean and std with "
            f"{channels} numbers each"
        )
    native_size = image_side(names)
    if size is not None and native_size is not None and size != native_size:
        raise BadInput(f"its positions are for images of {native_size} px, not {size}; leave size out (size)")
    default_size = native_size or (32 if name.startswith("cifar-") else 224)
    default_mean, default_std = _default_mean_and_std(name if is_named else "")
    spec = {
        "name": name, "channels": channels, "size": default_size if size is None else size,
        "mean": list(default_mean if mean is None else mean), "std": list(default_std if std is None else std),
    }  # fmt: skip
    return from_json(EncoderSpec, spec, "encoder")


def _default_mean_and_std(name: str) -> tuple[Sequence[float], Sequence[float]]:
    """Mean and std: those in timm's configuration for timm's weights, else ImageNet's.

    A checkpoint that only has the shapes of a timm model counts as another library's.
    """
    if name.startswith("timm:"):
        import timm

        settings = timm.get_pretrained_cfg(name.removeprefix("timm:"))
        if settings is not None:
            return settings.mean, settings.std
    return IMAGENET_MEAN, IMAGENET_STD


def _fit_names(tensors: Mapping[str, T], expected: Mapping[str, T]) -> dict[str, T]:
    """The tensors without heads, and with the counters of batch norms: files from before torch 0.4.1 lack them."""
    fitted = {name: value for name, value in tensors.items() if name in expected or not name.startswith(HEADS)}
    for name, value in expected.items():
        if name.endswith("num_batches_tracked"):
            fitted.setdefault(name, value)
    return fitted


def _load_into(encoder: Encoder, names: Mapping[str, Tensor], file: Path) -> None:
    weights = _fit_names(names, encoder.body.state_dict())
    for name, value in weights.items():
        if not has_plain_bytes(value) or not torch.isfinite(value).all():
            raise BadInput(f"{file}: tensor {name!r} is sparse, quantised or not finite; save plain finite tensors")
    load_weights(encoder, weights, file)


# --- the weights that a run starts from -------------------------------------------------------------------------------

SAME_RESNET = re.compile(r"(?:timm|torchvision):(resnet(?:18|34|50|101|152))")


def read_start_spec(init: Path | str) -> EncoderSpec:
    """The architecture and images of a start; a file is refused if the names of its tensors tell no architecture."""
    if not Path(init).exists() or is_model_folder(Path(init)):
        return open_encoder(init).spec
    file = find_encoder_file(Path(init))
    return read_encoder_spec(file) or open_encoder(file).spec


def fill_encoder(encoder: Encoder, init: Path | str) -> None:
    """Fill an encoder with the weights of a start of the same architecture.

    `init` is what `open_encoder` takes, or a state dict with the names of the encoder's tensors.
    """
    if not Path(init).exists() or is_model_folder(Path(init)):
        _copy_weights(encoder, open_encoder(init), init)
        return
    file = find_encoder_file(Path(init))
    try:
        load_weights(encoder, _read(file), file)
    except BadInput as error:
        if Path(init).is_dir() or read_encoder_spec(file) is not None:
            raise
        try:
            start = open_encoder(init)
        except BadInput:
            raise error from None
        _copy_weights(encoder, start, init)


def _copy_weights(encoder: Encoder, start: Encoder, init: Path | str) -> None:
    weights = start.body.state_dict()
    expected = encoder.body.state_dict()
    if {name: value.shape for name, value in weights.items()} != {n: value.shape for n, value in expected.items()}:
        raise BadInput(
            f"init {init} is a {start.spec.name} for images of {start.size} px, the encoder a {encoder.spec.name} for "
            f"{encoder.size}; set encoder.name={start.spec.name} and encoder.size={start.size}"
        )
    encoder.body.load_state_dict(weights)


def describe_init(encoder: Encoder, init: Path | str) -> dict[str, str]:
    """The place of the weights that `encoder` was just filled with, and their digest: the file may change later."""
    return {"from": _absolute(str(init)), "digest": _digest(encoder)}


def _absolute(init: str) -> str:
    """The words with the path in them made absolute."""
    if Path(init).exists():
        return str(Path(init).resolve())
    name, separator, file = init.partition("@")
    return f"{name}@{Path(file).resolve()}" if separator else init


def load_init(encoder: Encoder, init: dict[str, str]) -> Encoder:
    """Fill an encoder of the run's architecture with the weights that the run started from; nothing is fetched."""
    name, file = init["from"].partition("@")[::2]
    is_cached = not file and name.startswith(("timm:", "torchvision:"))
    fill_encoder(encoder, f"{name}@{find_weights(name, fetch=False)}" if is_cached else init["from"])
    if _digest(encoder) != init["digest"]:
        raise BadInput(f"{init['from']} has changed since the run started from it; restore it")
    return encoder


def _digest(encoder: Encoder) -> str:
    return content_digest(sorted(encoder.body.state_dict().items()))


def follow_start(recipe: Recipe, init: Path | str) -> Recipe:
    """The recipe with the start's encoder if its own is still open; else refuse a start of another architecture."""
    if recipe.sources.get("encoder.name") == TO_BE_CHOSEN:
        return recipe.with_set(_settings_of(read_start_spec(init), recipe), because=f"of the start, {init}")
    try:
        spec = read_start_spec(init)
    except BadInput:
        if not Path(init).is_file():
            raise
        return recipe  # its tensors may have the names of the recipe's encoder
    _check_architecture(recipe.encoder, spec, init)
    for name in ("mean", "std"):
        if getattr(spec, name) != getattr(recipe.encoder, name):
            theirs = json.dumps(to_json(getattr(spec, name)), separators=(",", ":"))
            current_reporter().note(f"{init} was trained with another {name}: encoder.{name}={theirs} takes its own")
    return recipe


def _settings_of(spec: EncoderSpec, recipe: Recipe) -> dict[str, Any]:
    """The fields of the recipe's encoder that follow the start: all that the user did not set."""
    settings: dict[str, Any] = {"encoder.name": plain_name(spec.name)}
    free = {"size": TO_BE_CHOSEN, "width": TO_BE_CHOSEN, "mean": AS_FOR_IMAGENET, "std": AS_FOR_IMAGENET}
    for name, source in free.items():
        if recipe.sources.get(f"encoder.{name}") == source:
            settings[f"encoder.{name}"] = to_json(getattr(spec, name))
    if spec.channels != recipe.encoder.channels:
        settings["encoder.channels"] = spec.channels
    return settings


def _check_architecture(encoder: EncoderSpec, start: EncoderSpec, init: Path | str) -> None:
    """Refuse a start whose weights the encoder cannot take, with the settings that it could."""
    names = ["channels", "width", *["size"] * (encoder.name != "linear" and has_fixed_size(start.name))]
    differing = {name: getattr(start, name) for name in names if getattr(start, name) != getattr(encoder, name)}
    if plain_name(start.name) != plain_name(encoder.name):
        differing = {"name": plain_name(start.name), **differing}
    if differing and (list(differing) != ["width"] or tensor_shapes(encoder) != tensor_shapes(start)):
        sets = " and ".join(f"encoder.{name}={value}" for name, value in differing.items())
        raise BadInput(f"init {init} is a {plain_name(start.name)}, the encoder a {encoder.name}; set {sets}")


def plain_name(name: str) -> str:
    """The architecture alone, without timm's tag of the weights; one name for the ResNets that libraries share.

    >>> plain_name("timm:resnet50.a1_in1k"), plain_name("timm:convnext_tiny.in12k"), plain_name("torchvision:vit_b_16")
    ('resnet50', 'timm:convnext_tiny', 'torchvision:vit_b_16')
    """
    name = name.partition(".")[0] if name.startswith("timm:") else name
    match = SAME_RESNET.fullmatch(name)
    return match[1] if match else name
