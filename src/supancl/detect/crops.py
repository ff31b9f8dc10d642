"""Annotated objects cut out of their images: a folder of labelled pictures that an encoder is pretrained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import ceil, floor, inf
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from supancl.detect.scenes import Scene, Scenes
from supancl.errors import BadInput
from supancl.files import check_writable

QUALITY = 95  # of the JPEGs; the images they are cut from are JPEGs already
THREADS = 8
Progress = Callable[[str, int, int], None]


def write_crops(
    train: Scenes, test: Scenes, out: Path, *, margin: float = 0.1, least: int = 16, difficult: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:  # fmt: skip
    """out/train/CLASS/*.jpg of the training images and out/val/CLASS/*.jpg of the test images; how many of each.

    Each box grows by `margin` of its sides, for the views need some surroundings to shift in. A box with a side
    below `least` pixels is left out, and so are crowds and, unless asked for, VOC's difficult ones.
    """
    check_crops(out, margin, least)
    bad = next((name for name in train.classes if "/" in name or name.startswith(".")), None)
    if bad is not None:
        raise BadInput(f"class {bad!r} of {train.where} cannot be the name of a folder; rename it there")
    if not any(bool(taken(scene, least, difficult).any()) for scene in train.scenes):
        raise BadInput(f"no box of {train.where} has both sides of {least} px or more; lower --least")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot write in {out} ({error.strerror}); choose another --out") from None
    result: dict[str, Any] = {"out": str(out)}
    for name, scenes in (("train", train), ("val", test)):
        for kind in sorted({scenes.classes[label] for scene in scenes.scenes for label in scene.labels.tolist()}):
            (out / name / kind).mkdir(parents=True, exist_ok=True)
        cut = partial(_cut, scenes, out / name, margin, least, difficult)
        counts: Counter[str] = Counter()
        with ThreadPoolExecutor(THREADS) as pool:
            for done, kinds in enumerate(pool.map(cut, range(len(scenes))), 1):
                counts.update(kinds)
                if progress is not None:
                    progress(f"cutting out {name}", done, len(scenes))
        for empty in (folder for folder in (out / name).iterdir() if not any(folder.iterdir())):
            empty.rmdir()  # an empty class folder would be an error of the data to come
        boxes = sum(len(scene.labels) for scene in scenes.scenes)
        result[name] = {
            "images": len(scenes),
            "boxes": boxes,
            "crops": sum(counts.values()),
            "classes": dict(sorted(counts.items())),
        }
    return result


def check_crops(out: Path, margin: float, least: int) -> None:
    """What is wrong with the request whatever the images are, said before they are looked up."""
    if not 0 <= margin < inf or least < 1:
        raise BadInput(f"margin {margin:g} and least {least}: wanted at least 0 and at least 1")
    check_writable(out)
    if out.exists() and any(out.iterdir()):
        raise BadInput(f"{out} is not empty; choose another --out")


def _cut(scenes: Scenes, out: Path, margin: float, least: int, difficult: bool, position: int) -> list[str]:
    """Write the crops of one image; their classes."""
    scene, kinds = scenes.scenes[position], []
    kept = taken(scene, least, difficult).nonzero().flatten().tolist()
    image = scenes.image(position) if kept else torch.empty(0)
    for number in kept:
        kind = scenes.classes[int(scene.labels[number])]
        left, top, right, bottom = grown(scene.boxes[number], margin, scene.width, scene.height)
        picture = Image.fromarray(image[:, top:bottom, left:right].permute(1, 2, 0).contiguous().numpy())
        # the position as well: two folders of a COCO file may hold images of one name
        picture.save(out / kind / f"{scene.path.stem}-{position}-{number}.jpg", quality=QUALITY)
        kinds.append(kind)
    return kinds


def taken(scene: Scene, least: int, difficult: bool) -> Tensor:
    """Which boxes of a scene are cut out."""
    sides = (scene.boxes[:, 2:] - scene.boxes[:, :2]).amin(1) if len(scene.boxes) else torch.zeros(0)
    return (sides >= least) & ~scene.crowd & (~scene.difficult | difficult)


def grown(box: Tensor, margin: float, width: int, height: int) -> tuple[int, int, int, int]:
    """A box in whole pixels, larger by `margin` of its sides all around, inside the image."""
    left, top, right, bottom = box.double().tolist()
    x, y = margin * (right - left), margin * (bottom - top)
    return max(0, floor(left - x)), max(0, floor(top - y)), min(width, ceil(right + x)), min(height, ceil(bottom + y))
