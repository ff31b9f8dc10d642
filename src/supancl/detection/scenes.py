"""Images with boxes, independent of the layout on disk."""

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

CUT_TOLERANCE = 1.0  # pixels; annotations count from 0 or from 1, and rescaled ones are rounded


@dataclass(frozen=True, eq=False)
class Scene:
    """One image and its boxes (N, 4) as x1, y1, x2, y2 in pixels from 0.

    Boxes marked `difficult` (VOC) or `crowd` (COCO) do not count in a test, and detecting one is no mistake.
    """

    path: Path
    height: int
    width: int
    boxes: Tensor
    labels: Tensor  # into the class names, from 0
    difficult: Tensor
    crowd: Tensor

    def select(self, keep: Tensor) -> Scene:
        boxes, labels, difficult = self.boxes[keep], self.labels[keep], self.difficult[keep]
        return replace(self, boxes=boxes, labels=labels, difficult=difficult, crowd=self.crowd[keep])


@dataclass(frozen=True, eq=False)
class Scenes:
    """A set of annotated images."""

    scenes: tuple[Scene, ...]
    classes: tuple[str, ...]
    location: str
    remarks: tuple[str, ...] = ()
    cache_bytes: float = 0.0  # of decoded images in memory
    decoded: dict[int, Tensor] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.scenes)

    def image(self, position: int) -> Tensor:
        """uint8 (3, H, W); refused if its size differs from the annotation's."""
        if position in self.decoded:
            return self.decoded[position]
        scene = self.scenes[position]
        try:
            image = decode(scene.path)
        except (OSError, ValueError) as error:
            raise BadInput(
                f"{scene.path}: cannot be read as an image ({image_problem(error)}); fix it, or remove it from the "
                "list of images"
            ) from None
        size = tuple(image.shape[1:])
        if size != (scene.height, scene.width):
            is_turned = size == (scene.width, scene.height) and is_sideways(scene.path)
            way_out = "scale the boxes like the image"
            if is_turned:
                way_out = "once its EXIF orientation is applied; save it upright, or rotate the boxes too"
            raise BadInput(
                f"{scene.path} is {size[1]} x {size[0]}, its annotation says {scene.width} x "
                f"{scene.height}{' ' if is_turned else '; '}{way_out}"
            )
        if position < self.cached_count:
            self.decoded[position] = image
        return image

    @cached_property
    def cached_count(self) -> int:
        """How many images, from the first on, fit into `cache_bytes`."""
        used = np.cumsum([3 * scene.height * scene.width for scene in self.scenes], dtype=np.int64)
        return int(np.searchsorted(used, self.cache_bytes, side="right"))

    def fingerprint(self) -> str:
        """Changes with any image name, class or box."""
        checksum = hashlib.sha256("\n".join(self.classes).encode())
        for scene in self.scenes:
            checksum.update(os.fsencode(scene.path.name))  # file names may have any encoding
            checksum.update(scene.boxes.numpy().tobytes() + scene.labels.numpy().tobytes())
        return checksum.hexdigest()[:16]


def make_scene(
    path: Path, size: tuple[int, int], boxes: Sequence[Sequence[float]], labels: Sequence[int],
    difficult: Sequence[bool] | None = None, crowd: Sequence[bool] | None = None, location: str | None = None,
) -> tuple[Scene, int]:  # fmt: skip
    """A checked scene, and how many of its boxes were cut at the border. `size` is (height, width).

    A box that crosses the border is cut there; an empty box, or one outside the image, is refused.
    """
    height, width = size
    location = location or str(path)
    if height < 1 or width < 1:
        raise BadInput(f"{location}: the annotation says the image is {width} x {height}; fix it")
    annotated = torch.tensor(boxes, dtype=torch.float64).reshape(-1, 4)
    limits = torch.tensor([width, height, width, height], dtype=torch.float64)
    cut = torch.minimum(annotated.clamp(min=0), limits)
    was_cut = ((annotated - cut).abs() > CUT_TOLERANCE).any(1)
    empty = ~torch.isfinite(annotated).all(1) | ~(cut[:, 2:] > cut[:, :2]).all(1)
    if empty.any():
        number = int(empty.nonzero()[0, 0])
        coordinates = ", ".join(f"{value:g}" for value in annotated[number].tolist())
        raise BadInput(
            f"{location}: box {number + 1} ({coordinates}) is empty or lies outside the image of {width} x {height}; "
            "fix or remove it"
        )
    unmarked = torch.zeros(len(annotated), dtype=torch.bool)
    scene = Scene(
        path, height, width, cut.float(), torch.tensor(labels, dtype=torch.long).reshape(-1),
        unmarked if difficult is None else torch.tensor(difficult, dtype=torch.bool).reshape(-1),
        unmarked if crowd is None else torch.tensor(crowd, dtype=torch.bool).reshape(-1),
    )  # fmt: skip
    return scene, int(was_cut.sum())


