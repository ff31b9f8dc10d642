"""Register supancl's own encoders with timm: ResNets with a 3 x 3 stem for small images, and a small CNN.

    import supancl.use.timm_models
    model = timm.create_model("local-dir:FOLDER", pretrained=True)

This file needs torch and timm only. Copy it into a project that does not install supancl.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from timm.models import build_model_with_cfg, register_model
from timm.models.resnet import BasicBlock, Bottleneck, ResNet
from torch import Tensor, nn

RESNETS = {
    "resnet18": (BasicBlock, (2, 2, 2, 2)),
    "resnet34": (BasicBlock, (3, 4, 6, 3)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
    "resnet101": (Bottleneck, (3, 4, 23, 3)),
    "resnet152": (Bottleneck, (3, 8, 36, 3)),
}
# timm looks here when a model is registered; the folder of an export has its own values
default_cfgs = {
    name: {"url": "", "input_size": (3, 32, 32), "num_classes": 1000, "classifier": "fc"}
    for name in ("supancl_cnn", *(f"supancl_cifar_{resnet}" for resnet in RESNETS))
}


class CifarResNet(ResNet):
    """timm's ResNet with a 3 x 3 convolution of stride 1 at the start, and no max pooling after it."""

    def __init__(self, *args: Any, stem_padding: int = 1, stem_relu: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        first: Any = self.conv1
        layer = nn.Conv2d(first.in_channels, first.out_channels, 3, stride=1, padding=stem_padding, bias=False)
        self.set_submodule("conv1", layer)
        self.set_submodule("maxpool", nn.Identity())
        if not stem_relu:
            self.act1 = nn.Identity()


class SmallCNN(nn.Sequential):
    """Three convolutions with batch norm, the mean over positions, and a classifier if there are classes."""

    def __init__(self, width: int = 128, in_chans: int = 3, num_classes: int = 1000, global_pool: str = "avg") -> None:
        layers: list[nn.Module] = []
        channels = in_chans
        for out, stride in ((max(1, width // 4), 1), (max(1, width // 2), 2), (width, 2)):
            convolution = nn.Conv2d(channels, out, 3, stride=stride, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(out), nn.ReLU()]
            channels = out
        super().__init__(*layers)
        self.num_features = self.head_hidden_size = width
        self.reset_classifier(num_classes, global_pool)

    def forward_features(self, images: Tensor) -> Tensor:
        maps = images
        for layer in list(self)[:-1]:  # the last one is the classifier
            maps = layer(maps)
        return maps

    def forward_head(self, maps: Tensor, pre_logits: bool = False) -> Tensor:
        features = F.adaptive_avg_pool2d(maps, 1).flatten(1) if self.global_pool else maps
        return features if pre_logits else self.fc(features)

    def forward(self, images: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(images))

    def get_classifier(self) -> nn.Module:
        return self.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        if global_pool is not None:
            self.global_pool = global_pool
        self.num_classes = num_classes
        self.fc: nn.Module = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()


@register_model
def supancl_cnn(pretrained: bool = False, **kwargs: Any) -> Any:
    """Three convolutions, for images of 8 to 32 px; `width` is the number of features."""
    return build_model_with_cfg(SmallCNN, "supancl_cnn", pretrained, **kwargs)


def _register(resnet: str) -> None:
    block, layers = RESNETS[resnet]

    def create(pretrained: bool = False, **kwargs: Any) -> Any:
        return build_model_with_cfg(CifarResNet, create.__name__, pretrained, block=block, layers=layers, **kwargs)

    create.__name__ = create.__qualname__ = f"supancl_cifar_{resnet}"
    create.__doc__ = f"A {resnet} whose stem keeps the resolution of small images."
    globals()[create.__name__] = create  # timm lists the names of the module
    register_model(create)


for _resnet in RESNETS:
    _register(_resnet)
