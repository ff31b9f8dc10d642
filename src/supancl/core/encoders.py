"""The encoder f: images -> features, with its width, input size, mean and standard deviation."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from supancl.core.specs import EncoderSpec as EncoderSpec
from supancl.core.specs import check_size
from supancl.data.from_python import Preprocessing
from supancl.errors import BadInput, did_you_mean
from supancl.files import reason

PROJECTOR = "projector"  # the name of the layer after the encoder


class UnknownEncoder(BadInput):
    """The name of an encoder that neither the package nor a plugin defines."""


class Encoder(nn.Module):
    """One interface for every encoder: normalised images (B, C, H, W) -> features (B, width)."""

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__()
        if len(spec.mean) != len(spec.std) or len(spec.mean) not in (1, spec.channels):
            raise BadInput(f"encoder.mean, encoder.std: give each {spec.channels} numbers, one per channel")
        self.spec = spec
        self.size, self.mean, self.std = spec.size, spec.mean, spec.std
        self.body, self.width = _build(spec)
        self.projector: nn.Module | None = None  # of its run; set by `load_projector`
        self.freeze_norm = False  # in train mode too, batch norms use the statistics that they have

    def forward(self, images: Tensor) -> Tensor:
        return self.body(images)  # type: ignore[no-any-return]

    def train(self, mode: bool = True) -> Encoder:
        super().train(mode)
        for module in self.modules() if self.freeze_norm else ():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
        return self

    @property
    def transform(self) -> Preprocessing:
        """From one image, an array (H, W[, C]) of uint8, a Pillow image or a path, to a tensor.

        It needs no encoder and pickles, so it is also a `transform` for torchvision's data sets.
        """
        return Preprocessing(self.spec.channels, self.size, self.mean, self.std)

    def features(self, images: Tensor, layer: str = "pooled") -> Tensor:
        """One vector per image: the output of `layer`, a module of the body by name.

        "pooled" is the encoder's output; "projector" that of its run's projector, if it is loaded (`load_projector`).
        Maps are averaged over their positions. Of tokens, the class token is used if the encoder's output is the class
        token, else their mean. No norm is added. Of a module that is called several times, the last output counts.
        """
        if layer == "pooled":
            return self(images)  # type: ignore[no-any-return]
        if layer == PROJECTOR and self.projector is not None:
            return self.projector(self(images))  # type: ignore[no-any-return]
        modules = dict(self.body.named_modules())
        if layer not in modules:
            hint = did_you_mean(layer, ["pooled", *modules])
            raise BadInput(f"encoder {self.spec.name!r} has no layer {layer!r}{hint}")
        outputs: list[Any] = []
        with modules[layer].register_forward_hook(lambda module, args, out: outputs.append(out)):
            self(images)
        output = outputs[-1] if outputs else None
        if not isinstance(output, Tensor) or output.ndim not in (2, 3, 4):
            raise BadInput(f"layer {layer!r} of encoder {self.spec.name!r} gives no vectors, tokens or maps")
        if output.ndim == 3:
            has_class_token = getattr(self.body, "cls_token", getattr(self.body, "class_token", None)) is not None
            uses_class_token = has_class_token and getattr(self.body, "global_pool", "token") == "token"
            return output[:, 0] if uses_class_token else output.mean(1)
        if output.ndim == 4:
            _, first, second, last = output.shape
            channels_last = first == second != last  # images are square; so in Swin and in parts of ConvNeXt
            return output.mean((1, 2) if channels_last else (2, 3))
        return output


def _build(spec: EncoderSpec) -> tuple[nn.Module, int]:
    check_size(spec)
    is_foreign = spec.name.startswith(("timm:", "torchvision:"))
    builder = _from_library if is_foreign else {**VARIANTS, **BUILDERS}.get(spec.name)
    if builder is None:
        hint = did_you_mean(spec.name, [*BUILDERS, "timm:NAME"])
        raise UnknownEncoder(f"unknown encoder {spec.name!r}{hint}; models of timm are timm:NAME")
    return builder(spec)


def tensor_shapes(spec: EncoderSpec) -> dict[str, torch.Size] | None:
    """Names and shapes of an encoder's tensors, without memory for them: a file may claim any architecture.

    None for an encoder of a plugin, whose code may need real tensors.
    """
    builder = {**VARIANTS, **BUILDERS}.get(spec.name)
    if builder is not None and builder.__module__ != __name__:
        return None
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # timm initialises a classifier without classes
        return {name: value.shape for name, value in _build(spec)[0].state_dict().items()}


def _resnet(name: str, cifar_padding: int | None = None, relu: bool = True) -> Any:
    """A builder of a ResNet of torchvision; with `cifar_padding` of App. H's "CIFAR variant"."""

    def build(spec: EncoderSpec) -> tuple[nn.Module, int]:
        import torchvision

        body = getattr(torchvision.models, name)(weights=None)
        width = body.fc.in_features
        body.fc = nn.Identity()
        if spec.channels != 3:
            body.conv1 = nn.Conv2d(spec.channels, 64, 7, stride=2, padding=3, bias=False)
        if cifar_padding is not None:  # 32 px would be 8 px after the ImageNet stem
            body.conv1 = nn.Conv2d(spec.channels, 64, 3, stride=1, padding=cifar_padding, bias=False)
            body.maxpool = nn.Identity()
        if not relu:
            body.relu = nn.Identity()  # the stem's; each block has its own
        return body, width

    return build


