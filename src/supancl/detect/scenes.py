"""Images with boxes: what training and testing are given, whatever the layout on disk."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from supancl.data.decode import decode, image_problem, is_sideways, large_image_remarks
from supancl.errors import BadInput, plural

SLACK = 1.0  # pixels; annotations count from 0 or from 1, and scaled ones are rounded


@dataclass(frozen=True, eq=False)
class Scene:
    """One image: its boxes (N, 4) as x1, y1, x2, y2 in pixels from 0, and which of them are no fair question.

    `difficult` is VOC's mark, `crowd` COCO's: neither counts in a test, and no detection of one is a mistake.
    """

    path: Path
    height: int
    width: int
    boxes: Tensor
    labels: Tensor  # into the class names, from 0
    difficult: Tensor
    crowd: Tensor

    def only(self, kept: Tensor) -> Scene:
        boxes, labels, difficult = self.boxes[kept], self.labels[kept], self.difficult[kept]
        return replace(self, boxes=boxes, labels=labels, difficult=difficult, crowd=self.crowd[kept])


@dataclass(frozen=True, eq=False)
class Scenes:
    """A set of annotated images."""

    scenes: tuple[Scene, ...]
    classes: tuple[str, ...]
    where: str
    remarks: tuple[str, ...] = ()
    limit: float = 0.0  # bytes of decoded images that may be kept in memory
    kept: dict[int, Tensor] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.scenes)

    def image(self, position: int) -> Tensor:
        """uint8 (3, H, W); an image that is not the size its annotation says is refused."""
        if position in self.kept:
            return self.kept[position]
        scene = self.scenes[position]
        try:
            image = decode(scene.path)
        except (OSError, ValueError) as error:
            raise BadInput(
                f"{scene.path}: cannot be read as an image ({image_problem(error)}); mend it, or take it out of the "
                "list of images"
            ) from None
        size = tuple(image.shape[1:])
        if size != (scene.height, scene.width):
            turned = size == (scene.width, scene.height) and is_sideways(scene.path)
            how = "scale the boxes with the image"
            if turned:
                how = "once its EXIF orientation is applied; save it upright, or turn the boxes too"
            raise BadInput(
                f"{scene.path} is {size[1]} x {size[0]}, its annotation says {scene.width} x "
                f"{scene.height}{' ' if turned else '; '}{how}"
            )
        if position < self.keeps:
            self.kept[position] = image
        return image

    @cached_property
    def keeps(self) -> int:
        """How many images, from the first on, may be kept: as many as `limit` has room for."""
        used = np.cumsum([3 * scene.height * scene.width for scene in self.scenes], dtype=np.int64)
        return int(np.searchsorted(used, self.limit, side="right"))

    def fingerprint(self) -> str:
        """Changes with any image name, class or box."""
        told = hashlib.sha256("\n".join(self.classes).encode())
        for scene in self.scenes:
            told.update(os.fsencode(scene.path.name))  # the name of a file may be in any encoding
            told.update(scene.boxes.numpy().tobytes() + scene.labels.numpy().tobytes())
        return told.hexdigest()[:16]


def made_scene(
    path: Path, size: tuple[int, int], boxes: Sequence[Sequence[float]], labels: Sequence[int],
    difficult: Sequence[bool] | None = None, crowd: Sequence[bool] | None = None, where: str | None = None,
) -> tuple[Scene, int]:  # fmt: skip
    """A checked scene, and how many of its boxes were cut at the border. `size` is (height, width).

    A box that reaches over the border is cut there; one that is empty or wholly outside is an error in the
    annotation, and refused.
    """
    height, width = size
    where = where or str(path)
    if height < 1 or width < 1:
        raise BadInput(f"{where}: the image is said to be {width} x {height}; mend the annotation")
    given = torch.tensor(boxes, dtype=torch.float64).reshape(-1, 4)
    limits = torch.tensor([width, height, width, height], dtype=torch.float64)
    cut = torch.minimum(given.clamp(min=0), limits)
    over = ((given - cut).abs() > SLACK).any(1)
    empty = ~torch.isfinite(given).all(1) | ~(cut[:, 2:] > cut[:, :2]).all(1)
    if empty.any():
        number = int(empty.nonzero()[0, 0])
        told = ", ".join(f"{value:g}" for value in given[number].tolist())
        raise BadInput(
            f"{where}: box {number + 1} ({told}) is empty or lies outside the image of {width} x {height}; "
            "mend or remove it"
        )
    none = torch.zeros(len(given), dtype=torch.bool)
    scene = Scene(
        path, height, width, cut.float(), torch.tensor(labels, dtype=torch.long).reshape(-1),
        none if difficult is None else torch.tensor(difficult, dtype=torch.bool).reshape(-1),
        none if crowd is None else torch.tensor(crowd, dtype=torch.bool).reshape(-1),
    )  # fmt: skip
    return scene, int(over.sum())


def cut_remark(count: int, where: str) -> tuple[str, ...]:
    boxes = plural(
        count,
        "box reached over the border of its image and was",
        "boxes reached over the border of their images and were",
    )
    return (f"{where}: {boxes} cut there",) if count else ()


def images_there(scenes: Sequence[Scene], where: str, way_out: str) -> tuple[str, ...]:
    """Asked before the work: a test image that is missing, or too large, would be noticed after the last step.

    Of large images the annotation tells, whose size they must have; what is read and remarked on is as in any source.
    """
    absent = [scene.path for scene in scenes if not scene.path.is_file()]
    if absent:
        raise BadInput(f"{where}: no image {absent[0]} ({len(absent)} of {len(scenes)} are missing); {way_out}")
    safe = Image.MAX_IMAGE_PIXELS or math.inf
    large = [scene for scene in scenes if scene.height * scene.width > safe]
    for scene in large:
        if scene.height * scene.width > 2 * safe:  # what Pillow refuses to open
            raise BadInput(
                f"{scene.path} is {scene.width} x {scene.height}: more than {2 * safe:,} pixels, which are "
                "not read; store it smaller, and its boxes with it"
            )
    return tuple(large_image_remarks([f"{scene.path} ({scene.width} x {scene.height})" for scene in large]))


def for_training(scenes: Scenes, train_difficult: bool, keep_empty: bool, memory_gb: float) -> Scenes:
    """Without crowds (they are no objects), and as asked without difficult boxes and without images of nothing."""
    chosen = [scene.only(~scene.crowd & (~scene.difficult | train_difficult)) for scene in scenes.scenes]
    if not keep_empty:
        chosen = [scene for scene in chosen if len(scene.boxes)]
    if not any(len(scene.boxes) for scene in chosen):
        raise BadInput(
            f"{scenes.where}: no box to train on in {plural(len(scenes), 'image')}; is it the right list of images?"
        )
    return replace(scenes, scenes=tuple(chosen), limit=memory_gb * 1e9, kept={})


def for_testing(scenes: Scenes, memory_gb: float = 0.0) -> Scenes:
    """With something to find in them, or every score would be missing."""
    if all(bool((scene.difficult | scene.crowd).all()) for scene in scenes.scenes):
        raise BadInput(
            f"{scenes.where}: no box to find in {plural(len(scenes), 'image')}; is it the right list of images?"
        )
    return replace(scenes, limit=memory_gb * 1e9)


def relabelled(scenes: Scenes, classes: tuple[str, ...]) -> Scenes:
    """The same scenes under another list of class names, which must hold theirs."""
    unknown = [name for name in scenes.classes if name not in classes]
    used = {scenes.classes[label] for scene in scenes.scenes for label in scene.labels.tolist()}
    missing = next((name for name in unknown if name in used), None)
    if missing is not None:
        raise BadInput(
            f"{scenes.where}: class {missing!r} is unknown to the detector, which knows "
            f"{', '.join(classes[:20])}; test on data with its classes"
        )
    place = torch.tensor([classes.index(name) if name in classes else -1 for name in scenes.classes], dtype=torch.long)
    moved = tuple(replace(scene, labels=place[scene.labels]) for scene in scenes.scenes)
    return replace(scenes, scenes=moved, classes=classes)
