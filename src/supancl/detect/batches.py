"""Training batches: which images, mirrored or not, as a function of seed and step; decoded ahead of time."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from supancl.data.order import derive_seed, epoch_order
from supancl.detect.scenes import Scenes
from supancl.detect.spec import DetectSpec

Batch = tuple[list[Tensor], list[dict[str, Tensor]]]
FLIPS = 5  # which stream of random numbers draws them


class Batches:
    """step -> images (float, 0 to 1) and torchvision's targets, on the device."""

    def __init__(self, scenes: Scenes, spec: DetectSpec, device: torch.device, steps: int) -> None:
        self.scenes, self.spec, self.device, self.steps = scenes, spec, device, steps
        self.pool = ThreadPoolExecutor(spec.workers) if spec.workers else None
        self.coming: dict[int, list[Future[Tensor]]] = {}

    def positions(self, step: int) -> list[int]:
        """Epoch after epoch without a gap, so that no image is left out and any batch size will do."""
        count, size = len(self.scenes), self.spec.batch_size
        places = range(step * size, (step + 1) * size)
        return [int(epoch_order(count, self.spec.seed, place // count)[place % count]) for place in places]

    def __call__(self, step: int) -> Batch:
        if self.pool is None:
            images = [self.scenes.image(position) for position in self.positions(step)]
        else:
            for ahead in range(step, min(step + 3, self.steps)):
                if ahead not in self.coming:
                    self.coming[ahead] = [self.pool.submit(self.scenes.image, p) for p in self.positions(ahead)]
            images = [each.result() for each in self.coming.pop(step)]
            self.coming = {ahead: waiting for ahead, waiting in self.coming.items() if ahead > step}
        return self._made(step, images)

    def _made(self, step: int, images: list[Tensor]) -> Batch:
        generator = torch.Generator().manual_seed(derive_seed(self.spec.seed, FLIPS, step))
        mirrored = (torch.rand(len(images), generator=generator) < self.spec.flip).tolist()
        ready, targets = [], []
        for image, position, flip in zip(images, self.positions(step), mirrored, strict=True):
            scene = self.scenes.scenes[position]
            boxes = flipped(scene.boxes, scene.width) if flip else scene.boxes
            here = on_device(image, self.device)
            ready.append(here.flip(2) if flip else here)
            targets.append(
                {
                    "boxes": boxes.to(self.device, non_blocking=True),
                    "labels": (scene.labels + 1).to(self.device, non_blocking=True),
                }
            )  # 0 is background
        return ready, targets

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Batches:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


def on_device(image: Tensor, device: torch.device) -> Tensor:
    """Carried over as bytes, a quarter of the floats they become."""
    return image.to(device, non_blocking=True).float().div_(255)


def flipped(boxes: Tensor, width: int) -> Tensor:
    """Boxes of the mirrored image."""
    return torch.stack([width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]], 1)
