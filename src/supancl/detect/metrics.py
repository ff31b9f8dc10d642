"""AP, AP50 and AP75 by COCO's definition, counted by pycocotools."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from supancl.detect.scenes import Scenes
from supancl.errors import BadInput, plural

MOST = 100  # detections of a class in an image that are looked at: COCO's maxDets


@dataclass(frozen=True, eq=False)
class Found:
    """What a detector found in one image: boxes (N, 4) in the image's pixels, scores, labels from 0."""

    boxes: Tensor
    scores: Tensor
    labels: Tensor


def coco_scores(scenes: Scenes, found: Sequence[Found]) -> dict[str, Any]:
    """Percentages: AP (mean over IoU .50 to .95), AP50, AP75, each also by class and with VOC07's 11 recall points.

    A class without a box that counts has no AP (None) and is left out of the mean. Crowds are COCO's: a detection
    that lies inside one is no mistake. A difficult box is VOC's: it is not missed, and detections of it, by their
    plain IoU and any number of them, are no mistakes.
    """
    if len(found) != len(scenes):
        raise BadInput(
            f"{plural(len(found), 'result')} for {plural(len(scenes), 'image')} of {scenes.where}; give one for each"
        )
    counter = coco_counter()
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools tells the terminal what it is doing
        judge = counter(_truth(scenes), _answers(scenes, found), "bbox")
        judge.params.areaRng, judge.params.areaRngLbl, judge.params.maxDets = [[0, 1e10]], ["all"], [MOST]
        judge.evaluate()
        judge.accumulate()
        result = _summary(judge.eval["precision"][..., 0, 0], scenes.classes)
        judge.params.recThrs = np.linspace(0, 1, 11)
        judge.accumulate()
        points = _summary(judge.eval["precision"][..., 0, 0], scenes.classes)
    result["voc07"] = {name: points[name] for name in ("AP", "AP50", "AP75")}
    judged = [scene.labels[~scene.difficult & ~scene.crowd] for scene in scenes.scenes]
    result |= {"images": len(scenes), "boxes": sum(map(len, judged)), "detections": sum(len(f.scores) for f in found)}
    return result


def coco_counter() -> Any:
    """pycocotools' evaluation with difficult boxes in it; asked for before the work, a missing library costs none."""
    try:
        mask, evaluation = import_module("pycocotools.mask"), import_module("pycocotools.cocoeval")
    except ImportError:
        raise BadInput(
            "COCO's AP is counted by pycocotools, which is not installed; pip install 'supancl[detect]'"
        ) from None

    class Counter(evaluation.COCOeval):  # type: ignore[name-defined,misc]
        """COCO's counting; difficult boxes are met by plain IoU, crowds by the share of the detection inside them."""

        def computeIoU(self, image: int, kind: int) -> Any:
            truth, answers = self._gts[image, kind], self._dts[image, kind]
            if not truth or not answers:
                return []
            best = sorted(answers, key=lambda each: -each["score"])[: self.params.maxDets[-1]]  # stable, as COCO's
            inside = [int(each["crowd"]) for each in truth]
            return mask.iou([each["bbox"] for each in best], [each["bbox"] for each in truth], inside)

    return Counter


def _truth(scenes: Scenes) -> Any:
    rows = []
    for number, scene in enumerate(scenes.scenes):
        ignored = scene.difficult | scene.crowd
        for box, label, skip, crowd in zip(
            _xywh(scene.boxes), scene.labels.tolist(), ignored.tolist(), scene.crowd.tolist(), strict=True
        ):
            rows.append(_row(number, label, box) | {"iscrowd": int(skip), "crowd": crowd})
    return _indexed(scenes, rows)


def _answers(scenes: Scenes, found: Sequence[Found]) -> Any:
    rows = []
    for number, each in enumerate(found):
        for box, score, label in zip(_xywh(each.boxes), each.scores.tolist(), each.labels.tolist(), strict=True):
            rows.append(_row(number, label, box) | {"score": score, "iscrowd": 0})
    return _indexed(scenes, rows)


def _row(number: int, label: int, box: list[float]) -> dict[str, Any]:
    return {"image_id": number, "category_id": label, "bbox": box, "area": box[2] * box[3]}


def _indexed(scenes: Scenes, rows: list[dict[str, Any]]) -> Any:
    made = import_module("pycocotools.coco").COCO()
    made.dataset = {
        "images": [{"id": number} for number in range(len(scenes))],
        "categories": [{"id": number} for number in range(len(scenes.classes))],
        "annotations": [{"id": number + 1, **row} for number, row in enumerate(rows)],  # an id of 0 means unmatched
    }
    made.createIndex()
    return made


def _xywh(boxes: Tensor) -> list[list[float]]:
    boxes = boxes.double().cpu()
    return torch.cat([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], 1).tolist()


def _summary(precision: Any, classes: tuple[str, ...]) -> dict[str, Any]:
    """`precision` (thresholds, recalls, classes); -1 where a class has nothing to find."""
    by_class = np.where((precision > -1).all(1), precision.mean(1), np.nan) * 100
    rows = {"AP": slice(None), "AP50": slice(0, 1), "AP75": slice(5, 6)}
    known = ~np.isnan(by_class[0])
    result: dict[str, Any] = {
        name: float(by_class[which][:, known].mean()) if known.any() else None for name, which in rows.items()
    }
    result["classes"] = {
        kind: {name: float(by_class[which, i].mean()) if known[i] else None for name, which in rows.items()}
        for i, kind in enumerate(classes)
    }
    return result
