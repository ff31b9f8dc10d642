"""Test a detector: precise batch norm, detections, and AP, AP50 and AP75 by COCO's definition (pycocotools)."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from supancl.data.order import derive_seed
from supancl.detection.model import Detector
from supancl.detection.scenes import Batches, Scenes, to_device
from supancl.distributed.ranks import autocast_for
from supancl.errors import BadInput

SCORES = ("AP", "AP50", "AP75")
MAX_DETECTIONS = 100  # per class and image: COCO's maxDets
PRECISE_BN_STREAM = 6  # of random numbers, for the regions drawn meanwhile
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Detections:
    """Detections in one image: boxes (N, 4) in the image's pixels, scores, labels from 0."""

    boxes: Tensor
    scores: Tensor
    labels: Tensor


@torch.no_grad()
def recompute_norm_statistics(detector: Detector, batches: Batches, steps: int, precision: str, seed: int = 0) -> None:
    """Precise BN: set running statistics to the mean over `steps` training batches with the current weights."""
    detector.train()
    norms = [module for module in detector.modules() if isinstance(module, _BatchNorm) and module.training]
    momenta = [module.momentum for module in norms]
    for module in norms if steps else ():
        module.reset_running_stats()
        module.momentum = None  # a cumulative mean
    for step in range(steps if norms else 0):
        torch.manual_seed(derive_seed(seed, PRECISE_BN_STREAM, step))
        images, targets = batches(step)
        with autocast_for(batches.device, precision):
            detector(images, targets)
    for module, momentum in zip(norms, momenta, strict=True):
        module.momentum = momentum


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
        images = [to_device(scenes.image(at), device) for at in range(start, min(start + size, len(scenes)))]
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


def coco_scores(scenes: Scenes, detections: Sequence[Detections]) -> dict[str, Any]:
    """Percentages: AP (mean over IoU .50 to .95), AP50, AP75, each also by class and with VOC07's 11 recall points.

    A class without a box that counts has no AP (None) and is left out of the mean. Crowds follow COCO: a detection
    inside one is ignored. Difficult boxes follow VOC: a missed one does not count, and all detections that match one
    by IoU are ignored.
    """
    boxes, classes = [scene.boxes for scene in scenes.scenes], [scene.labels for scene in scenes.scenes]
    ignored = [(scene.difficult | scene.crowd).int() for scene in scenes.scenes]
    found = [[getattr(each, name) for each in detections] for name in ("boxes", "labels", "scores")]
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress
        truth = _build_coco(scenes, boxes, classes, iscrowd=ignored, crowd=[scene.crowd for scene in scenes.scenes])
        coco = coco_evaluator()(truth, _build_coco(scenes, found[0], found[1], score=found[2]), "bbox")
        coco.params.areaRng, coco.params.areaRngLbl, coco.params.maxDets = [[0, 1e10]], ["all"], [MAX_DETECTIONS]
        coco.evaluate()
        coco.accumulate()
        result = _summary(coco.eval["precision"][..., 0, 0], scenes.classes)
        coco.params.recThrs = np.linspace(0, 1, 11)
        coco.accumulate()
        voc07 = _summary(coco.eval["precision"][..., 0, 0], scenes.classes)
    result["voc07"] = {name: voc07[name] for name in SCORES}
    result |= {
        "images": len(scenes),
        "boxes": sum(int((mark == 0).sum()) for mark in ignored),
        "detections": sum(len(detected.scores) for detected in detections),
    }
    return result


def percent(score: float | None) -> str:
    return "-" if score is None else f"{score:.2f}"


def coco_evaluator() -> Any:
    """pycocotools' COCOeval, extended by difficult boxes. Call it early: it raises if pycocotools is missing."""
    try:
        mask, evaluation = import_module("pycocotools.mask"), import_module("pycocotools.cocoeval")
    except ImportError:
        raise BadInput("COCO's AP needs pycocotools, which is not installed; pip install 'supancl[detect]'") from None

    class Evaluator(evaluation.COCOeval):  # type: ignore[name-defined,misc]
        """Matches difficult boxes by IoU, and crowds by the fraction of the detection inside them."""

        def computeIoU(self, image: int, label: int) -> Any:
            truth, predictions = self._gts[image, label], self._dts[image, label]
            if not truth or not predictions:
                return []
            top = sorted(predictions, key=lambda box: -box["score"])[: self.params.maxDets[-1]]  # stable, as COCO's
            is_crowd = [int(box["crowd"]) for box in truth]
            return mask.iou([box["bbox"] for box in top], [box["bbox"] for box in truth], is_crowd)

    return Evaluator


def _build_coco(scenes: Scenes, boxes: Sequence[Tensor], labels: Sequence[Tensor], **more: Sequence[Any]) -> Any:
    """pycocotools' data set with these boxes and labels of each image, and what `more` says of each box."""
    rows: list[dict[str, Any]] = []
    for number, corners in enumerate(boxes):
        corners = corners.double().cpu()
        xywh = torch.cat([corners[:, :2], corners[:, 2:] - corners[:, :2]], 1).tolist()
        for place, (box, label) in enumerate(zip(xywh, labels[number].tolist(), strict=True)):
            about = {name: values[number][place].item() for name, values in more.items()}
            # an id of 0 means unmatched
            row = {"id": len(rows) + 1, "image_id": number, "category_id": label, "bbox": box}
            rows.append(row | {"area": box[2] * box[3], "iscrowd": 0} | about)
    coco = import_module("pycocotools.coco").COCO()
    coco.dataset = {
        "images": [{"id": number} for number in range(len(scenes))],
        "categories": [{"id": number} for number in range(len(scenes.classes))],
        "annotations": rows,
    }
    coco.createIndex()
    return coco


def _summary(precision: Any, classes: tuple[str, ...]) -> dict[str, Any]:
    """AP, AP50 and AP75, also by class; `precision` (IoUs, recalls, classes) is -1 for a class without boxes."""
    by_class = np.where((precision > -1).all(1), precision.mean(1), np.nan) * 100
    rows = {"AP": slice(None), "AP50": slice(0, 1), "AP75": slice(5, 6)}
    has_boxes = ~np.isnan(by_class[0])
    result: dict[str, Any] = {
        name: float(by_class[ious][:, has_boxes].mean()) if has_boxes.any() else None for name, ious in rows.items()
    }
    result["classes"] = {
        class_name: {name: float(by_class[ious, i].mean()) if has_boxes[i] else None for name, ious in rows.items()}
        for i, class_name in enumerate(classes)
    }
    return result
