"""Training batches: which images, mirrored or not, as a function of seed and step; decoded ahead of time."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor

from supancl.data.order import derive_seed, epoch_order
from supancl.data.threads import ReadingThreads, waiting_for_images
from supancl.detection.scenes import Scenes
from supancl.detection.spec import DetectSpec

Batch = tuple[list[Tensor], list[dict[str, Tensor]]]
FLIP_STREAM = 5  # of random numbers


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
