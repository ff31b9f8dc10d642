"""Images with boxes, independent of the layout on disk; and batches of them as a function of seed and step."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from supancl.data.decode import decode, image_problem
from supancl.data.order import derive_seed, epoch_order
from supancl.data.threads import ReadingThreads, waiting_for_images
from supancl.detection.spec import DetectSpec
from supancl.errors import BadInput

Batch = tuple[list[Tensor], list[dict[str, Tensor]]]
FLIP_STREAM = 5  # of random numbers


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
        if image.shape[1:] != (scene.height, scene.width):
            raise BadInput(
                f"{scene.path} is {image.shape[2]} x {image.shape[1]} (upright), its annotation says {scene.width} x "
                f"{scene.height}; scale or rotate the boxes like the image"
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
) -> Scene:  # fmt: skip
    """A checked scene; `size` is (height, width).

    A box that crosses the border is cut there; an empty box, or one outside the image, is refused.
    """
    height, width = size
    location = location or str(path)
    if height < 1 or width < 1:
        raise BadInput(f"{location}: the annotation says the image is {width} x {height}; fix it")
    annotated = torch.tensor(boxes, dtype=torch.float64).reshape(-1, 4)
    limits = torch.tensor([width, height, width, height], dtype=torch.float64)
    cut = torch.minimum(annotated.clamp(min=0), limits)
    empty = ~torch.isfinite(annotated).all(1) | ~(cut[:, 2:] > cut[:, :2]).all(1)
    if empty.any():
        number = int(empty.nonzero()[0, 0])
        coordinates = ", ".join(f"{value:g}" for value in annotated[number].tolist())
        raise BadInput(
            f"{location}: box {number + 1} ({coordinates}) is empty or lies outside the image of {width} x {height}; "
            "fix or remove it"
        )
    unmarked = torch.zeros(len(annotated), dtype=torch.bool)
    return Scene(
        path, height, width, cut.float(), torch.tensor(labels, dtype=torch.long).reshape(-1),
        unmarked if difficult is None else torch.tensor(difficult, dtype=torch.bool).reshape(-1),
        unmarked if crowd is None else torch.tensor(crowd, dtype=torch.bool).reshape(-1),
    )  # fmt: skip


def check_images(scenes: Sequence[Scene], location: str, way_out: str) -> None:
    """Refuse missing images before training: a test image would otherwise be missed only after the last step."""
    missing = [scene.path for scene in scenes if not scene.path.is_file()]
    if missing:
        raise BadInput(f"{location}: no image {missing[0]} (missing: {len(missing)} of {len(scenes)}); {way_out}")


def prepare_for_training(scenes: Scenes, train_difficult: bool, keep_empty: bool, memory_gb: float) -> Scenes:
    """Drop crowds and, unless they are wanted, difficult boxes and images without a box."""
    selected = [scene.select(~scene.crowd & (~scene.difficult | train_difficult)) for scene in scenes.scenes]
    if not keep_empty:
        selected = [scene for scene in selected if len(scene.boxes)]
    if not any(len(scene.boxes) for scene in selected):
        raise BadInput(f"{scenes.location}: no box to train on; is it the right list of images?")
    return replace(scenes, scenes=tuple(selected), cache_bytes=memory_gb * 1e9, decoded={})


def prepare_for_testing(scenes: Scenes, memory_gb: float = 0.0, limit: int = 0) -> Scenes:
    """At most `limit` of the scenes, evenly spaced (0: all); refuse scenes without a box to find."""
    if limit and limit < len(scenes):
        rows = np.linspace(0, len(scenes) - 1, limit).round().astype(int).tolist()
        scenes = replace(scenes, scenes=tuple(scenes.scenes[row] for row in rows))
    if all(bool((scene.difficult | scene.crowd).all()) for scene in scenes.scenes):
        raise BadInput(f"{scenes.location}: no box to find; is it the right list of images?")
    return replace(scenes, cache_bytes=memory_gb * 1e9)


def relabelled(scenes: Scenes, classes: tuple[str, ...]) -> Scenes:
    """The same scenes with labels into another list of class names, which must contain theirs."""
    used = {scenes.classes[label] for scene in scenes.scenes for label in scene.labels.tolist()}
    if unknown := sorted(used - set(classes)):
        raise BadInput(
            f"{scenes.location}: class {unknown[0]!r} is unknown to the detector; test on data with its classes: "
            f"{', '.join(classes[:20])}"
        )
    labels = torch.tensor([classes.index(name) if name in classes else -1 for name in scenes.classes], dtype=torch.long)
    renamed = tuple(replace(scene, labels=labels[scene.labels]) for scene in scenes.scenes)
    return replace(scenes, scenes=renamed, classes=classes)


# --- batches ----------------------------------------------------------------------------------------------------------


class Batches:
    """step -> images (float, 0 to 1) and torchvision's targets, on the device."""

    def __init__(self, scenes: Scenes, spec: DetectSpec, device: torch.device, steps: int) -> None:
        self.scenes, self.spec, self.device, self.steps = scenes, spec, device, steps
        self.pool = ReadingThreads(spec.workers, "scenes") if spec.workers else None
        self.pending: dict[int, list[Future[Tensor]]] = {}

    def positions(self, step: int) -> list[int]:
        """Which images a step trains on. Epochs follow without a gap, so any batch size works and none is left out."""
        count, size = len(self.scenes), self.spec.batch_size
        indices = range(step * size, (step + 1) * size)
        return [int(epoch_order(count, self.spec.seed, index // count)[index % count]) for index in indices]

    def __call__(self, step: int) -> Batch:
        if self.pool is None:
            images = [self.scenes.image(position) for position in self.positions(step)]
        else:
            for ahead in range(step, min(step + 3, self.steps)):
                if ahead not in self.pending:
                    self.pending[ahead] = [self.pool.submit(self.scenes.image, p) for p in self.positions(ahead)]
            with waiting_for_images():
                images = [future.result() for future in self.pending[step]]
            self.pending = {ahead: futures for ahead, futures in self.pending.items() if ahead > step}
        return self._assemble(step, images)

    def _assemble(self, step: int, images: list[Tensor]) -> Batch:
        generator = torch.Generator().manual_seed(derive_seed(self.spec.seed, FLIP_STREAM, step))
        is_mirrored = (torch.rand(len(images), generator=generator) < self.spec.flip).tolist()
        ready_images, targets = [], []
        for image, position, mirror in zip(images, self.positions(step), is_mirrored, strict=True):
            scene = self.scenes.scenes[position]
            boxes = flip_boxes(scene.boxes, scene.width) if mirror else scene.boxes
            on_device = to_device(image, self.device)
            ready_images.append(on_device.flip(2) if mirror else on_device)
            targets.append(
                {
                    "boxes": boxes.to(self.device, non_blocking=True),
                    "labels": (scene.labels + 1).to(self.device, non_blocking=True),
                }
            )  # 0 is background
        return ready_images, targets

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Batches:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


def to_device(image: Tensor, device: torch.device) -> Tensor:
    """The image as floats from 0 to 1; copied as bytes, which are a quarter of the size."""
    return image.to(device, non_blocking=True).float().div_(255)


def flip_boxes(boxes: Tensor, width: int) -> Tensor:
    """Boxes of the mirrored image."""
    return torch.stack([width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]], 1)
