"""Drawn shapes as a detection data set, in VOC's layout and in COCO's, and a ResNet small enough for one core."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import nn
from torchvision.models import ResNet
from torchvision.models.resnet import BasicBlock

from supancl.core.encoders import BUILDERS, Encoder, EncoderSpec
from supancl.runs.encoder_file import save_encoder

SIDE = 96
KINDS = ("disc", "square")
Box = tuple[str, float, float, float, float]  # class, then x1, y1, x2, y2 from 0

TINY = {
    "min_sizes": [SIDE], "test_size": SIDE, "max_size": 160, "anchor_sizes": [24, 40], "anchor_ratios": [1.0],
    "rpn_train": [200, 30], "rpn_test": [200, 30], "rpn_batch": 32, "roi_batch": 16, "pool": 4, "batch_size": 4,
    "warmup": 2, "steps": [], "precise_bn": 2, "device": "cpu", "log_every": 1, "workers": 0, "detections": 10,
}  # fmt: skip


def scene(seed: int, shapes: int = 2) -> tuple[Image.Image, list[Box]]:
    """A grey picture with discs and squares that do not overlap."""
    random = np.random.default_rng(seed)
    picture = Image.fromarray(random.integers(90, 130, (SIDE, SIDE, 3), dtype=np.uint8))
    pen, boxes = ImageDraw.Draw(picture), []
    for half in range(shapes):
        side = int(random.integers(22, 42))
        x = half * SIDE // 2 + int(random.integers(0, SIDE // 2 - side + 1))
        y = int(random.integers(0, SIDE - side))
        kind = KINDS[int(random.integers(2))]
        colour = (230, 60, 40) if kind == "disc" else (40, 90, 230)
        draw = pen.ellipse if kind == "disc" else pen.rectangle
        draw((x, y, x + side - 1, y + side - 1), fill=colour)
        boxes.append((kind, float(x), float(y), float(x + side), float(y + side)))
    return picture, boxes


def annotation(boxes: Sequence[Box], size: tuple[int, int] = (SIDE, SIDE), difficult: Sequence[int] = ()) -> str:
    """VOC's XML; its pixels count from 1 and both ends belong to the box. `size` is (width, height)."""
    objects = "".join(
        f"<object><name>{kind}</name><difficult>{int(i in difficult)}</difficult><bndbox><xmin>{x1 + 1}</xmin>"
        f"<ymin>{y1 + 1}</ymin><xmax>{x2}</xmax><ymax>{y2}</ymax></bndbox></object>"
        for i, (kind, x1, y1, x2, y2) in enumerate(boxes)
    )
    return f"<annotation><size><width>{size[0]}</width><height>{size[1]}</height></size>{objects}</annotation>"


def write_voc(
    root: Path, lists: dict[str, Sequence[int]], year: str = "2012", shapes: int = 2, difficult: Sequence[int] = ()
) -> Path:
    """VOCdevkit/VOCyear with the scenes of these seeds in each list."""
    folder = root / "VOCdevkit" / f"VOC{year}"
    for name in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, seeds in lists.items():
        (folder / "ImageSets/Main" / f"{name}.txt").write_text("".join(f"{seed:06d}\n" for seed in seeds))
        for seed in seeds:
            picture, boxes = scene(seed, shapes)
            picture.save(folder / "JPEGImages" / f"{seed:06d}.jpg", quality=95)
            (folder / "Annotations" / f"{seed:06d}.xml").write_text(annotation(boxes, difficult=difficult))
    return folder


def write_coco(file: Path, seeds: Sequence[int], crowd: Sequence[int] = ()) -> Path:
    """A JSON and its images beside it; category ids are COCO's kind: not from 0, not in the order of names."""
    ids = {"disc": 7, "square": 3}
    content: dict[str, list[dict[str, object]]] = {
        "images": [], "annotations": [], "categories": [{"id": ids[kind], "name": kind} for kind in KINDS]
    }  # fmt: skip
    for seed in seeds:
        picture, boxes = scene(seed)
        picture.save(file.parent / f"{seed}.jpg", quality=95)
        content["images"].append({"id": seed + 100, "file_name": f"{seed}.jpg", "width": SIDE, "height": SIDE})
        for i, (kind, x1, y1, x2, y2) in enumerate(boxes):
            content["annotations"].append({
                "id": len(content["annotations"]), "image_id": seed + 100, "category_id": ids[kind],
                "bbox": [x1, y1, x2 - x1, y2 - y1], "iscrowd": int(i in crowd),
            })  # fmt: skip
    file.write_text(json.dumps(content))
    return file


def tiny_resnet(width: int = 16) -> ResNet:
    """torchvision's ResNet with one block a stage and a quarter of the channels of a ResNet-18."""
    with torch.device("meta"):  # nothing is drawn for layers that are replaced
        body = ResNet(BasicBlock, [1, 1, 1, 1])
    body.inplanes = width
    body.conv1, body.bn1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(width)
    for i, name in enumerate(("layer1", "layer2", "layer3", "layer4")):
        setattr(body, name, body._make_layer(BasicBlock, width * 2**i, 1, stride=1 if i == 0 else 2))
    body.fc = nn.Identity()
    return body


@contextmanager
def narrow_resnet18() -> Iterator[None]:
    """For what hangs on no width: meanwhile a resnet18 is a tiny_resnet, and its files are a twentieth in size."""

    def build(spec: EncoderSpec) -> tuple[nn.Module, int]:
        return tiny_resnet(), 128

    with mock.patch.dict(BUILDERS, {"resnet18": build}):
        yield


def tiny_encoder(seed: int = 0) -> Encoder:
    torch.manual_seed(seed)
    with narrow_resnet18():
        return EncoderSpec("resnet18", mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25)).build()


def write_place(root: Path, train: int, val: int, seed: int = 0) -> Path:
    """Drawn images in VOC's layout, and beside them an encoder that nothing has trained."""
    write_voc(root, {"train": range(train), "val": range(train, train + val)})
    torch.manual_seed(seed)
    save_encoder(root / "encoder.safetensors", EncoderSpec("resnet18").build(), (), "drawn")
    return root
