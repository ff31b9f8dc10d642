"""The names and shapes of other libraries' checkpoints, kept as text. `python -m tests.import_keys` writes them anew.

The lists of lightly, torchvision and timm come from those libraries' own models (lightly must be installed to write
its lists). The code of the others is no package: their lists come from modules arranged as the file that
FORMATS cites arranges them.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from pathlib import Path

import timm
import torch
import torchvision
from torch import Tensor, nn

FOLDER = Path(__file__).parent / "fixtures" / "import"


def mlp(
    *widths: int, bias: bool = False, last_bias: bool | None = None, last_norm: bool = False, norm: bool = True
) -> nn.Sequential:
    """Linear, norm and ReLU in turn; the last linear layer alone or with a norm that has no weights."""
    layers: list[nn.Module] = []
    for at, (before, after) in enumerate(itertools.pairwise(widths)):
        last = at == len(widths) - 2
        layers.append(nn.Linear(before, after, bias=last_bias if last and last_bias is not None else bias))
        if not last:
            layers += [nn.BatchNorm1d(after), nn.ReLU()] if norm else [nn.ReLU()]
        elif last_norm:
            layers.append(nn.BatchNorm1d(after, affine=False))
    return nn.Sequential(*layers)


def resnet(name: str = "resnet18", fc: nn.Module | None = None, cifar_padding: int | None = None) -> nn.Module:
    body = torchvision.models.get_model(name, weights=None)
    body.fc = fc or nn.Identity()
    if cifar_padding is not None:
        body.conv1 = nn.Conv2d(3, 64, 3, stride=1, padding=cifar_padding, bias=False)
        body.maxpool = nn.Identity()
    return body


def vit_mocov3(width: int, head: nn.Module) -> nn.Module:
    body = timm.models.vision_transformer.VisionTransformer(embed_dim=width, depth=12, num_heads=12, num_classes=0)
    body.head = head
    return body


class Holder(nn.Module):
    """Modules and buffers under given names, in the order given."""

    def __init__(self, **parts: nn.Module | Tensor) -> None:
        super().__init__()
        for name, part in parts.items():
            if isinstance(part, Tensor):
                self.register_buffer(name, part)
            else:
                self.add_module(name, part)


def parallel(model: nn.Module) -> dict[str, Tensor]:
    """As DistributedDataParallel names it."""
    return {f"module.{name}": value for name, value in model.state_dict().items()}


class Shortcut(nn.Module):
    """The block of SupContrast and of lightly's own ResNet: torchvision's, with the downsampling called shortcut."""

    def __init__(self, before: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        after = 4 * width if bottleneck else width
        shapes = [(before, width, 1), (width, width, 3), (width, after, 1)] if bottleneck else [
            (before, width, 3), (width, width, 3)]  # fmt: skip
        strided = 1 if bottleneck else 0
        self.depth = len(shapes)
        for at, (inside, outside, kernel) in enumerate(shapes):
            step = stride if at == strided else 1
            self.add_module(f"conv{at + 1}", nn.Conv2d(inside, outside, kernel, step, kernel // 2, bias=False))
            self.add_module(f"bn{at + 1}", nn.BatchNorm2d(outside))
        self.shortcut = nn.Sequential()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, maps: Tensor) -> Tensor:
        inner = maps
        for at in range(1, self.depth + 1):
            inner = self.get_submodule(f"bn{at}")(self.get_submodule(f"conv{at}")(inner))
            inner = inner.relu() if at < self.depth else inner
        return (inner + self.shortcut(maps)).relu()


def shortcut_resnet(blocks: tuple[int, ...], bottleneck: bool) -> dict[str, nn.Module]:
    """The children of a ResNet for 32 px, by name."""
    parts: dict[str, nn.Module] = {"conv1": nn.Conv2d(3, 64, 3, 1, 1, bias=False), "bn1": nn.BatchNorm2d(64)}
    before = 64
    for layer, (count, width) in enumerate(zip(blocks, (64, 128, 256, 512), strict=True), 1):
        row = []
        for at in range(count):
            row.append(Shortcut(before, width, 2 if at == 0 and layer > 1 else 1, bottleneck))
            before = 4 * width if bottleneck else width
        parts[f"layer{layer}"] = nn.Sequential(*row)
    return parts


def sup_ancl() -> dict[str, Tensor]:
    encoder, projector = resnet(), mlp(512, 4096, 256)
    return parallel(Holder(
        encoder=encoder, projector=projector, predictor=mlp(256, 4096, 256, last_bias=True),
        target_encoder=copy.deepcopy(encoder), target_projector=copy.deepcopy(projector),
        queue=torch.zeros(8192, 256), queue_labels=torch.zeros(8192), queue_ptr=torch.zeros(1),
    ))  # fmt: skip


def moco() -> dict[str, Tensor]:
    encoder = resnet(fc=mlp(512, 512, 128, bias=True, norm=False))
    return parallel(Holder(encoder_q=encoder, encoder_k=copy.deepcopy(encoder), queue=torch.zeros(128, 65536),
                           queue_ptr=torch.zeros(1)))  # fmt: skip


def moco_v3(encoder: nn.Module) -> dict[str, Tensor]:
    return parallel(Holder(base_encoder=encoder, momentum_encoder=copy.deepcopy(encoder),
                           predictor=mlp(256, 4096, 256, last_norm=True)))  # fmt: skip


def simsiam() -> dict[str, Tensor]:
    projector = mlp(2048, 2048, 2048, 2048, last_bias=True, last_norm=True)
    return parallel(Holder(encoder=resnet("resnet50", projector), predictor=mlp(2048, 512, 2048, last_bias=True)))


def solo_learn(name: str) -> dict[str, Tensor]:
    encoder, projector = resnet(cifar_padding=2), mlp(512, 4096, 256, bias=True)
    return Holder(**{
        name: encoder, "classifier": nn.Linear(512, 10), f"momentum_{name}": copy.deepcopy(encoder),
        "projector": projector, "momentum_projector": copy.deepcopy(projector),
        "predictor": mlp(256, 4096, 256, bias=True),
    }).state_dict()  # fmt: skip


def supcontrast() -> dict[str, Tensor]:
    encoder = Holder(module=Holder(**shortcut_resnet((3, 4, 6, 3), True)))
    return Holder(encoder=encoder, head=mlp(2048, 2048, 128, bias=True, norm=False)).state_dict()


def byol_pytorch() -> dict[str, Tensor]:
    net = resnet(fc=nn.Linear(512, 1000))
    online = Holder(net=net, projector=mlp(512, 4096, 256, bias=True))
    return Holder(net=net, online_encoder=online, online_predictor=mlp(256, 4096, 256, bias=True),
                  target_encoder=copy.deepcopy(online)).state_dict()  # fmt: skip


def mmpretrain() -> dict[str, Tensor]:
    def neck(before: int) -> nn.Module:
        return Holder(fc0=nn.Linear(before, 4096), bn0=nn.BatchNorm1d(4096), fc1=nn.Linear(4096, 256))

    backbone, first = resnet(), neck(512)
    target = Holder(module=copy.deepcopy(nn.Sequential(backbone, first)), steps=torch.zeros(()))
    return Holder(backbone=backbone, neck=first, head=Holder(predictor=neck(256)), target_net=target).state_dict()


def vissl() -> dict[str, Tensor]:
    return Holder(_feature_blocks=resnet("resnet50")).state_dict()


def lightly_example() -> dict[str, Tensor]:
    from lightly.models.modules import BYOLPredictionHead, BYOLProjectionHead

    backbone = nn.Sequential(*list(torchvision.models.resnet18(weights=None).children())[:-1])
    projection = BYOLProjectionHead(512, 1024, 256)
    return Holder(backbone=backbone, projection_head=projection, prediction_head=BYOLPredictionHead(256, 1024, 256),
                  backbone_momentum=copy.deepcopy(backbone),
                  projection_head_momentum=copy.deepcopy(projection)).state_dict()  # fmt: skip


def lightly_cifar() -> dict[str, Tensor]:
    from lightly.models import ResNetGenerator
    from lightly.models.modules import heads

    backbone = nn.Sequential(*list(ResNetGenerator("resnet-18").children())[:-1], nn.AdaptiveAvgPool2d(1))
    return Holder(backbone=backbone, projection_head=heads.SimCLRProjectionHead(512, 512, 128)).state_dict()


def lightly_query() -> dict[str, Tensor]:
    from lightly.models.modules import MoCoProjectionHead
    from lightly.utils.benchmarking import OnlineLinearClassifier

    backbone, head = resnet(), MoCoProjectionHead(512, 512, 128)
    return Holder(backbone=backbone, projection_head=head, query_backbone=copy.deepcopy(backbone),
                  query_projection_head=copy.deepcopy(head),
                  online_classifier=OnlineLinearClassifier(512, 10)).state_dict()  # fmt: skip


MODELS: dict[str, Callable[[], dict[str, Tensor]]] = {
    "sup-ancl": sup_ancl,
    "moco": moco,
    "moco-v3": lambda: moco_v3(resnet(fc=mlp(512, 4096, 256, last_norm=True))),
    "moco-v3-vit-small": lambda: moco_v3(vit_mocov3(384, mlp(384, 4096, 4096, 256, last_norm=True))),
    "moco-v3-vit-base": lambda: moco_v3(vit_mocov3(768, mlp(768, 4096, 4096, 256, last_norm=True))),
    "simsiam": simsiam,
    "solo-learn": lambda: solo_learn("backbone"),
    "solo-learn-encoder": lambda: solo_learn("encoder"),
    "supcontrast": supcontrast,
    "byol-pytorch": byol_pytorch,
    "mmpretrain": mmpretrain,
    "vissl": vissl,
    "torchvision": lambda: torchvision.models.resnet18(weights=None).state_dict(),
    "timm": lambda: timm.create_model("vit_tiny_patch16_224", pretrained=False).state_dict(),
}
WITH_LIGHTLY: dict[str, Callable[[], dict[str, Tensor]]] = {
    "lightly": lightly_example, "lightly-cifar": lightly_cifar, "lightly-query": lightly_query,
}  # fmt: skip


def listed(name: str) -> str:
    """One line for each tensor: its name and its shape."""
    build = {**MODELS, **WITH_LIGHTLY}[name]
    try:
        with torch.device("meta"):  # only names and shapes are wanted
            state = build()
    except RuntimeError:  # timm 1.0.20 looks at the values of a tensor while it builds a vision transformer
        state = build()
    return "".join(f"{key} {'x'.join(map(str, value.shape)) or '-'}\n" for key, value in state.items())


def kept(name: str) -> dict[str, tuple[int, ...]]:
    rows = [line.split() for line in (FOLDER / f"{name}.txt").read_text().splitlines()]
    return {key: tuple(int(side) for side in shape.split("x")) if shape != "-" else () for key, shape in rows}


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for model in (*MODELS, *WITH_LIGHTLY):
        (FOLDER / f"{model}.txt").write_text(listed(model))
        print(model)
