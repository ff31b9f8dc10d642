"""Identify the library that wrote a checkpoint from the names of its tensors: one row per layout.

Prefixes are written without the wrappers of parallel training and torch.compile ("module.", "_orig_mod.").
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from supancl.core.encoders import sincos_positions
from supancl.errors import BadInput


class Format(NamedTuple):
    """Where a library's checkpoint keeps the backbone, and what distinguishes it from others with the same prefix."""

    name: str
    online: str  # prefix of the backbone that is trained by gradient
    target: tuple[str, ...] = ()  # prefixes of its moving average
    marks: tuple[str, ...] = ()  # at least one of these prefixes must be present, if any are listed
    stem_padding: int = 1  # of a 3 x 3 stem


# docs/import.md says from which files of each library the names are, and what else a checkpoint holds
FORMATS = (
    Format("moco", "encoder_q.", ("encoder_k.",)),
    Format("moco-v3", "base_encoder.", ("momentum_encoder.",)),
    Format("byol-pytorch", "online_encoder.net.", ("target_encoder.net.",)),
    Format("simsiam", "encoder.", (), ("encoder.fc.",)),
    Format("solo-learn-encoder", "encoder.", ("momentum_encoder.",), ("classifier.",), stem_padding=2),
    Format("sup-ancl", "encoder.", ("target_encoder.",), ("projector.",)),  # the authors' code
    Format("supcontrast", "encoder.", (), ("head.", "fc.")),
    # in some of lightly's benchmarks `backbone` is the moving average and its copy is what learns
    Format("lightly-query", "query_backbone.", ("backbone.",)),
    Format("lightly-student", "student_backbone.", ("teacher_backbone.", "backbone.")),
    Format("lightly", "backbone.", ("backbone_momentum.", "teacher_backbone.", "momentum_backbone."),
           ("projection_head.", "prediction_head.", "online_classifier.")),
    Format("solo-learn", "backbone.", ("momentum_backbone.",), ("classifier.",), stem_padding=2),
    Format("mmpretrain", "backbone.", ("target_net.0.", "encoder_k.0.", "momentum_encoder.0."), ("neck.", "head.")),
    Format("vissl", "_feature_blocks."),
    Format("plain", ""),
)  # fmt: skip

STATE_DICT_KEYS = ("state_dict", "model", "model_state_dict", "classy_state_dict.base_model.model.trunk", "")

# (has bottleneck blocks, blocks in each of the four layers) -> name
RESNETS: dict[tuple[bool, tuple[int, ...]], str] = {
    (False, (2, 2, 2, 2)): "resnet18", (False, (3, 4, 6, 3)): "resnet34", (True, (3, 4, 6, 3)): "resnet50",
    (True, (3, 4, 23, 3)): "resnet101", (True, (3, 8, 36, 3)): "resnet152",
}  # fmt: skip
VITS = {192: "tiny", 384: "small", 768: "base", 1024: "large", 1280: "huge"}  # by width, as timm names them

# child names in an nn.Sequential of a ResNet, by the index of layer1: without and with modules that have no weights
SEQUENTIAL_NAMES = {
    "2": {"0": "conv1", "1": "bn1", "2": "layer1", "3": "layer2", "4": "layer3", "5": "layer4"},
    "4": {"0": "conv1", "1": "bn1", "4": "layer1", "5": "layer2", "6": "layer3", "7": "layer4"},
}
WRAPPER = re.compile(r"(?:(?<=\.)|^)(?:module|_orig_mod)\.")
FIRST_BLOCK = re.compile(r"^(?P<prefix>(?:.*\.)?)(?P<layer>layer1|2|4)\.0\.conv1\.weight$")
PATCHES = "patch_embed.proj.weight"
MAX_SIDE = 128  # patches; images of 2,048 px in patches of 16
# dimensions of tensors that tell the model
DIMENSIONS = {"conv1.weight": 4, "layer1.0.conv1.weight": 4, PATCHES: 4, "pos_embed": 3}


NAME_IT = "name the model: torchvision:NAME@FILE or timm:NAME@FILE"


