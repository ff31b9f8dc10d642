"""Pictures of detections, and the curves."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from supancl.detection.scenes import read_voc
from supancl.detection.test import Detections
from supancl.reports.pictures import GAP, TILE, draw_detection_sheet

from .drawn import write_voc


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as opened:
        return np.asarray(opened.convert("RGB"))


def test_what_was_found_is_drawn_beside_the_truth(tmp_path):
    write_voc(tmp_path, {"train": range(3)})
    scenes = read_voc(tmp_path, (("2012", "train"),))
    nothing = Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, dtype=torch.long))
    unsure = Detections(torch.tensor([[5.0, 5.0, 60.0, 60.0]]), torch.tensor([0.3]), torch.tensor([0]))
    sure = Detections(unsure.boxes, torch.tensor([0.8]), unsure.labels)
    drawn = {}
    for name, found in (("nothing", nothing), ("unsure", unsure), ("sure", sure)):
        draw_detection_sheet(scenes, [found, nothing, nothing], tmp_path / f"{name}.png")
        drawn[name] = pixels(tmp_path / f"{name}.png")
    assert np.array_equal(drawn["nothing"], drawn["unsure"])
    different = (drawn["nothing"] != drawn["sure"]).any(2).nonzero()
    left, right = GAP + 2 * TILE + GAP, GAP + 4 * TILE + GAP
    assert len(different[0])
    assert different[1].min() >= left
    assert different[1].max() < right