def remark_on_cut_boxes(count: int, location: str) -> tuple[str, ...]:
    boxes = plural(
        count,
        "box crossed the border of its image and was",
        "boxes crossed the border of their images and were",
    )
    return (f"{location}: {boxes} cut there",) if count else ()


def check_images(scenes: Sequence[Scene], location: str, way_out: str) -> tuple[str, ...]:
    """Refuse missing images and those too large to open, and return remarks on large ones.

    Called before training, because a missing test image would otherwise show up only after the last step. Sizes come
    from the annotations; the limits are those of every other source.
    """
    missing = [scene.path for scene in scenes if not scene.path.is_file()]
    if missing:
        raise BadInput(f"{location}: no image {missing[0]} ({len(missing)} of {len(scenes)} are missing); {way_out}")
    safe = Image.MAX_IMAGE_PIXELS or math.inf
    large = [scene for scene in scenes if scene.height * scene.width > safe]
    for scene in large:
        if scene.height * scene.width > 2 * safe:  # what Pillow refuses to open
            raise BadInput(
                f"{scene.path} is {scene.width} x {scene.height}: more than {2 * safe:,} pixels, which are "
                "not read; make it smaller, and its boxes too"
            )
    return tuple(large_image_remarks([f"{scene.path} ({scene.width} x {scene.height})" for scene in large]))


def prepare_for_training(scenes: Scenes, train_difficult: bool, keep_empty: bool, memory_gb: float) -> Scenes:
    """Drop crowds and, unless they are wanted, difficult boxes and images without a box."""
    selected = [scene.select(~scene.crowd & (~scene.difficult | train_difficult)) for scene in scenes.scenes]
    if not keep_empty:
        selected = [scene for scene in selected if len(scene.boxes)]
    if not any(len(scene.boxes) for scene in selected):
        raise BadInput(
            f"{scenes.location}: no box to train on in {plural(len(scenes), 'image')}; is it the right list of images?"
        )
    return replace(scenes, scenes=tuple(selected), cache_bytes=memory_gb * 1e9, decoded={})


def prepare_for_testing(scenes: Scenes, memory_gb: float = 0.0) -> Scenes:
    """Refuse scenes without a box to find: every score would be missing."""
    if all(bool((scene.difficult | scene.crowd).all()) for scene in scenes.scenes):
        raise BadInput(
            f"{scenes.location}: no box to find in {plural(len(scenes), 'image')}; is it the right list of images?"
        )
    return replace(scenes, cache_bytes=memory_gb * 1e9)


def relabelled(scenes: Scenes, classes: tuple[str, ...]) -> Scenes:
    """The same scenes with labels into another list of class names, which must contain theirs."""
    unknown = [name for name in scenes.classes if name not in classes]
    used = {scenes.classes[label] for scene in scenes.scenes for label in scene.labels.tolist()}
    missing = next((name for name in unknown if name in used), None)
    if missing is not None:
        raise BadInput(
            f"{scenes.location}: class {missing!r} is unknown to the detector, which knows "
            f"{', '.join(classes[:20])}; test on data with its classes"
        )
    labels = torch.tensor([classes.index(name) if name in classes else -1 for name in scenes.classes], dtype=torch.long)
    renamed = tuple(replace(scene, labels=labels[scene.labels]) for scene in scenes.scenes)
    return replace(scenes, scenes=renamed, classes=classes)
