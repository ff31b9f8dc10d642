"""Open the ENCODER argument of evaluations: a run, NAME@FILE, or another library's checkpoint.

Nothing in a file is executed. Of two branches the online one is used unless the target is requested.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
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
from supancl.runs.checkpoint import load_tensors
from supancl.runs.encoder_file import (
    check_shapes,
    is_exported,
    load_encoder,
    load_weights,
    read_encoder_spec,
    read_safetensors,
    save_encoder,
)
from supancl.runs.formats import (
    PATCHES,
    RESNETS,
    STATE_DICT_KEYS,
    WRAPPER,
    Identified,
    backbone,
    identify,
    image_side,
    locate,
)
from supancl.runs.hub import find_weights, is_model_folder, read_model_folder, split_encoder_name
from supancl.runs.provenance import content_digest, has_plain_bytes

# classifiers and projectors under the backbone's prefix
HEADS = ("fc.", "head.", "heads.", "head_dist.", "classifier.", "linear.", "projection_head.", "prototypes.")
# SupContrast and others store their command line with the weights; loading a Namespace only sets attributes
SAFE_CLASSES = (argparse.Namespace,)
MAX_EXTRA_WEIGHTS = 2**24  # an encoder with so many weights more than its file is compared before it is built
SAME_RESNET = re.compile(r"(?:timm|torchvision):(resnet(?:18|34|50|101|152))")
T = TypeVar("T")


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
    return _open(str(text), {"size": size, "mean": mean, "std": std}, branch, prefix)[0]


def convert_checkpoint(
    text: str | Path, out: str | Path, branch: str = "online", prefix: str | None = None, **images: Any
) -> dict[str, Any]:
    """Write what `open_encoder` opens as encoder.safetensors (`out`, or in the folder `out`) and describe it."""
    path = Path(out) if Path(out).suffix == ".safetensors" else Path(out) / "encoder.safetensors"
    Output(path, (".safetensors",)).check()  # before reading the file, which may be large
    encoder, identified = _open(str(text), images, branch, prefix)
    make_folder(path.parent)
    save_encoder(path, encoder, (), f"import:{identified.format}")
    spec = {name: to_json(getattr(encoder.spec, name)) for name in ("channels", "size", "mean", "std")}
    about = {"format": identified.format, "prefix": identified.prefix, "encoder": encoder.spec.name}
    return {**about, "width": encoder.width, **spec, "out": str(path)}


def _open(text: str, images: Mapping[str, Any], branch: str, prefix: str | None) -> tuple[Encoder, Identified]:
    name, file = split_encoder_name(text)
    if (short := (name or "").removeprefix("torchvision:")) in RESNETS.values():
        name = short
    given = {key: value for key, value in images.items() if value is not None}
    described: dict[str, Any] = {}
    if name is None and is_model_folder(file) and not is_exported(file):
        file, described = read_model_folder(file)
        name = described["name"]
    if file.is_dir() or (name is None and read_encoder_spec(file) is not None):
        if given or branch != "online" or prefix is not None:
            raise BadInput(f"{file} has its own encoder settings; leave size, mean, std, branch and prefix out")
        return load_encoder(file), Identified("supancl", "", "")
    try:
        state = _read(file)
        identified, names = _locate_backbone(state, name, branch, prefix)
        spec = _spec(identified.architecture, names, {**described, **given}, is_named=name is not None)
        expected = tensor_shapes(spec)
        shapes = {key: value.shape for key, value in names.items()}
        sizes = (sum(shape.numel() for shape in each.values()) for each in (expected or {}, shapes))
        if expected is not None and next(sizes) > next(sizes) + MAX_EXTRA_WEIGHTS:
            check_shapes(_fit_names(shapes, expected), expected, spec.name, file)
        encoder = spec.build()
        weights = _fit_names(names, encoder.body.state_dict())
        if bad := next((key for key, value in weights.items() if not torch.isfinite(value).all()), None):
            raise BadInput(f"tensor {bad!r} is not finite; give another checkpoint")
        load_weights(encoder, weights, file)
    except BadInput as error:
        raise BadInput(str(error) if str(file) in str(error) else f"{file}: {error}") from None
    return encoder.eval(), identified


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
        if bad := [key for key, value in tensors.items() if not has_plain_bytes(value)]:
            raise BadInput(f"{file}: tensor {bad[0]!r} is sparse or quantised; save plain tensors")
        if tensors:
            return tensors
    raise BadInput(
        f"{file}: no state dict at the top level or under {', '.join(filter(None, STATE_DICT_KEYS))}; "
        f"its keys are {', '.join(map(str, list(content)[:6])) or 'none'}; save a state dict"
    )


def _locate_backbone(
    state: dict[str, Tensor], name: str | None, branch: str, prefix: str | None
) -> tuple[Identified, dict[str, Tensor]]:
    """The backbone's tensors; for a named architecture the prefix is that of the format, or none if none matches."""
    if name is None:
        identified = identify(state, branch, prefix)
        return identified, backbone(state, identified.prefix)
    try:
        row, backbone_prefix = locate(state, branch, prefix)
    except BadInput:
        if branch != "online" or prefix is not None:
            raise
        return Identified("weights", "", name), {WRAPPER.sub("", key): value for key, value in state.items()}
    return Identified(row.name, backbone_prefix, name), backbone(state, backbone_prefix)