def _cnn(spec: EncoderSpec) -> tuple[nn.Module, int]:
    width, channels = spec.width or 128, spec.channels
    layers: list[nn.Module] = []
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
    options: dict[str, Any] = {"img_size": spec.size, "patch_size": patch, "in_chans": spec.channels, "num_classes": 0}
    body: Any = VisionTransformer(**options, embed_dim=width, depth=12, num_heads=12)
    positions = sincos_positions(spec.size // patch, width)
    position = torch.cat([torch.zeros(1, width), positions])  # the class token has none
    body.pos_embed = nn.Parameter(position[None], requires_grad=False)

    def xavier(layer: Any, fan_in: int, fan_out: int) -> None:
        bound = math.sqrt(6.0 / (fan_in + fan_out))
        nn.init.uniform_(layer.weight, -bound, bound)
        nn.init.zeros_(layer.bias)

    for name, layer in body.named_modules():
        if isinstance(layer, nn.Linear):  # q, k and v are three matrices stored as one
            xavier(layer, layer.in_features, layer.out_features // 3 if name.endswith("qkv") else layer.out_features)
    nn.init.normal_(body.cls_token, std=1e-6)
    xavier(body.patch_embed.proj, spec.channels * patch * patch, width)
    body.patch_embed.proj.requires_grad_(False)  # MoCo-v3, Sec. 4: a frozen patch projection trains more stably
    return body, width


def sincos_positions(side: int, width: int) -> Tensor:
    """(side * side, width): a quarter of the width each for sin and cos of the row and of the column, as MoCo-v3."""
    frequency = 10000.0 ** -(torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    row, column = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    across, down = column.reshape(-1, 1) * frequency, row.reshape(-1, 1) * frequency
    return torch.cat([down.sin(), down.cos(), across.sin(), across.cos()], dim=1).float()


def _from_library(spec: EncoderSpec) -> tuple[nn.Module, int]:
    """A model of timm or a classifier of torchvision, without its classifier and without trained weights."""
    library, _, name = spec.name.partition(":")
    try:
        body = _timm(name, spec) if library == "timm" else _torchvision(name, spec)
        return body, width_of(body, spec)
    except (AssertionError, IndexError, RuntimeError, ValueError) as error:  # for sizes that it does not take
        raise BadInput(f"encoder.size = {spec.size}: {spec.name} does not take it ({reason(error)})") from None


def _timm(name: str, spec: EncoderSpec) -> nn.Module:
    import timm

    if not timm.is_model(name):
        raise BadInput(f"timm has no model {name!r}{did_you_mean(name, timm.list_models())}")
    options: dict[str, Any] = {"pretrained": False, "num_classes": 0, "in_chans": spec.channels}
    try:
        return timm.create_model(name, img_size=spec.size, **options)
    except TypeError:  # convolutional models take any size and do not know the argument
        return timm.create_model(name, **options)


def _torchvision(name: str, spec: EncoderSpec) -> nn.Module:
    import torchvision

    names = torchvision.models.list_models(module=torchvision.models)
    if name not in names:
        raise BadInput(f"torchvision has no classifier {name!r}{did_you_mean(name, names)}")
    if spec.channels != 3:
        raise BadInput(f"encoder.channels = {spec.channels}: torchvision's {name} takes 3; timm:NAME takes any number")
    options = {"image_size": spec.size} if name.startswith("vit_") else {}  # the others accept any size, or a fixed one
    body: nn.Module = torchvision.models.get_model(name, weights=None, **options)
    body.set_submodule(find_classifier(body), nn.Identity())
    return body


@torch.no_grad()
def width_of(body: nn.Module, spec: EncoderSpec) -> int:
    """The width of the features of a foreign module, which must give one vector per image."""
    training, device = body.training, next((value.device for value in body.parameters()), None)
    try:
        features: Any = body.eval()(torch.zeros(1, spec.channels, spec.size, spec.size, device=device))
    except Exception:
        if device is None or device.type != "meta":
            raise
        return 0  # a model that needs real numbers, such as timm's gemma4_vit; with them its errors are told
    finally:
        body.train(training)
    if not isinstance(features, Tensor) or features.ndim != 2:
        raise BadInput(f"encoder {spec.name!r} does not give one vector for each image")
    return features.shape[1]


def find_classifier(body: nn.Module) -> str:
    """The name of a classifier's last linear layer, such as fc; empty if there is none."""
    linear = [path for path, module in body.named_modules() if isinstance(module, nn.Linear)]
    return linear[-1] if linear else ""


BUILDERS: dict[str, Any] = {
    "resnet18": _resnet("resnet18"), "resnet50": _resnet("resnet50"), "vit-small": _vit_small,
    "cifar-resnet18": _resnet("resnet18", cifar_padding=1), "cnn": _cnn, "linear": _linear,
}  # fmt: skip
# encoders that other libraries train (docs/import.md); no recipe uses them
VARIANTS: dict[str, Any] = {name: _resnet(name) for name in ("resnet34", "resnet101", "resnet152")}
for _name in ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"):
    VARIANTS[f"cifar-{_name}"] = _resnet(_name, cifar_padding=1)
    VARIANTS[f"cifar-{_name}-pad2"] = _resnet(_name, cifar_padding=2)  # solo-learn's stem: 32 px become 34
    VARIANTS[f"cifar-{_name}-norelu"] = _resnet(_name, cifar_padding=1, relu=False)  # lightly's unpacked ResNet
