"""Images -> features: the encoder f, with its width, input size, mean and standard deviation known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from supancl.config import Count, Positive
from supancl.errors import BadInput, nearest

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class EncoderSpec:
    """`name` is resnet18, resnet50, cifar-resnet18, vit-small, cnn, linear, or timm:NAME for any model of timm."""

    name: str = "resnet50"
    channels: Count = 3
    size: Count = 224  # side of the square input; for `linear` the length of the input vector
    width: Count | None = None  # of the features, where the encoder leaves it open (cnn, linear)
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[Positive, ...] = IMAGENET_STD

    def build(self) -> Encoder:
        return Encoder(self)


class Encoder(nn.Module):
    """One interface for every encoder: normalised images (B, C, H, W) -> features (B, width).

    >>> encoder = EncoderSpec("cifar-resnet18", size=32).build()
    >>> encoder.width, encoder.size
    (512, 32)
    """

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__()
        if len(spec.mean) != len(spec.std) or len(spec.mean) not in (1, spec.channels):
            raise BadInput(f"encoder.mean has {len(spec.mean)} and encoder.std {len(spec.std)} entries; "
                           f"give each {spec.channels}, one per channel (encoder.channels)")
        self.spec = spec
        self.size, self.mean, self.std = spec.size, spec.mean, spec.std
        self.body: nn.Module
        self.body, self.width = _build(spec)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.body(images)
        return features


def _build(spec: EncoderSpec) -> tuple[nn.Module, int]:
    if spec.name.startswith("timm:"):
        return _timm(spec)
    if spec.name not in BUILDERS:
        raise BadInput(f"unknown encoder {spec.name!r}{nearest(spec.name, [*BUILDERS, 'timm:NAME'])}")
    built: tuple[nn.Module, int] = BUILDERS[spec.name](spec)
    return built


def _resnet(name: str) -> Any:
    def build(spec: EncoderSpec) -> tuple[nn.Module, int]:
        import torchvision

        body = getattr(torchvision.models, name)(weights=None)
        width = body.fc.in_features
        body.fc = nn.Identity()
        if spec.channels != 3:
            body.conv1 = nn.Conv2d(spec.channels, 64, 7, stride=2, padding=3, bias=False)
        return body, width

    return build


def _cifar_resnet18(spec: EncoderSpec) -> tuple[nn.Module, int]:
    body, width = _resnet("resnet18")(spec)
    # 32 px would be 8 px after the ImageNet stem: App. H's "CIFAR variant"
    body.conv1 = nn.Conv2d(spec.channels, 64, 3, stride=1, padding=1, bias=False)
    body.maxpool = nn.Identity()
    return body, width


def _cnn(spec: EncoderSpec) -> tuple[nn.Module, int]:
    width = spec.width or 128
    layers: list[nn.Module] = []
    channels = spec.channels
    for out, stride in ((max(1, width // 4), 1), (max(1, width // 2), 2), (width, 2)):
        layers += [nn.Conv2d(channels, out, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
        channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), width


def _linear(spec: EncoderSpec) -> tuple[nn.Module, int]:
    width = spec.width or 128
    # no bias: with one, every feature of the centred toy data drifts onto a shared direction
    return nn.Sequential(nn.Flatten(), nn.Linear(spec.channels * spec.size, width, bias=False)), width


def _vit_small(spec: EncoderSpec) -> tuple[nn.Module, int]:
    """ViT-Small as MoCo-v3 trains it: 12 heads, fixed 2-D sin-cos positions, frozen random patch projection."""
    from timm.models.vision_transformer import VisionTransformer

    width, patch = 384, 16
    body: Any = VisionTransformer(
        img_size=spec.size, patch_size=patch, in_chans=spec.channels, embed_dim=width, depth=12, num_heads=12,
        num_classes=0, class_token=True, global_pool="token",
    )
    side = spec.size // patch
    position = torch.cat([torch.zeros(1, width), sincos_positions(side, width)])  # the class token has none
    body.pos_embed = nn.Parameter(position[None], requires_grad=False)
    for name, layer in body.named_modules():
        if isinstance(layer, nn.Linear):
            # q, k and v are three matrices stored as one: each gets the Xavier bound of its own shape
            fan_out = layer.out_features // 3 if name.endswith("qkv") else layer.out_features
            bound = math.sqrt(6.0 / (layer.in_features + fan_out))
            nn.init.uniform_(layer.weight, -bound, bound)
            nn.init.zeros_(layer.bias)
    nn.init.normal_(body.cls_token, std=1e-6)
    projection = body.patch_embed.proj
    bound = math.sqrt(6.0 / (spec.channels * patch * patch + width))
    nn.init.uniform_(projection.weight, -bound, bound)
    nn.init.zeros_(projection.bias)
    projection.requires_grad_(False)  # MoCo-v3, Sec. 4: a frozen patch projection trains more stably
    return body, width


def sincos_positions(side: int, width: int, temperature: float = 10000.0) -> Tensor:
    """(side * side, width): a quarter of the width each for sin and cos of the row and of the column, as MoCo-v3."""
    frequency = temperature ** -(torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    row, column = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    across, down = column.reshape(-1, 1) * frequency, row.reshape(-1, 1) * frequency
    return torch.cat([down.sin(), down.cos(), across.sin(), across.cos()], dim=1).float()


def _timm(spec: EncoderSpec) -> tuple[nn.Module, int]:
    import timm

    name = spec.name.removeprefix("timm:")
    if not timm.is_model(name):
        raise BadInput(f"timm has no model {name!r}{nearest(name, timm.list_models())}")
    options: dict[str, Any] = {"pretrained": False, "num_classes": 0, "in_chans": spec.channels}
    try:
        body = timm.create_model(name, img_size=spec.size, **options)
    except TypeError:  # convolutional models take any size and do not know the argument
        body = timm.create_model(name, **options)
    training = body.training
    with torch.no_grad():
        features = body.eval()(torch.zeros(1, spec.channels, spec.size, spec.size))
    body.train(training)
    if features.ndim != 2:
        raise BadInput(f"timm model {name!r} gives features of shape {tuple(features.shape[1:])}, not one vector each")
    return body, features.shape[1]


BUILDERS: dict[str, Any] = {
    "resnet18": _resnet("resnet18"),
    "resnet50": _resnet("resnet50"),
    "cifar-resnet18": _cifar_resnet18,
    "vit-small": _vit_small,
    "cnn": _cnn,
    "linear": _linear,
}