class Identified(NamedTuple):
    """A state dict's row of FORMATS, the prefix of its backbone's tensors, and its encoder's name."""

    format: str
    prefix: str
    architecture: str


def identify(state: Mapping[str, Tensor], branch: str = "online", prefix: str | None = None) -> Identified:
    """Which library's model this is, and where the backbone of `branch` is; `prefix` selects it directly.

    >>> import torchvision
    >>> identify(torchvision.models.resnet18().state_dict())
    Identified(format='plain', prefix='', architecture='resnet18')
    """
    row, backbone_prefix = locate(state, branch, prefix)
    names = backbone(state, backbone_prefix)
    for name, count in DIMENSIONS.items():
        if name in names and names[name].ndim != count:
            raise BadInput(
                f"tensor {name} has shape {tuple(names[name].shape)}, and {count} dimensions are usual; {NAME_IT}"
            )
    first_layer = _find_first_layer(state, backbone_prefix)
    architecture = _vit(names, row) if PATCHES in names else _resnet(names, row, first_layer)
    return Identified(row.name, backbone_prefix, architecture)


def locate(state: Mapping[str, Tensor], branch: str = "online", prefix: str | None = None) -> tuple[Format, str]:
    """The row of FORMATS, and the backbone's prefix as the file spells it."""
    if branch not in ("online", "target"):
        raise BadInput(f"branch = {branch!r}: must be online or target")
    prefixes = {WRAPPER.sub("", name): name for name in _find_backbones(state)}
    if prefix is not None:
        backbone_prefix = prefixes.get(WRAPPER.sub("", prefix))
        if backbone_prefix is None:
            available = ", ".join(repr(name) for name in prefixes.values()) or "none"
            raise BadInput(f"no backbone under the prefix {prefix!r}; available prefixes: {available}")
        return Format("given prefix", backbone_prefix), backbone_prefix
    names = [WRAPPER.sub("", name) for name in state]
    all_online = {row.online for row in FORMATS}
    for row in sorted(FORMATS, key=lambda row: row.online not in prefixes):  # last: a file that holds only an average
        is_online = row.online in prefixes and (not row.marks or any(name.startswith(row.marks) for name in names))
        targets = [name for name in row.target if name in prefixes and (is_online or name not in all_online)]
        if is_online or (targets and row.online not in prefixes):
            found = {"online": [row.online] * is_online, "target": targets}
            if not found[branch]:
                others = {kind: prefixes[own[0]] for kind, own in found.items() if own}
                raise BadInput(f"this {row.name} checkpoint has no {branch} branch; it has {others}; change branch")
            return row, prefixes[found[branch][0]]
    advice = f"backbones under {', '.join(map(repr, prefixes.values()))}; name its prefix" if prefixes else NAME_IT
    first_names = ", ".join(list(state)[:4]) or "no tensor at all"
    raise BadInput(f"no known format ({', '.join(row.name for row in FORMATS)}); it holds {first_names}; {advice}")


def _find_backbones(state: Mapping[str, Tensor]) -> list[str]:
    """The prefixes under which there is a complete ResNet or vision transformer."""
    prefixes = [name.removesuffix(PATCHES) for name in state if name.endswith(PATCHES)]
    for name in state:
        match = FIRST_BLOCK.match(name)
        if match:
            stem = "conv1.weight" if match["layer"] == "layer1" else "0.weight"
            if match["prefix"] + stem in state and match["prefix"] not in prefixes:
                prefixes.append(match["prefix"])
    return prefixes


def _find_first_layer(state: Mapping[str, Tensor], prefix: str) -> str | None:
    """Index of layer1 in an nn.Sequential of a ResNet's children; None if the children have names."""
    if f"{prefix}0.weight" not in state:
        return None
    return next((index for index in SEQUENTIAL_NAMES if f"{prefix}{index}.0.conv1.weight" in state), None)


