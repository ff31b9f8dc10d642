"""What a detector finds: statistics measured anew, then every test image once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from supancl.core.precision import autocast_for
from supancl.data.order import derive_seed
from supancl.detect.batches import Batches, on_device
from supancl.detect.metrics import Found
from supancl.detect.model import Detector
from supancl.detect.scenes import Scenes

Progress = Callable[[str, int, int], None]
PRECISE = 6  # which stream of random numbers draws regions while statistics are measured


@torch.no_grad()
def measure_norms(detector: Detector, batches: Batches, steps: int, precision: str, seed: int = 0) -> None:
    """Precise BN: running statistics become the plain mean over `steps` training batches at the present weights."""
    training = detector.training
    detector.train()
    norms = [module for module in detector.modules() if isinstance(module, _BatchNorm) and module.training]
    usual = [module.momentum for module in norms]
    if not steps or not norms:
        detector.train(training)
        return
    for module in norms:
        module.reset_running_stats()
        module.momentum = None  # torch's word for a cumulative mean
    try:
        for step in range(steps):
            torch.manual_seed(derive_seed(seed, PRECISE, step))
            images, targets = batches(step)
            with autocast_for(batches.device, precision):
                detector(images, targets)
    finally:
        for module, momentum in zip(norms, usual, strict=True):
            module.momentum = momentum
        detector.train(training)


@torch.inference_mode()
def detect(
    detector: Detector, scenes: Scenes, device: torch.device, precision: str = "fp32", progress: Progress | None = None
) -> list[Found]:
    """What is found in each image, boxes in the pixels of the image as it lies on disk."""
    training = detector.training
    detector.eval()
    found: list[Found] = []
    size = detector.spec.test_batch
    for start in range(0, len(scenes), size):
        images = [on_device(scenes.image(at), device) for at in range(start, min(start + size, len(scenes)))]
        with autocast_for(device, precision):
            results = detector(images)
        found += [
            Found(each["boxes"].float().cpu(), each["scores"].float().cpu(), each["labels"].cpu() - 1)
            for each in results
        ]
        if progress is not None:
            progress("detecting", len(found), len(scenes))
    detector.train(training)
    return found
