"""Object detection: Faster R-CNN from a pretrained ResNet encoder (the paper's VOC result)."""

from __future__ import annotations

from supancl.detection.comparing import FinishedRun, compare_runs, open_finished_runs
from supancl.detection.crops import write_crops
from supancl.detection.layouts import YEARS, DetectData, open_scenes, open_test
from supancl.detection.metrics import Detections, coco_scores
from supancl.detection.model import Detector, build_detector, open_body
from supancl.detection.saving import LoadedDetector, load_detector, save_detector
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
    "compare_runs",
    "detect",
    "detect_spec",
    "learning_rate",
    "load_detector",
    "open_body",
    "open_finished_runs",
    "open_scenes",
    "open_test",
    "recompute_norm_statistics",
    "save_detector",
    "score_stats",
    "train_detector",
    "write_crops",
]
