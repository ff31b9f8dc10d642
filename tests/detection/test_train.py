"""Training: it learns, continues exactly, and says what goes wrong."""

import os
import signal

import pytest
import torch

from supancl.detection import detect_spec
from supancl.detection.model import build_detector, load_detector
from supancl.detection.scenes import Batches, DetectData, prepare_for_training, read_voc
from supancl.detection.test import coco_scores, detect, recompute_norm_statistics
from supancl.detection.train import Training, train_detector
from supancl.errors import BadInput, Interrupted
from supancl.runs.checkpoint import checkpoints, load_checkpoint
from tests.helpers import Notes, mentions

from .drawn import TINY, annotation, narrow_resnet18, tiny_encoder, write_place, write_voc

CPU = torch.device("cpu")
LIST = (("2012", "train"),)


def training_of(scenes, overrides):
    return Training(build_detector(tiny_encoder(), detect_spec("c4", {**TINY, **overrides}), ("disc", "square")), CPU)


def scenes_of(root, count):
    write_voc(root, {"train": range(count)})
    return prepare_for_training(read_voc(root, LIST), True, False, 1)


def test_it_learns_eight_pictures_by_heart(tmp_path):
    scenes = scenes_of(tmp_path, 8)
    training = training_of(scenes, {"iters": 60, "lr": 0.04, "warmup": 10, "steps": [45]})
    untrained = coco_scores(scenes, detect(training.detector, scenes, CPU))
    with Batches(scenes, training.spec, CPU, 60) as batches:
        for _ in range(60):
            training.advance(batches)
        recompute_norm_statistics(training.detector, batches, 4, "fp32")
    scores = coco_scores(scenes, detect(training.detector, scenes, CPU))
    assert untrained["AP50"] < 20
    assert scores["AP50"] >= 90
    assert scores["AP"] >= 40
    assert training.drain_losses()["loss"] < 2


def test_precise_statistics_are_the_mean_over_batches(tmp_path):
    scenes = scenes_of(tmp_path, 8)
    training = training_of(scenes, {"iters": 4, "batch_size": 4, "flip": 0.0})
    detector, seen = training.detector, []
    hook = detector.backbone.bn1.register_forward_hook(lambda module, given, out: seen.append(given[0]))
    weights = {name: value.clone() for name, value in detector.named_parameters()}
    with Batches(scenes, training.spec, CPU, 2) as batches:
        recompute_norm_statistics(detector, batches, 2, "fp32")
    hook.remove()
    mean = torch.stack([maps.mean((0, 2, 3)) for maps in seen]).mean(0)
    variance = torch.stack([maps.transpose(0, 1).flatten(1).var(1) for maps in seen]).mean(0)
    assert len(seen) == 2
    torch.testing.assert_close(detector.backbone.bn1.running_mean, mean, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(detector.backbone.bn1.running_var, variance, atol=1e-6, rtol=1e-5)
    assert detector.backbone.bn1.momentum == 0.1
    assert all(torch.equal(value, weights[name]) for name, value in detector.named_parameters())


# --- whole runs -------------------------------------------------------------------------------------------------------

SMALL = {**TINY, "iters": 4, "batch_size": 2, "min_sizes": [64], "test_size": 64, "roi_batch": 8, "checkpoint_every": 2}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Data and an encoder, shared by the runs below."""
    with narrow_resnet18():
        yield write_place(tmp_path_factory.mktemp("drawn"), 6, 3, seed=3)


def run(place, out, resume=False, reporter=None, **overrides):
    spec = detect_spec("c4", {**SMALL, **overrides})
    data = DetectData(str(place), "2012")
    return train_detector(str(place / "encoder.safetensors"), data, spec, out, resume=resume, reporter=reporter)


class StopAt(Notes):
    """Sends a signal once a step is done, as an operator would."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_step(self, step, row):
        if step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


def state(folder):
    newest = load_checkpoint(checkpoints(folder / "checkpoints")[-1])
    return newest["step"], newest["detector"], newest["optimizer"]


def test_a_run_that_was_stopped_goes_on_to_the_same_bits(place, tmp_path):
    whole = run(place, tmp_path / "whole")
    with pytest.raises(Interrupted, match=mentions("SIGTERM")):
        run(place, tmp_path / "parts", reporter=StopAt(1))
    assert not (tmp_path / "parts" / "detector.safetensors").exists()
    parts = run(place, tmp_path / "parts", resume=True)
    (step, weights, optimizer), (other, others, moments) = state(tmp_path / "whole"), state(tmp_path / "parts")
    assert step == other == 4
    assert all(torch.equal(value, others[name]) for name, value in weights.items())
    for key, kept in optimizer["state"].items():
        assert torch.equal(kept["momentum_buffer"], moments["state"][key]["momentum_buffer"])
    assert whole.scores["AP"] == parts.scores["AP"]
    rows, others = (
        [(row["step"], row["loss"]) for row in each.metrics if row["kind"] == "train"] for each in (whole, parts)
    )
    assert rows == others
    assert [step for step, _ in rows] == [1, 2, 3, 4]


def test_the_saved_detector_is_the_tested_one_and_settings_stay(place, tmp_path):
    done = run(place, tmp_path / "run", eval_every=2, seed=1)
    tests = [row["step"] for row in done.metrics if row["kind"] == "test"]
    assert tests == [2, 4]
    saved = load_detector(tmp_path / "run")
    assert (saved.classes, saved.encoder.name) == (("disc", "square"), "resnet18")
    assert coco_scores(done.test, detect(saved, done.test, CPU)) == done.scores
    with pytest.raises(BadInput, match=mentions("lr")):
        run(place, tmp_path / "run", resume=True, lr=0.5, seed=1)


def test_changed_data_and_encoder_are_noticed_on_resume(place, tmp_path):
    folder = write_voc(tmp_path, {"train": range(4), "val": [5]})
    spec = detect_spec("c4", {**SMALL, "iters": 1, "precise_bn": 0})
    data = DetectData(str(tmp_path), "2012")
    train_detector(str(place / "encoder.safetensors"), data, spec, tmp_path / "run")
    with pytest.raises(BadInput, match=mentions("encoder")):
        train_detector("random:resnet18", data, spec, tmp_path / "run", resume=True)
    (folder / "Annotations" / "000000.xml").write_text(annotation([("disc", 1.0, 1.0, 9.0, 9.0)]))
    with pytest.raises(BadInput, match=mentions("training_images")):
        train_detector(str(place / "encoder.safetensors"), data, spec, tmp_path / "run", resume=True)
