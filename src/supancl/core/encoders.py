"""Images -> features: the encoder f, with its width, input size, mean and standard deviation known."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn

from supancl.core.specs import IMAGENET_MEAN as IMAGENET_MEAN  # where it was
from supancl.core.specs import IMAGENET_STD as IMAGENET_STD
from supancl.core.specs import EncoderSpec as EncoderSpec
from supancl.core.specs import check_size as check_size
from supancl.errors import BadInput, counted, nearest

PROJECTOR = "projector"  # the layer of a run that comes after its encoder


class UnknownEncoder(BadInput):
    """An encoder's name that neither the package nor a plugin has."""


class Encoder(nn.Module):
    """One interface for every encoder: normalised images (B, C, H, W) -> features (B, width).

    >>> encoder = EncoderSpec("cifar-resnet18", size=32).build()
    >>> encoder.width, encoder.size
    (512, 32)
    """

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__()
        if len(spec.mean) != len(spec.std) or len(spec.mean) not in (1, spec.channels):
            raise BadInput(
                f"encoder.mean has {len(spec.mean)} and encoder.std "
                f"{counted(len(spec.std), 'entry', 'entries')}; give each {spec.channels}, one per channel "
                "(encoder.channels)"
            )
        self.spec = spec
        self.size, self.mean, self.std = spec.size, spec.mean, spec.std
        self.body: nn.Module
        self.body, self.width = _build(spec)
        self.projector: nn.Module | None = None  # that of its run, where features of it are asked for

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.body(images)
        return features

    @property
    def layers(self) -> tuple[str, ...]:
        """The names that `features` takes besides "pooled": every module of the body that holds no Identity."""
        return tuple(name for name, module in self.body.named_modules() if name and not isinstance(module, nn.Identity))

    def features(self, images: Tensor, layer: str = "pooled") -> Tensor:
        """One vector for each image from any depth: what `layer` gives, a module of the body by name.

        "pooled" is the encoder's own output, "projector" what its run's projector makes of it, where that was loaded
        (`load_projector`). A map is averaged over its places; of tokens the class token is
        taken where the encoder reads its own output there, else their mean. No norm is added that the layer does
        not have. A module that is called more than once counts by its last call.
        """
        if layer == "pooled":
            return self(images)  # type: ignore[no-any-return]
        if layer == PROJECTOR and self.projector is not None:
            projections: Tensor = self.projector(self(images))
            return projections
        self._check_name(layer)
        seen: list[Any] = []
        handle = self.body.get_submodule(layer).register_forward_hook(lambda module, args, output: seen.append(output))
        try:
            self(images)
        finally:
            handle.remove()
        if not seen or not isinstance(seen[-1], Tensor) or seen[-1].ndim not in (2, 3, 4):
            raise BadInput(
                f"layer {layer!r} of encoder {self.spec.name!r} gives neither vectors, tokens nor maps; "
                "choose another one"
            )
        return self._vectors(seen[-1])

    @torch.inference_mode()
    def check_layer(self, layer: str) -> None:
        """Refuse a layer that `features` would refuse, before there are any images: a blank one is tried."""
        if layer == "pooled" or (layer == PROJECTOR and self.projector is not None):
            return
        self._check_name(layer)
        shape = (self.size,) if self.spec.name == "linear" else (self.spec.channels, self.size, self.size)
        training = self.training
        self.eval()
        try:
            self.features(torch.zeros(1, *shape, device=next(self.parameters()).device), layer)
        finally:
            self.train(training)

    def _check_name(self, layer: str) -> None:
        if layer in self.layers:
            return
        children = [name for name in self.layers if "." not in name]
        close = get_close_matches(layer, self.layers, n=1, cutoff=0.6)
        guess = f"; did you mean {close[0]!r}?" if close else ""
        raise BadInput(
            f"encoder {self.spec.name!r} has no layer {layer!r}; it has pooled, {', '.join(children)} "
            f"and what lies in them, as {max(self.layers, key=len)}{guess}"
        )

    def _vectors(self, output: Tensor) -> Tensor:
        if output.ndim == 3:
            body: Any = self.body
            has_class_token = getattr(body, "cls_token", getattr(body, "class_token", None)) is not None
            reads_it = has_class_token and getattr(body, "global_pool", "token") == "token"
            return output[:, 0] if reads_it else output.mean(1)
        if output.ndim == 4:
            _, first, second, last = output.shape
            channels_last = first == second != last  # the images are square; Swin and parts of ConvNeXt are like this
            return output.mean((1, 2) if channels_last else (2, 3))
        return output


def _build(spec: EncoderSpec) -> tuple[nn.Module, int]:
    check_size(spec)
    if spec.name.startswith("timm:"):
        return _timm(spec)
    if spec.name.startswith("torchvision:"):
        return _torchvision(spec)
    if spec.name not in BUILDERS and spec.name not in VARIANTS:
        raise UnknownEncoder(f"unknown encoder {spec.name!r}{nearest(spec.name, [*BUILDERS, 'timm:NAME'])}")
    built: tuple[nn.Module, int] = {**VARIANTS, **BUILDERS}[spec.name](spec)
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


