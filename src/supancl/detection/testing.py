"""Run a detector on test images, after recomputing its batch-norm statistics."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from supancl.core.precision import autocast_for
from supancl.data.order import derive_seed
from supancl.detection.batches import Batches, to_device
from supancl.detection.metrics import Detections
from supancl.detection.model import Detector
from supancl.detection.scenes import Scenes

Progress = Callable[[str, int, int], None]
PRECISE_BN_STREAM = 6  # of random numbers, for the regions drawn meanwhile


@torch.no_grad()
def recompute_norm_statistics(detector: Detector, batches: Batches, steps: int, precision: str, seed: int = 0) -> None:
    """Precise BN: set running statistics to the mean over `steps` training batches with the current weights."""
    training = detector.training
    detector.train()
    norms = [module for module in detector.modules() if isinstance(module, _BatchNorm) and module.training]
    momenta = [module.momentum for module in norms]
    if not steps or not norms:
        detector.train(training)
        return
    for module in norms:
        module.reset_running_stats()
        module.momentum = None  # a cumulative mean
    try:
        for step in range(steps):
            torch.manual_seed(derive_seed(seed, PRECISE_BN_STREAM, step))
            images, targets = batches(step)
            with autocast_for(batches.device, precision):
                detector(images, targets)
    finally:
        for module, momentum in zip(norms, momenta, strict=True):
            module.momentum = momentum
        detector.train(training)


@torch.inference_mode()
def detect(
    detector: Detector, scenes: Scenes, device: torch.device, precision: str = "fp32", progress: Progress | None = None
) -> list[Detections]:
    """Detections in each image, with boxes in pixels of the image on disk."""
    training = detector.training
    detector.eval()
    detections: list[Detections] = []
    size = detector.spec.test_batch
    for start in range(0, len(scenes), size):
        images = [
            to_device(scenes.image(position), device) for position in range(start, min(start + size, len(scenes)))
        ]
        with autocast_for(device, precision):
            results = detector(images)
        detections += [
            Detections(result["boxes"].float().cpu(), result["scores"].float().cpu(), result["labels"].cpu() - 1)
            for result in results
        ]
        if progress is not None:
            progress("detecting", len(detections), len(scenes))
    detector.train(training)
    return detections
