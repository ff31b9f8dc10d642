"""The names and shapes of other libraries' checkpoints, as text in fixtures/import, and networks with such names.

The lists of lightly, torchvision and timm were written from those libraries' own models, the others from modules
arranged as the file that FORMATS cites arranges them.
"""

from __future__ import annotations

from pathlib import Path

import torchvision
from torch import Tensor, nn

FOLDER = Path(__file__).parent / "fixtures" / "import"


def resnet(name: str = "resnet18", fc: nn.Module | None = None, cifar_padding: int | None = None) -> nn.Module:
    body = torchvision.models.get_model(name, weights=None)
    body.fc = fc or nn.Identity()
    if cifar_padding is not None:
        body.conv1 = nn.Conv2d(3, 64, 3, stride=1, padding=cifar_padding, bias=False)
        body.maxpool = nn.Identity()
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


def kept(name: str) -> dict[str, tuple[int, ...]]:
    rows = [line.split() for line in (FOLDER / f"{name}.txt").read_text().splitlines()]
    return {key: tuple(int(side) for side in shape.split("x")) if shape != "-" else () for key, shape in rows}
