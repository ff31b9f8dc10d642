"""The weights that a run starts from: any encoder that an evaluation opens. recipe.json records where they were."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from supancl.config import to_json
from supancl.core.encoders import Encoder, EncoderSpec, tensor_shapes
from supancl.errors import BadInput
from supancl.recipes import Recipe
from supancl.recipes.auto import AS_FOR_IMAGENET, TO_BE_CHOSEN
from supancl.recipes.recipe import has_fixed_size
from supancl.reporter import current_reporter
from supancl.weights.cached import find_weights, is_model_folder
from supancl.weights.digests import content_digest
from supancl.weights.encoder_file import find_encoder_file, initialize_encoder, read_encoder_spec
from supancl.weights.importing import open_encoder

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
    try:
        initialize_encoder(encoder, init)
    except BadInput as error:
        if Path(init).is_dir() or read_encoder_spec(Path(init)) is not None:
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
            f"{init} is a {start.spec.name} for images of {start.size} px, the encoder a {encoder.spec.name} for "
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
    names = ["name", "channels", "width", *["size"] * (encoder.name != "linear" and has_fixed_size(start.name))]
    ours, theirs = (
        {"name": plain_name(spec.name), "channels": spec.channels, "width": spec.width, "size": spec.size}
        for spec in (encoder, start)
    )
    differing = [name for name in names if ours[name] != theirs[name]]
    if not differing or (differing == ["width"] and tensor_shapes(encoder) == tensor_shapes(start)):
        return
    has = ", ".join(f"encoder.{name} = {json.dumps(ours[name])}" for name in differing)
    sets = " and ".join(f"encoder.{name}={json.dumps(theirs[name])}".replace('"', "") for name in differing)
    raise BadInput(f"init {init} is a {plain_name(start.name)}, and the recipe has {has}; set {sets}")


def plain_name(name: str) -> str:
    """The architecture alone, without timm's tag of the weights; one name for the ResNets that libraries share.

    >>> plain_name("timm:resnet50.a1_in1k"), plain_name("timm:convnext_tiny.in12k"), plain_name("torchvision:vit_b_16")
    ('resnet50', 'timm:convnext_tiny', 'torchvision:vit_b_16')
    """
    name = name.partition(".")[0] if name.startswith("timm:") else name
    match = SAME_RESNET.fullmatch(name)
    return match[1] if match else name
