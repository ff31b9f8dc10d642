"""Cut annotated objects out of their images: a folder of labelled pictures to pretrain an encoder on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from math import ceil, floor, inf
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from supancl.data.threads import ReadingThreads
from supancl.detection.scenes import Scene, Scenes
from supancl.errors import BadInput
from supancl.files import check_writable, make_folder

JPEG_QUALITY = 95  # high: the images they are cut from are JPEGs already
THREADS = 8
Progress = Callable[[str, int, int], None]


def write_crops(
    train: Scenes, test: Scenes, out: Path, *, margin: float = 0.1, min_side: int = 16, difficult: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Write out/train/CLASS/*.jpg and out/val/CLASS/*.jpg (from the test images); returns the counts.

    Each box grows by `margin` of its sides, because views need surroundings to shift in. Boxes with a side below
    `min_side` pixels and crowds are left out; VOC's difficult boxes too, unless `difficult`.
    """
    check_crops(out, margin, min_side)
    bad_name = next((name for name in train.classes if "/" in name or name.startswith(".")), None)
    if bad_name is not None:
        raise BadInput(f"class {bad_name!r} of {train.location} cannot be the name of a folder; rename the class")
    if not any(bool(boxes_to_crop(scene, min_side, difficult).any()) for scene in train.scenes):
        raise BadInput(f"no box of {train.location} has sides of {min_side} px or more; lower least")
    make_folder(out)
    result: dict[str, Any] = {"out": str(out)}
    for name, scenes in (("train", train), ("val", test)):
        for class_name in sorted({scenes.classes[label] for scene in scenes.scenes for label in scene.labels.tolist()}):
            (out / name / class_name).mkdir(parents=True, exist_ok=True)
        crop_image = partial(_crop_image, scenes, out / name, margin, min_side, difficult)
        counts: Counter[str] = Counter()
        with ReadingThreads(THREADS, "crop") as pool:
            for done, class_names in enumerate(pool.map(crop_image, range(len(scenes))), 1):
                counts.update(class_names)
                if progress is not None:
                    progress(f"cutting out {name}", done, len(scenes))
        for empty_folder in (folder for folder in (out / name).iterdir() if not any(folder.iterdir())):
            empty_folder.rmdir()  # pretraining refuses empty class folders
        boxes = sum(len(scene.labels) for scene in scenes.scenes)
        result[name] = {
            "images": len(scenes),
            "boxes": boxes,
            "crops": sum(counts.values()),
            "classes": dict(sorted(counts.items())),
        }
    return result


def check_crops(out: Path, margin: float, min_side: int) -> None:
    """Refuse bad settings before the images are looked up."""
    if not 0 <= margin < inf or min_side < 1:
        raise BadInput(f"margin {margin:g} and least {min_side}: must be at least 0 and at least 1")
    check_writable(out)
    if out.exists() and any(out.iterdir()):
        raise BadInput(f"{out} is not empty; choose another out")


def _crop_image(scenes: Scenes, out: Path, margin: float, min_side: int, difficult: bool, position: int) -> list[str]:
    """Write the crops of one image and return their classes."""
    scene, class_names = scenes.scenes[position], []
    selected = boxes_to_crop(scene, min_side, difficult).nonzero().flatten().tolist()
    image = scenes.image(position) if selected else torch.empty(0)
    for number in selected:
        class_name = scenes.classes[int(scene.labels[number])]
        left, top, right, bottom = expand_box(scene.boxes[number], margin, scene.width, scene.height)
        picture = Image.fromarray(image[:, top:bottom, left:right].permute(1, 2, 0).contiguous().numpy())
        # with the position: two folders of a COCO file may hold images of the same name
        picture.save(out / class_name / f"{scene.path.stem}-{position}-{number}.jpg", quality=JPEG_QUALITY)
        class_names.append(class_name)
    return class_names


def boxes_to_crop(scene: Scene, min_side: int, difficult: bool) -> Tensor:
    """Mask of the boxes of a scene that are cut out."""
    sides = (scene.boxes[:, 2:] - scene.boxes[:, :2]).amin(1) if len(scene.boxes) else torch.zeros(0)
    return (sides >= min_side) & ~scene.crowd & (~scene.difficult | difficult)


def expand_box(box: Tensor, margin: float, width: int, height: int) -> tuple[int, int, int, int]:
    """The box in whole pixels, grown on every side by `margin` of its width or height and clipped to the image."""
    left, top, right, bottom = box.double().tolist()
    x, y = margin * (right - left), margin * (bottom - top)
    return max(0, floor(left - x)), max(0, floor(top - y)), min(width, ceil(right + x)), min(height, ceil(bottom + y))
