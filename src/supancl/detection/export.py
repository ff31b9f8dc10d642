"""Export weights under the names of Detectron2 or torchvision: a detector, or the backbone alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from supancl.core.encoders import EncoderSpec
from supancl.detection.model import Detector, normalization_of, open_body
from supancl.detection.saving import is_detector, load_detector
from supancl.detection.spec import DetectSpec
from supancl.errors import BadInput
from supancl.files import check_is_new, write_atomically, write_text
from supancl.weights.checkpoint import save_with_torch

FORMATS = ("detectron2", "torchvision")
# names within the backbone: torchvision -> Detectron2
DETECTRON2_NAMES = (
    (r"^conv1\.", "stem.conv1."), (r"^bn1\.", "stem.conv1.norm."), (r"^layer1\.", "res2."), (r"^layer2\.", "res3."),
    (r"^layer3\.", "res4."), (r"^layer4\.", "res5."), (r"\.downsample\.0\.", ".shortcut."),
    (r"\.downsample\.1\.", ".shortcut.norm."), (r"\.bn(\d)\.", r".conv\1.norm."),
)  # fmt: skip


def export_detector(path: str, format: str, out: Path | str) -> dict[str, Any]:
    """Write a detector's run, or an encoder, for another library; returns what was written."""
    if format not in FORMATS:
        raise BadInput(f"format {format}: must be one of {', '.join(FORMATS)}")
    file, settings = Path(out), Path(out).with_suffix(".yaml") if format == "detectron2" else None
    if file.suffix not in (".pth", ".pt"):
        raise BadInput(f"out {file}: must end in .pth or .pt, which both libraries read")
    for target in filter(None, (file, settings)):
        check_is_new(target)
    if not file.parent.is_dir():
        raise BadInput(f"no folder {file.parent}; create it, or choose another out")
    if Path(path).exists() and is_detector(Path(path)):
        saved = load_detector(path)
        state, kind = convert_weights(saved.detector, format)
        encoder, classes, spec = saved.encoder, saved.classes, saved.detector.spec
    else:
        body, encoder = open_body(path)
        state, kind, classes, spec = backbone_weights(body.state_dict(), format), "backbone", (), None
    state = {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}
    content: dict[str, Any] = {"model": state, "__author__": "supancl"} if format == "detectron2" else state
    if format == "detectron2" and kind == "backbone":
        content["matching_heuristics"] = True  # Detectron2 then matches the names, in C4 and in FPN
    write_atomically(file, lambda temporary: save_with_torch(temporary, content))
    if settings is not None:
        text = detectron2_settings(encoder, len(classes), spec)
        write_text(settings, text)
    return {
        "format": format,
        "what": kind,
        "tensors": len(state),
        "classes": list(classes),
        "out": str(file),
        "settings": None if settings is None else str(settings),
    }


def convert_weights(detector: Detector, format: str) -> tuple[dict[str, Tensor], str]:
    """The tensors under the other library's names, and what they form: `c4`, `fpn` or `backbone`."""
    state = detector.state_dict()
    if format == "torchvision":
        if detector.spec.arch == "fpn":
            return dict(state), "fpn"
        return backbone_weights(_resnet_names(state), format), "backbone"  # torchvision has no C4 detector
    names = _resnet_names(state)
    weights = {
        f"backbone.{'bottom_up.' if detector.spec.arch == 'fpn' else ''}{_detectron2_name(name)}": value
        for name, value in names.items()
    }
    if detector.spec.arch == "c4":
        weights = {re.sub(r"^backbone\.res5\.", "roi_heads.res5.", name): value for name, value in weights.items()}
        extra = "roi_heads.box_head.norm."
        weights |= {
            f"roi_heads.res5.norm.{name.removeprefix(extra)}": value
            for name, value in state.items()
            if name.startswith(extra)
        }
    else:
        weights |= _fpn_weights(state)
    return weights | _rpn_weights(detector, state) | _box_predictor_weights(state), detector.spec.arch


def backbone_weights(state: dict[str, Tensor], format: str) -> dict[str, Tensor]:
    """A ResNet's tensors under torchvision's or Detectron2's names."""
    return dict(state) if format == "torchvision" else {_detectron2_name(name): value for name, value in state.items()}


def _resnet_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the encoder, under their names in the encoder."""
    weights = {}
    for name, value in state.items():
        resnet_name = re.sub(r"^(backbone\.body\.|backbone\.|roi_heads\.box_head\.)", "", name)
        if re.match(r"(conv1|bn1|layer[1-4])\.", resnet_name) and not name.startswith("backbone.fpn."):
            weights[resnet_name] = value
    return weights


def _detectron2_name(name: str) -> str:
    for pattern, replacement in DETECTRON2_NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def _fpn_weights(state: dict[str, Tensor]) -> dict[str, Tensor]:
    weights = {}
    for name, value in state.items():
        level = re.match(r"backbone\.fpn\.(inner|layer)_blocks\.(\d)\.0\.(\w+)", name)
        if level:
            kind = "lateral" if level[1] == "inner" else "output"
            weights[f"backbone.fpn_{kind}{int(level[2]) + 2}.{level[3]}"] = value
        hidden = re.match(r"roi_heads\.box_head\.fc([67])\.(\w+)", name)
        if hidden:
            weights[f"roi_heads.box_head.fc{int(hidden[1]) - 5}.{hidden[2]}"] = value
    return weights


def _rpn_weights(detector: Detector, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Reorder the anchors of a location: torchvision goes by ratio, then size; Detectron2 by size, then ratio."""
    sizes, ratios = len(detector.spec.anchor_sizes), len(detector.spec.anchor_ratios)
    sizes = 1 if detector.spec.arch == "fpn" else sizes
    order = torch.arange(ratios * sizes).reshape(ratios, sizes).T.reshape(-1)
    weights = {
        f"proposal_generator.rpn_head.conv.{kind}": state[f"rpn.head.conv.0.0.{kind}"] for kind in ("weight", "bias")
    }
    for kind in ("weight", "bias"):
        weights[f"proposal_generator.rpn_head.objectness_logits.{kind}"] = state[f"rpn.head.cls_logits.{kind}"][order]
        deltas = state[f"rpn.head.bbox_pred.{kind}"]
        weights[f"proposal_generator.rpn_head.anchor_deltas.{kind}"] = deltas.unflatten(0, (-1, 4))[order].flatten(0, 1)
    return weights


