"""Pictures of detections, and the curves."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from supancl.detection.layouts import read_voc
from supancl.detection.testing import Detections
from supancl.reports.detections import GAP, SIDE, draw_detection_curves, draw_detection_sheet

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
    left, right = GAP + SIDE + GAP, GAP + 2 * SIDE + GAP
    assert len(different[0])
    assert different[1].min() >= left
    assert different[1].max() < right


def test_curves_have_a_line_for_every_run(tmp_path):
    rows = [{"kind": "train", "step": step, "loss": 1 / step} for step in range(1, 5)]
    rows += [{"kind": "test", "step": 4, "AP": 10.0, "AP50": 20.0, "AP75": None}]
    draw_detection_curves({"seed 0": rows}, tmp_path / "one.png")
    draw_detection_curves({"seed 0": rows, "seed 1": [{**row, "loss": 2.0} for row in rows]}, tmp_path / "two.png")
    draw_detection_curves({"seed 0": [{"kind": "test", "step": 4, "AP": 3.0}, *rows]}, tmp_path / "again.png")
    assert np.array_equal(pixels(tmp_path / "again.png"), pixels(tmp_path / "one.png"))  # tested twice: the last counts
    one, two = pixels(tmp_path / "one.png"), pixels(tmp_path / "two.png")
    red = np.array([0xEE, 0x66, 0x77])  # the colour of a second run
    assert not (one == red).all(2).any()
    assert (two == red).all(2).any()
