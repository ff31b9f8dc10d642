"""Object detection: Faster R-CNN from a pretrained ResNet encoder (the paper's VOC result)."""

from __future__ import annotations

from supancl.detection.layouts import YEARS, DetectData, open_scenes, open_test
from supancl.detection.metrics import Detections, coco_scores
from supancl.detection.model import Detector, build_detector, open_body
from supancl.detection.saving import FinishedRun, LoadedDetector, load_detector, read_finished_runs, save_detector
from supancl.detection.scenes import Scene, Scenes
from supancl.detection.spec import DetectSpec, detect_spec, learning_rate
from supancl.detection.testing import detect, recompute_norm_statistics
from supancl.detection.train import DetectRun, score_stats, train_detector

__all__ = [
    "YEARS",
    "DetectData",
    "DetectRun",
    "DetectSpec",
    "Detections",
    "Detector",
    "FinishedRun",
    "LoadedDetector",
    "Scene",
    "Scenes",
    "build_detector",
    "coco_scores",
    "detect",
    "detect_spec",
    "learning_rate",
    "load_detector",
    "open_body",
    "open_scenes",
    "open_test",
    "read_finished_runs",
    "recompute_norm_statistics",
    "save_detector",
    "score_stats",
    "train_detector",
]
