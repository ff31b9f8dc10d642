"""classifier.safetensors: a linear layer on an encoder's features, with class names; and kept features of images."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from supancl.config import parse_json
from supancl.errors import BadInput
from supancl.files import did_you_mean_path
from supancl.runs.encoder_file import SCHEMA_VERSION, read_safetensors, save_safetensors

CLASSIFIER_FILE = "classifier.safetensors"
NAMES = ("references", "reference_labels", "held_out", "held_out_labels")
PAIR_NAMES = ("reference_pairs", "held_out_pairs")


class ClassifierFile(NamedTuple):
    """A linear layer with its class names; `made_from` says with what it was fitted, `source` on which images."""

    weight: Tensor  # (classes, width)
    bias: Tensor  # (classes,)
    classes: tuple[str, ...]
    source: str = ""
    made_from: str = ""


class FeatureFile(NamedTuple):
    """Features and labels of labelled images: references, and held-out ones; `made_from` as in ClassifierFile.

    `pairs` are all labels of both, (N, L, 2) each, if images have several.
    """

    references: tuple[Tensor, Tensor]
    held_out: tuple[Tensor, Tensor]
    classes: tuple[str, ...]
    made_from: str = ""
    pairs: tuple[Tensor, Tensor] | None = None


def save_classifier(path: Path, content: ClassifierFile) -> None:
    metadata = {"source": content.source, "made_from": content.made_from}
    _save(path, {"weight": content.weight, "bias": content.bias}, content.classes, metadata)


def load_classifier(path: Path) -> ClassifierFile:
    """Read a classifier that supancl wrote; refuse a damaged file and one whose parts do not fit."""
    if not path.exists():
        raise BadInput(f"no classifier {path}{did_you_mean_path(path) or '; give the out of an evaluate finetune'}")
    tensors, classes, metadata = _load(path)
    weight, bias = tensors.get("weight", torch.empty(0)).float(), tensors.get("bias", torch.empty(0)).float()
    is_finite = bool(torch.isfinite(weight).all() and torch.isfinite(bias).all())
    if weight.ndim != 2 or not weight.shape[:1] == bias.shape == (len(classes),) or not is_finite:
        raise BadInput(f"{path}: not one finite row of weights for each of its {len(classes)} classes; copy it again")
    return ClassifierFile(weight, bias, classes, metadata.get("source", ""), metadata.get("made_from", ""))


def save_features(path: Path, content: FeatureFile) -> None:
    tensors = dict(zip(NAMES, (*content.references, *content.held_out), strict=True))
    tensors |= dict(zip(PAIR_NAMES, content.pairs or (), strict=False))
    _save(path, tensors, content.classes, {"made_from": content.made_from})


def load_features(path: Path) -> FeatureFile:
    """Read kept features; refuse a damaged file and one whose parts do not fit."""
    tensors, classes, metadata = _load(path)
    references, reference_labels, held_out, held_out_labels = (tensors.get(name, torch.empty(0)) for name in NAMES)
    parts = (references, reference_labels), (held_out, held_out_labels)
    has_pairs = any(name in tensors for name in PAIR_NAMES)
    first, second = (tensors.get(name, torch.empty(0)) for name in PAIR_NAMES)
    fit = all(_are_features(values, labels, len(classes)) for values, labels in parts) and (
        not has_pairs
        or all(_are_pairs(p, len(labels), len(classes)) for p, (_, labels) in zip((first, second), parts, strict=True))
    )
    if not fit:
        raise BadInput(f"{path}: its features, labels and {len(classes)} classes do not fit; remove it")
    return FeatureFile(*parts, classes, metadata.get("made_from", ""), (first, second) if has_pairs else None)


def _are_pairs(pairs: Tensor, count: int, classes: int) -> bool:
    """Whether every image has a class, and numbers and weights are those of pairs."""
    if pairs.dtype != torch.float32 or pairs.ndim != 3 or pairs.shape[0] != count or pairs.shape[2] != 2:
        return False
    numbers, weights = pairs[..., 0], pairs[..., 1]
    valid = torch.isfinite(weights) & (numbers == numbers.round()) & (numbers >= -1) & (numbers < classes)
    return bool((valid & ((weights > 0) == (numbers >= 0))).all() and (numbers >= 0).any(1).all())


def _are_features(values: Tensor, labels: Tensor, classes: int) -> bool:
    has_types = values.dtype == torch.float32 and values.ndim == 2 and labels.dtype == torch.int64
    return (
        has_types
        and labels.shape == values.shape[:1]
        and bool(((labels >= 0) & (labels < classes)).all() and torch.isfinite(values).all())
    )


def _save(path: Path, tensors: Mapping[str, Tensor], classes: tuple[str, ...], metadata: Mapping[str, str]) -> None:
    fixed = {"schema_version": str(SCHEMA_VERSION), "classes": json.dumps(classes)}
    save_safetensors(path, tensors, {**metadata, **fixed})


def _load(path: Path) -> tuple[dict[str, Tensor], tuple[str, ...], dict[str, str]]:
    tensors, metadata = read_safetensors(path)
    try:
        version, classes = int(metadata["schema_version"]), parse_json(metadata["classes"])
        if version != SCHEMA_VERSION or "digest" not in metadata or not isinstance(classes, list):
            raise ValueError
    except (KeyError, ValueError):
        raise BadInput(f"{path}: no class names and digest of schema {SCHEMA_VERSION}; write it again") from None
    return tensors, tuple(map(str, classes)), metadata
