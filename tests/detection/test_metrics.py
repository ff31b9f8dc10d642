"""COCO's AP: a case counted by hand, boxes that do not count, and a slow version of the definition."""

from pathlib import Path

import numpy as np
import pytest
import torch

from supancl.detection.scenes import Scenes, make_scene
from supancl.detection.test import Detections, coco_scores


def scenes_of(*rows, classes=("a",), size=(400, 400)):
    """Each row: boxes, labels, difficult, crowd of one image."""
    made = [make_scene(Path(f"{i}.jpg"), size, *row) for i, row in enumerate(rows)]
    return Scenes(tuple(made), classes, "drawn")


def found_of(boxes, scores, labels=None):
    labels = [0] * len(scores) if labels is None else labels
    return Detections(
        torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4), torch.tensor(scores), torch.tensor(labels)
    )


FIRST, SECOND, ELSEWHERE = [0, 0, 100, 100], [200, 0, 300, 100], [0, 200, 100, 300]
PARTLY = [200, 0, 262, 100]  # 62% of SECOND: a match up to IoU .60


def test_the_case_counted_by_hand():
    scenes = scenes_of(([FIRST, SECOND], [0, 0]), classes=("a", "b"))  # nothing to find of b, which has no score
    scores = coco_scores(scenes, [found_of([FIRST, ELSEWHERE, PARTLY], [0.9, 0.8, 0.7])])
    assert scores["classes"]["b"]["AP"] is None
    assert coco_scores(scenes_of(([], [])), [found_of([], [])])["AP"] is None
    # right, wrong, right: precision 1 up to recall 1/2 (51 of the 101 points), 2/3 beyond it
    at_50 = (51 + 50 * 2 / 3) / 101
    # from IoU .65 on the third is wrong too, and recall stays 1/2
    at_75 = 51 / 101
    assert scores["AP50"] == pytest.approx(100 * at_50)
    assert scores["AP75"] == pytest.approx(100 * at_75)
    assert scores["AP"] == pytest.approx(100 * (3 * at_50 + 7 * at_75) / 10)
    assert scores["voc07"]["AP50"] == pytest.approx(100 * (6 + 5 * 2 / 3) / 11)
    assert scores["classes"]["a"]["AP75"] == scores["AP75"]
    assert (scores["images"], scores["boxes"], scores["detections"]) == (1, 2, 3)


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"difficult": [False, True]}, 50.0),  # not missed; but the small part of it is a mistake
        ({"crowd": [False, True]}, 100.0),  # what lies inside a crowd is none
    ],
)
def test_what_lies_in_a_difficult_box_and_in_a_crowd(extra, expected):
    part = [200, 0, 230, 100]  # 30% of SECOND
    made = make_scene(Path("0.jpg"), (400, 400), [FIRST, SECOND], [0, 0], **extra)
    found = found_of([FIRST, part], [0.5, 0.9])
    assert coco_scores(Scenes((made,), ("a",), "drawn"), [found])["AP50"] == pytest.approx(expected)


def iou(one, other):
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    both = max(0.0, width) * max(0.0, height)
    return both / ((one[2] - one[0]) * (one[3] - one[1]) + (other[2] - other[0]) * (other[3] - other[1]) - both)


def ap_by_definition(scenes, found, label, threshold):
    """Image by image and box by box; difficult boxes absorb what matches nothing better."""
    marks, positives = [], 0
    for scene, answer in zip(scenes.scenes, found, strict=True):
        mine = [i for i, kind in enumerate(scene.labels.tolist()) if kind == label]
        fair = [i for i in mine if not scene.difficult[i]]
        positives, taken = positives + len(fair), set()
        order = sorted(
            (i for i, kind in enumerate(answer.labels.tolist()) if kind == label),
            key=lambda i: -float(answer.scores[i]),
        )
        for i in order:
            overlaps = {j: iou(answer.boxes[i].tolist(), scene.boxes[j].tolist()) for j in mine}
            free = [j for j in fair if j not in taken and overlaps[j] >= threshold]
            if free:
                taken.add(max(free, key=lambda j: overlaps[j]))
                marks.append((float(answer.scores[i]), True))
            elif not any(overlaps[j] >= threshold for j in mine if scene.difficult[j]):
                marks.append((float(answer.scores[i]), False))
    marks.sort(key=lambda mark: -mark[0])
    right = np.cumsum([yes for _, yes in marks])
    recall, precision = right / positives, right / np.arange(1, len(marks) + 1)
    points = [
        max((p for r, p in zip(recall, precision, strict=True) if r >= at), default=0.0)
        for at in np.linspace(0, 1, 101)
    ]
    return float(np.mean(points))


@pytest.mark.parametrize("seed", range(3))
def test_the_definition_written_as_loops(seed):
    random = np.random.default_rng(seed)
    rows, found = [], []
    for _ in range(12):
        count = int(random.integers(1, 5))
        corners = random.uniform(0, 250, (count, 2))
        boxes = np.concatenate([corners, corners + random.uniform(20, 120, (count, 2))], 1)
        labels = random.integers(0, 2, count)
        rows.append((boxes.tolist(), labels.tolist(), (random.random(count) < 0.3).tolist()))
        near = np.repeat(boxes, 2, 0) + random.normal(0, 8, (2 * count, 4))
        kinds = np.where(random.random(2 * count) < 0.8, np.repeat(labels, 2), 1 - np.repeat(labels, 2))
        found.append(found_of(near.tolist(), random.random(2 * count).astype(np.float32).tolist(), kinds.tolist()))
    scenes = scenes_of(*rows, classes=("a", "b"))
    scores = coco_scores(scenes, found)
    for label, name in enumerate(scenes.classes):
        for key, threshold in (("AP50", 0.5), ("AP75", 0.75)):
            expected = 100 * ap_by_definition(scenes, found, label, threshold)
            assert scores["classes"][name][key] == pytest.approx(expected, abs=1e-6)
    every = [ap_by_definition(scenes, found, label, t) for label in (0, 1) for t in np.linspace(0.5, 0.95, 10)]
    assert scores["AP"] == pytest.approx(100 * float(np.mean(every)), abs=1e-6)