def _cifar_resnet(name: str, padding: int = 1, relu: bool = True) -> Any:
    def build(spec: EncoderSpec) -> tuple[nn.Module, int]:
        body, width = _resnet(name)(spec)
        # 32 px would be 8 px after the ImageNet stem: App. H's "CIFAR variant"
        body.conv1 = nn.Conv2d(spec.channels, 64, 3, stride=1, padding=padding, bias=False)
        body.maxpool = nn.Identity()
        if not relu:
            body.relu = nn.Identity()  # the stem's; each block has its own
        return body, width

    return build


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
        img_size=spec.size,
        patch_size=patch,
        in_chans=spec.channels,
        embed_dim=width,
        depth=12,
        num_heads=12,
        num_classes=0,
        class_token=True,
        global_pool="token",
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
    with _size_at_fault(spec, f"timm's {name}"):
        try:
            body = timm.create_model(name, img_size=spec.size, **options)
        except TypeError:  # convolutional models take any size and do not know the argument
            body = timm.create_model(name, **options)
        return body, width_of(body, spec)


def width_of(body: nn.Module, spec: EncoderSpec) -> int:
    """The width of the features of a module that came from outside; anything but one vector each is refused."""
    features: Any = _tried(body, spec)
    if not isinstance(features, Tensor) or features.ndim != 2:
        given = f"features of shape {tuple(features.shape[1:])}" if isinstance(features, Tensor) else type(features)
        raise BadInput(f"encoder {spec.name!r} gives {given}, not one vector for each image")
    return features.shape[1]


@contextmanager
def _size_at_fault(spec: EncoderSpec, model: str) -> Iterator[None]:
    """One line for what a model raises, each in its own way, that cannot take images of this size."""
    try:
        yield
    except (AssertionError, IndexError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BadInput(f"encoder.size = {spec.size}: {model} does not take it ({reason})") from None


def _tried(body: nn.Module, spec: EncoderSpec) -> Tensor:
    """The features of a black image; a stem that cuts it into patches must do so without a rest."""
    patches: list[int] = []

    def look(module: nn.Conv2d, args: tuple[Tensor, ...]) -> None:
        if args[0].shape[-2:] == (spec.size, spec.size):  # else it was padded before
            patches.append(module.stride[0])

    hooks = [module.register_forward_pre_hook(look) for module in body.modules()
             if type(module) is nn.Conv2d and module.in_channels == spec.channels
             and module.kernel_size == module.stride and module.padding == (0, 0)]  # fmt: skip
    training = body.training
    try:
        with torch.no_grad():
            features: Tensor = body.eval()(torch.zeros(1, spec.channels, spec.size, spec.size))
    finally:
        body.train(training)
        for hook in hooks:
            hook.remove()
    for patch in patches:
        check_size(spec, patch)
    return features


def _torchvision(spec: EncoderSpec) -> tuple[nn.Module, int]:
    import torchvision

    name = spec.name.removeprefix("torchvision:")
    known = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
        raise BadInput(f"torchvision has no classifier {name!r}{nearest(name, known)}")
    if spec.channels != 3:
        raise BadInput(f"encoder.channels = {spec.channels}: torchvision's {name} takes 3; timm:NAME takes any number")
    options = {"image_size": spec.size} if name.startswith("vit_") else {}  # the others take any size, or one alone
    with _size_at_fault(spec, f"torchvision's {name}"):
        body = torchvision.models.get_model(name, weights=None, **options)
        _tried(body, spec)
    linear = [path for path, module in body.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise BadInput(f"torchvision's {name} has no linear classifier to leave out; choose another model")
    parent, _, last = linear[-1].rpartition(".")
    width: int = body.get_submodule(linear[-1]).in_features
    setattr(body.get_submodule(parent), last, nn.Identity())
    return body, width


BUILDERS: dict[str, Any] = {
    "resnet18": _resnet("resnet18"),
    "resnet50": _resnet("resnet50"),
    "cifar-resnet18": _cifar_resnet("resnet18"),
    "vit-small": _vit_small,
    "cnn": _cnn,
    "linear": _linear,
}
# what other libraries train besides (docs/import.md); the recipes have no use for them
VARIANTS: dict[str, Any] = {name: _resnet(name) for name in ("resnet34", "resnet101", "resnet152")}
for _name in ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"):
    VARIANTS[f"cifar-{_name}"] = _cifar_resnet(_name)
    VARIANTS[f"cifar-{_name}-pad2"] = _cifar_resnet(_name, padding=2)  # solo-learn's stem: 32 px become 34
    VARIANTS[f"cifar-{_name}-norelu"] = _cifar_resnet(_name, relu=False)  # lightly's, where its ResNet is unpacked