def backbone(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors under a prefix, by the names that torchvision and timm give them."""
    children = SEQUENTIAL_NAMES.get(_find_first_layer(state, prefix) or "", {})
    names = {}
    for name, value in state.items():
        if name.startswith(prefix):
            first, dot, rest = name.removeprefix(prefix).partition(".")
            names[(children.get(first, first) + dot + rest).replace(".shortcut.", ".downsample.")] = value
    return {name: _merge_split_norm(value, names, name) for name, value in names.items()}


def _merge_split_norm(value: Tensor, names: Mapping[str, Tensor], name: str) -> Tensor:
    """Average the per-chunk statistics of lightly's split batch norm, as it does in eval mode."""
    norm, _, last = name.rpartition(".")
    width = names[f"{norm}.weight"].numel() if f"{norm}.weight" in names else 0
    is_split = last in ("running_mean", "running_var") and value.ndim == 1 and 0 < width < len(value)
    return value.view(-1, width).mean(0) if is_split and len(value) % width == 0 else value


def _resnet(names: Mapping[str, Tensor], row: Format, first_layer: str | None) -> str:
    blocks = tuple(
        sum(re.fullmatch(rf"layer{layer}\.\d+\.conv1\.weight", name) is not None for name in names)
        for layer in (1, 2, 3, 4)
    )
    name = RESNETS.get(("layer1.0.conv3.weight" in names, blocks))
    stem, first = tuple(names["conv1.weight"].shape), tuple(names["layer1.0.conv1.weight"].shape)
    if name is None or stem[0] != 64 or first[0] != 64 or stem[2:] not in ((7, 7), (3, 3)):
        raise BadInput(
            f"a ResNet of {blocks} blocks with stem {stem} and first block {first}, which is unknown; {NAME_IT}"
        )
    if stem[2:] == (7, 7):
        return name
    if first_layer == "2":  # lightly's ResNet applies its first ReLU as a function, which nn.Sequential drops
        return f"cifar-{name}-norelu"
    return f"cifar-{name}" + (f"-pad{row.stem_padding}" if row.stem_padding != 1 else "")


def _vit(names: Mapping[str, Tensor], row: Format) -> str:
    width, _, patch, _ = names[PATCHES].shape
    lacking = next((name for name in ("cls_token", "pos_embed", "norm.weight") if name not in names), None)
    if width not in VITS or lacking:
        raise BadInput(f"a vision transformer with {f'no {lacking}' if lacking else f'width {width}'}; {NAME_IT}")
    # tensors do not show the number of heads: MoCo-v3 has 12 at every width below 1024, timm one per 64 units
    if row.name == "moco-v3" or _is_sincos(names["pos_embed"]):
        if (width, patch) == (384, 16):
            return "vit-small"
        if width < 768:
            raise BadInput(
                f"a vision transformer of MoCo-v3's kind with width {width} and patches of {patch}, "
                "which supancl has no encoder for"
            )
    return f"timm:vit_{VITS[width]}_patch{patch}_224"


def _is_sincos(position: Tensor) -> bool:
    side = round(max(0, position.shape[1] - 1) ** 0.5)
    if not 0 < side <= MAX_SIDE or side * side != position.shape[1] - 1 or position.shape[0] != 1 or position.is_meta:
        return False
    if position.shape[2] not in VITS or not position.is_floating_point():
        return False
    expected = torch.cat([torch.zeros(1, position.shape[2]), sincos_positions(side, position.shape[2])])
    return torch.allclose(position[0].float(), expected, atol=1e-2)  # in half precision too


def image_side(names: Mapping[str, Tensor]) -> int | None:
    """The image size that a vision transformer's position embedding fits, in pixels."""
    if PATCHES not in names or "pos_embed" not in names:
        return None
    if any(names[name].ndim != DIMENSIONS[name] for name in (PATCHES, "pos_embed")):
        return None
    positions = int(names["pos_embed"].shape[1]) - ("cls_token" in names)
    if not 0 < positions <= MAX_SIDE**2:
        raise BadInput(f"tensor pos_embed has {positions} positions, which fit no image; copy the file again")
    return round(math.sqrt(positions)) * int(names[PATCHES].shape[-1])
