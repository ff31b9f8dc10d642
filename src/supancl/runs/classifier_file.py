"""classifier.safetensors: a linear layer on an encoder's features, with class names; and kept features of images."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from supancl.config import parse_json
from supancl.errors import BadInput
from supancl.files import did_you_mean_path
from supancl.runs.encoder_file import SCHEMA_VERSION, read_safetensors, save_safetensors

CLASSIFIER_FILE = "classifier.safetensors"
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
        raise BadInput(f"no classifier {path}{did_you_mean_path(path) or '; give a folder of evaluate finetune out'}")
    tensors, classes, metadata = _load(path)
    weight, bias = tensors.get("weight"), tensors.get("bias")
    fits = (
        weight is not None
        and bias is not None
        and weight.is_floating_point()
        and weight.ndim == 2
        and weight.shape[:1] == bias.shape == (len(classes),)
        and bool(torch.isfinite(weight).all() and torch.isfinite(bias).all())
    )
    if not fits:
        raise BadInput(f"{path}: not one finite row of weights for each of its {len(classes)} classes; copy it again")
    assert weight is not None
    assert bias is not None
    return ClassifierFile(
        weight.float(), bias.float(), classes, metadata.get("source", ""), metadata.get("made_from", "")
    )


def save_features(path: Path, content: FeatureFile) -> None:
    names = ("references", "reference_labels", "held_out", "held_out_labels")
    tensors = dict(zip(names, (*content.references, *content.held_out), strict=True))
    tensors |= dict(zip(PAIR_NAMES, content.pairs or (), strict=False))
    _save(path, tensors, content.classes, {"made_from": content.made_from})


def load_features(path: Path) -> FeatureFile:
    """Read kept features; refuse a damaged file and one whose parts do not fit."""
    tensors, classes, metadata = _load(path)
    kept_features = []
    for name, label_name in (("references", "reference_labels"), ("held_out", "held_out_labels")):
        values, labels = tensors.get(name), tensors.get(label_name)
        if values is None or labels is None or not _are_features(values, labels, len(classes)):
            raise BadInput(f"{path}: its features, labels and {len(classes)} classes do not fit; remove it")
        kept_features.append((values, labels))
    pairs = _load_pairs(tensors, [len(labels) for _, labels in kept_features], len(classes))
    if pairs is None and any(name in tensors for name in PAIR_NAMES):
        raise BadInput(f"{path}: its several labels and {len(classes)} classes do not fit; remove it")
    return FeatureFile(kept_features[0], kept_features[1], classes, metadata.get("made_from", ""), pairs)


def _load_pairs(tensors: Mapping[str, Tensor], counts: Sequence[int], classes: int) -> tuple[Tensor, Tensor] | None:
    """The pairs of a file, if they are there and fit."""
    first, second = (tensors.get(name) for name in PAIR_NAMES)
    if first is None or second is None:
        return None
    fits = all(_are_pairs(pairs, count, classes) for pairs, count in zip((first, second), counts, strict=True))
    return (first, second) if fits else None


def _are_pairs(pairs: Tensor, count: int, classes: int) -> bool:
    if pairs.dtype != torch.float32 or pairs.ndim != 3 or pairs.shape[0] != count or pairs.shape[2] != 2:
        return False
    numbers, weights = pairs[..., 0], pairs[..., 1]
    has_class = numbers >= 0
    return (
        bool(torch.isfinite(pairs).all())
        and bool((numbers == numbers.round()).all())
        and bool(((numbers >= -1) & (numbers < classes)).all())
        and bool(((weights > 0) == has_class).all())
        and bool(has_class.any(1).all())
    )


def _are_features(values: Tensor, labels: Tensor, classes: int) -> bool:
    return (
        values.dtype == torch.float32
        and values.ndim == 2
        and labels.dtype == torch.int64
        and labels.shape == values.shape[:1]
        and bool(((labels >= 0) & (labels < classes)).all())
        and bool(torch.isfinite(values).all())
    )


def _save(path: Path, tensors: Mapping[str, Tensor], classes: tuple[str, ...], metadata: Mapping[str, str]) -> None:
    fixed = {"schema_version": str(SCHEMA_VERSION), "classes": json.dumps(classes)}
    save_safetensors(path, tensors, {**metadata, **fixed})


def _load(path: Path) -> tuple[dict[str, Tensor], tuple[str, ...], dict[str, str]]:
    tensors, metadata = read_safetensors(path)
    try:
        version, classes = int(metadata["schema_version"]), parse_json(metadata["classes"])
    except (KeyError, ValueError):
        raise BadInput(f"{path}: no class names; give a file that supancl wrote") from None
    if version > SCHEMA_VERSION:
        raise BadInput(f"{path} was written by a newer supancl (schema {version}); upgrade")
    if "digest" not in metadata:
        raise BadInput(f"{path}: no digest; copy it again, or write it again with supancl")
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise BadInput(f"{path}: its class names are not a list of texts; copy it again")
    return tensors, tuple(classes), metadata
