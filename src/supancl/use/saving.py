"""The folder of a fitted estimator: encoder.safetensors, and estimator.json with everything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from supancl.config import parse_json
from supancl.core.encoders import Encoder
from supancl.errors import BadInput
from supancl.files import check_writable, is_as_written, make_folder, read_text, reason, write_sealed_json
from supancl.recipes import recipe_from_json
from supancl.weights.encoder_file import load_encoder, save_encoder

FILE = "estimator.json"
VERSION = 1


def write_estimator(folder: Path, encoder: Encoder, content: dict[str, Any]) -> Path:
    """Write a fitted estimator to a new folder, and return it."""
    if (folder / FILE).exists() or (folder / "encoder.safetensors").exists():
        raise BadInput(f"{folder} already holds an encoder; choose another folder")
    check_writable(folder)
    try:
        text = json.dumps({**content, "version": VERSION}, default=_to_list)
    except TypeError as error:
        raise BadInput(f"a parameter of the estimator cannot be written as JSON ({error}); use plain values") from None
    make_folder(folder)
    classes, side = tuple(map(str, content["classes"])), content["fitted"].get("_short_side")
    save_encoder(folder / "encoder.safetensors", encoder, classes, content["recipe"]["name"], side)
    write_sealed_json(folder / FILE, json.loads(text))  # last: a folder without it is not a whole one
    return folder


def _to_list(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} {value!r}")


def read_estimator(folder: Path) -> tuple[Encoder, dict[str, Any]]:
    """What `write_estimator` wrote."""
    file = folder / FILE
    try:
        content = parse_json(read_text(file))
    except (OSError, ValueError) as error:
        raise BadInput(f"{file} cannot be read ({reason(error)}); give a folder that ImageEncoder.save wrote") from None
    if not isinstance(content, dict) or content.get("version") != VERSION or not is_as_written(content):
        raise BadInput(f"{file} is damaged, was changed, or is of a newer version; save the estimator again")
    content["recipe"] = recipe_from_json(json.dumps({"recipe": content["recipe"]}), str(file))
    shape = content["parameters"].get("image_shape")
    content["parameters"]["image_shape"] = None if shape is None else tuple(shape)
    has_texts = any(isinstance(label, str) for label in content["classes"])
    content["classes"] = np.array(content["classes"], dtype=object if has_texts else None)
    for name, dtype in (("_center", None), ("_scale", None), ("feature_names_in_", object)):
        if name in content["fitted"]:
            content["fitted"][name] = np.array(content["fitted"][name], dtype)
    return load_encoder(folder), content