def _spec(name: str, names: Mapping[str, Tensor], given: Mapping[str, Any], is_named: bool) -> EncoderSpec:
    """The encoder of these tensors; what they and `given` do not tell of its images is a default."""
    stem = next((names[key] for key in ("conv1.weight", PATCHES) if key in names), None)
    channels = 3 if stem is None or stem.ndim != 4 else int(stem.shape[1])
    if channels != 3 and not {"mean", "std"} <= set(given):
        raise BadInput(f"its images have {channels} channels; give mean and std with {channels} numbers each")
    native_size = image_side(names)
    if native_size is not None and given.get("size", native_size) != native_size:
        raise BadInput(f"its positions are for images of {native_size} px, not {given['size']}; leave size out")
    mean, std = _default_mean_and_std(name if is_named else "")
    size = native_size or (32 if name.startswith("cifar-") else 224)
    fields = {"channels": channels, "size": size, "mean": mean, "std": std, **given, "name": name}
    listed = {key: list(value) if isinstance(value, tuple) else value for key, value in fields.items()}
    spec = from_json(EncoderSpec, listed, "encoder")
    if (largest := max(*spec.mean, *spec.std)) > 1:
        raise BadInput(f"mean or std {largest:g}: pixels are from 0 to 1; divide by 255")
    return spec


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


# --- the weights that a run starts from -------------------------------------------------------------------------------


def fill_encoder(encoder: Encoder, init: Path | str) -> None:
    """Fill an encoder with the weights of a start of the same architecture; `init` is what `open_encoder` takes."""
    load_weights(encoder, open_encoder(init).body.state_dict(), Path(init))


def describe_init(encoder: Encoder, init: Path | str) -> dict[str, str]:
    """The place of the weights that `encoder` was just filled with, and their digest: the file may change later."""
    return {"from": absolute_start(init), "digest": _digest(encoder)}


def absolute_start(init: Path | str) -> str:
    """What `open_encoder` takes, with its path made absolute, also after an @."""
    name, separator, file = str(init).partition("@")
    place = f"{name}@{Path(file).resolve()}" if separator else str(init)
    return str(Path(init).resolve()) if Path(init).exists() else place


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
    start = open_encoder(init).spec
    if recipe.sources.get("encoder.name") != TO_BE_CHOSEN:
        _check_same_architecture(recipe.encoder, start, init)
        return recipe
    settings: dict[str, Any] = {"encoder.name": plain_name(start.name)}
    free = {"size": TO_BE_CHOSEN, "width": TO_BE_CHOSEN, "mean": AS_FOR_IMAGENET, "std": AS_FOR_IMAGENET}
    for name, source in free.items():
        if recipe.sources.get(f"encoder.{name}") == source:
            settings[f"encoder.{name}"] = to_json(getattr(start, name))
    if start.channels != recipe.encoder.channels:
        settings["encoder.channels"] = start.channels
    return recipe.with_set(settings, because=f"of the start, {init}")


def _check_same_architecture(encoder: EncoderSpec, start: EncoderSpec, init: Path | str) -> None:
    """Refuse a start with other tensors, and name the settings that take it; the size of images may differ."""
    settings = {name: getattr(start, name) for name in ("channels", "width")}
    settings |= {"size": start.size} if has_fixed_size(start.name) else {}
    settings = {name: value for name, value in settings.items() if value != getattr(encoder, name)}
    if plain_name(start.name) != plain_name(encoder.name):
        settings = {"name": plain_name(start.name), **settings}
    elif tensor_shapes(start) == tensor_shapes(encoder):
        return
    sets = " and ".join(f"encoder.{name}={value}" for name, value in settings.items())
    raise BadInput(f"init {init} is a {plain_name(start.name)}, the encoder a {encoder.name}; set {sets}")


def plain_name(name: str) -> str:
    """The architecture alone, without timm's tag of the weights; one name for the ResNets that libraries share.

    >>> plain_name("timm:resnet50.a1_in1k"), plain_name("timm:convnext_tiny.in12k"), plain_name("torchvision:vit_b_16")
    ('resnet50', 'timm:convnext_tiny', 'torchvision:vit_b_16')
    """
    name = name.partition(".")[0] if name.startswith("timm:") else name
    match = SAME_RESNET.fullmatch(name)
    return match[1] if match else name
