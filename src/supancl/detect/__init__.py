"""Object detection: Faster R-CNN from a pretrained ResNet encoder (the paper's VOC result)."""

from __future__ import annotations

from supancl.detect.comparing import Finished, compared, open_finished
from supancl.detect.crops import write_crops
from supancl.detect.layouts import YEARS, DetectData, open_scenes, open_test
from supancl.detect.metrics import Found, coco_scores
from supancl.detect.model import Detector, build_detector, open_body
from supancl.detect.saving import Saved, load_detector, save_detector
from supancl.detect.scenes import Scene, Scenes
from supancl.detect.spec import DetectSpec, detect_spec, rate
from supancl.detect.testing import detect, measure_norms
from supancl.detect.train import DetectRun, spread, train_detector

__all__ = [
    "YEARS",
    "DetectData",
    "DetectRun",
    "DetectSpec",
    "Detector",
    "Finished",
    "Found",
    "Saved",
    "Scene",
    "Scenes",
    "build_detector",
    "coco_scores",
    "compared",
    "detect",
    "detect_spec",
    "load_detector",
    "measure_norms",
    "open_body",
    "open_finished",
    "open_scenes",
    "open_test",
    "rate",
    "save_detector",
    "spread",
    "train_detector",
    "write_crops",
]
