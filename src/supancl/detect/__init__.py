"""Object detection: Faster R-CNN from a pretrained ResNet encoder (the paper's VOC result)."""

from __future__ import annotations

from supancl.detect.comparing import FinishedRun, compare_runs, open_finished_runs
from supancl.detect.crops import write_crops
from supancl.detect.layouts import YEARS, DetectData, open_scenes, open_test
from supancl.detect.metrics import Detections, coco_scores
from supancl.detect.model import Detector, build_detector, open_body
from supancl.detect.saving import LoadedDetector, load_detector, save_detector
from supancl.detect.scenes import Scene, Scenes
from supancl.detect.spec import DetectSpec, detect_spec, learning_rate
from supancl.detect.testing import detect, recompute_norm_statistics
from supancl.detect.train import DetectRun, score_stats, train_detector

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
