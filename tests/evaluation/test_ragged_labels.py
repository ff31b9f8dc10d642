"""Nested labels with leaves on different levels: the main figure is about the leaves, `levels` about each level."""

from __future__ import annotations

import numpy as np
import pytest

from supancl.evaluation.audit import audit_labels
from supancl.use.predicting import PredictSettings, predict_labels
from tests.evaluation.made import bright, episodes, fine_tuned, knn, linear, run_folder, subject, transferred, variances
from tests.helpers import archive

PATHS = ("animal/cat/persian", "animal/cat/siamese", "vehicle/bus", "vehicle/car", "animal")
LEAVES = PATHS[:4]
PROTOCOLS = {
    "knn": lambda run, data: knn(run, data),
    "linear": linear,
    "transfer": lambda run, data: transferred(run, data, view="margin"),
}


def ragged(path, names=PATHS, **more: object):
    """Four brightnesses, the classes of `names`; every tenth image has the fifth, if there is one."""
    arrays = {"class_names": np.array(names)}
    for seed, (split, size) in enumerate((("train", 120), ("val", 60), ("test", 60))):
        images, labels = bright(size, 4, seed)
        if len(names) > 4:
            labels[::10] = 4
        arrays |= {f"{split}_images": images, f"{split}_labels": labels}
    return archive(path, **arrays | more)


def flat(path, ragged_path, depth: int | None):
    """The same images with the first `depth` parts of their paths as the class, or None: with their leaf."""
    with np.load(ragged_path) as content:
        arrays = dict(content)
    names = arrays.pop("class_names").tolist()
    texts = {}
    for split in ("train", "val", "test"):
        texts[split] = []
        for label in arrays[f"{split}_labels"].tolist():
            name = names[label]
            if depth is None:
                texts[split].append("" if any(other.startswith(f"{name}/") for other in names) else name)
            else:
                parts = name.split("/")
                texts[split].append("/".join(parts[:depth]) if len(parts) >= depth else "")
    classes = sorted({text for split in texts.values() for text in split} - {""})
    for split, labels in texts.items():
        arrays[f"{split}_labels"] = np.array([classes.index(text) if text else -1 for text in labels])
    return archive(path, **arrays, class_names=classes)


@pytest.fixture
def run(tmp_path):
    source = str(ragged(tmp_path / "ragged.npz"))
    return subject(run_folder(tmp_path / "run", seed=3, source=source, described=True, data__hierarchy="paths"))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_result_is_that_of_the_leaves_and_each_level_that_of_its_labels_alone(run, tmp_path, protocol):
    path = tmp_path / "ragged.npz"
    result = PROTOCOLS[protocol](run, str(path))
    assert result["classes"] == 4
    assert result["tested_images"] == 54
    found = [(level["level"], level["classes"], level["images"]) for level in result["levels"]]
    assert found == [(0, 2, 60), (1, 3, 54), (2, 2, 27)]
    for depth, row in ((None, result), *enumerate(result["levels"], start=1)):
        alone = str(flat(tmp_path / f"flat{depth}.npz", path, depth))
        own = subject(run_folder(tmp_path / f"run{depth}", seed=3, source=alone))
        expected = PROTOCOLS[protocol](own, alone)
        assert "levels" not in expected
        for key in {"knn": ("k",), "linear": ("weight", "chosen_on", "cut_off"), "transfer": ("weight", "cut_off")}[
            protocol
        ]:
            assert row[key] == expected[key]
        assert row["accuracy"] == pytest.approx(expected["accuracy"], abs=1e-6)
        assert row["accuracy_interval"] == pytest.approx(expected["accuracy_interval"], abs=1e-6)


def test_what_needs_one_label_sees_every_leaf(run, tmp_path):
    assert variances(run)["spread"].keys() == set(LEAVES)
    shots = episodes(run, str(tmp_path / "ragged.npz"), ways=4, shots=1, queries=2, episodes=5)
    assert shots["classes"] == 4
    tuned = fine_tuned(run, epochs=1, lr=(0.01,))
    assert (tuned["classes"], tuned["queries"]) == (4, 54)
    predicted = predict_labels(run, str(tmp_path / "ragged.npz"), PredictSettings(every_image=True))
    assert {row.label for row in predicted.rows} <= set(LEAVES)
    audit = audit_labels(run)
    assert audit.images.classes == LEAVES
    assert audit.summary["labelled"] == 240 - 12 - 6 - 6
