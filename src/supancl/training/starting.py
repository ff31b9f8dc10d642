"""Fit the encoder of a recipe to the weights that a run starts from, or refuse them before the data are read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from supancl.config import to_json
from supancl.core.encoders import EncoderSpec, tensor_shapes
from supancl.errors import BadInput
from supancl.recipes import Recipe
from supancl.recipes.auto import AS_FOR_IMAGENET, TO_BE_CHOSEN
from supancl.recipes.recipe import has_fixed_size
from supancl.reporter import Reporter
from supancl.weights.start import read_start_spec

SAME_RESNET = re.compile(r"(?:timm|torchvision):(resnet(?:18|34|50|101|152))")


def follow_start(recipe: Recipe, init: Path | str, reporter: Reporter) -> Recipe:
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
            reporter.note(f"{init} was trained with another {name}: --set 'encoder.{name}={theirs}' takes its own")
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
    sets = " ".join(f"--set encoder.{name}={json.dumps(theirs[name])}".replace('"', "") for name in differing)
    raise BadInput(f"--init {init} is a {plain_name(start.name)}, and the recipe has {has}; {sets} fits it")


def plain_name(name: str) -> str:
    """The architecture alone, without timm's tag of the weights; one name for the ResNets that libraries share.

    >>> plain_name("timm:resnet50.a1_in1k"), plain_name("timm:convnext_tiny.in12k"), plain_name("torchvision:vit_b_16")
    ('resnet50', 'timm:convnext_tiny', 'torchvision:vit_b_16')
    """
    name = name.partition(".")[0] if name.startswith("timm:") else name
    match = SAME_RESNET.fullmatch(name)
    return match[1] if match else name