def _box_predictor_weights(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Reorder the classes: background is first in torchvision, with box corrections; last in Detectron2, without."""
    weights = {}
    for kind in ("weight", "bias"):
        scores = state[f"roi_heads.box_predictor.cls_score.{kind}"]
        weights[f"roi_heads.box_predictor.cls_score.{kind}"] = torch.cat([scores[1:], scores[:1]])
        weights[f"roi_heads.box_predictor.bbox_pred.{kind}"] = state[f"roi_heads.box_predictor.bbox_pred.{kind}"][4:]
    return weights


def detectron2_settings(encoder: EncoderSpec, classes: int, spec: DetectSpec | None) -> str:
    """The Detectron2 configuration with which these weights compute the same; without `spec`, of the backbone."""
    normalization, resnet = normalization_of(encoder), _resnet_settings(encoder.name)
    mean, std = ([round(255 * value, 4) for value in values] for values in (normalization.mean, normalization.std))
    model: dict[str, Any] = {"PIXEL_MEAN": mean, "PIXEL_STD": std, "BACKBONE": {"FREEZE_AT": 0}, "RESNETS": resnet}
    settings: dict[str, Any] = {"MODEL": model, "INPUT": {"FORMAT": "RGB"}}
    notes = []
    if spec is not None:
        sizes = [list(spec.anchor_sizes)] if spec.arch == "c4" else [[size] for size in spec.anchor_sizes]
        model["ANCHOR_GENERATOR"] = {"SIZES": sizes, "ASPECT_RATIOS": [list(spec.anchor_ratios)]}
        model["RPN"] = {"PRE_NMS_TOPK_TEST": spec.rpn_test[0], "POST_NMS_TOPK_TEST": spec.rpn_test[1]}
        model["ROI_BOX_HEAD"] = {"POOLER_RESOLUTION": spec.pool}
        model["ROI_HEADS"] = {
            "NAME": "Res5ROIHeads",
            "NUM_CLASSES": classes,
            "SCORE_THRESH_TEST": spec.score_threshold,
            "NMS_THRESH_TEST": spec.nms,
        }
        settings["INPUT"] |= {"MIN_SIZE_TEST": spec.test_size, "MAX_SIZE_TEST": spec.max_size}
        settings["TEST"] = {"DETECTIONS_PER_IMAGE": spec.detections}
        if spec.arch == "fpn":
            _add_fpn_settings(model)
        elif spec.extra_norm:
            model["ROI_HEADS"]["NAME"] = "Res5ROIHeadsExtraNorm"
            notes.append("# Res5ROIHeadsExtraNorm is MoCo's: register it from its detection/train_net.py")
        if spec.arch == "c4" and "RES2_OUT_CHANNELS" in resnet:
            notes.append("# Detectron2's Res5ROIHeads has bottlenecks: this depth needs one with basic blocks")
    return "\n".join([*notes, *_yaml(settings), ""])


def _resnet_settings(name: str) -> dict[str, Any]:
    """Depth, and for wide_resnet50_2, resnext50_32x4d and the like also width and groups."""
    match = re.search(r"(wide_)?resnex?t(\d+)(?:_(\d+)x(\d+)d)?", name)
    wide, depth, groups, width = match.groups() if match else (None, "50", None, None)
    settings: dict[str, Any] = {"DEPTH": int(depth), "STRIDE_IN_1X1": False, "NORM": "BN"}
    if wide or groups:
        settings |= {"NUM_GROUPS": int(groups or 1), "WIDTH_PER_GROUP": int(width or 128)}
    return settings | ({"RES2_OUT_CHANNELS": 64} if depth in ("18", "34") else {})


def _add_fpn_settings(model: dict[str, Any]) -> None:
    """Settings of FPN. torchvision pools without the half pixel and with 2 x 2 samples; Detectron2 must do the same."""
    stages, levels = ["res2", "res3", "res4", "res5"], ["p2", "p3", "p4", "p5", "p6"]
    model["BACKBONE"]["NAME"] = "build_resnet_fpn_backbone"
    model["RESNETS"]["OUT_FEATURES"], model["FPN"] = stages, {"IN_FEATURES": stages}
    model["RPN"]["IN_FEATURES"] = levels
    model["ROI_BOX_HEAD"] |= {
        "NAME": "FastRCNNConvFCHead",
        "NUM_FC": 2,
        "POOLER_TYPE": "ROIAlign",
        "POOLER_SAMPLING_RATIO": 2,
    }
    model["ROI_HEADS"] |= {"NAME": "StandardROIHeads", "IN_FEATURES": levels[:-1]}


def _yaml(settings: dict[str, Any], depth: int = 0) -> Iterator[str]:
    """Lines of YAML; the values are written as JSON, which is valid YAML."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield f"{'  ' * depth}{name}:"
            yield from _yaml(value, depth + 1)
        else:
            yield f"{'  ' * depth}{name}: {json.dumps(value)}"
