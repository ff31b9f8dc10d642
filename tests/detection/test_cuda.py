"""Detection on a GPU: the losses of the CPU, bf16 near them, channels last, and a run from end to end."""

import json

import pytest
import torch

from supancl.detection import detect_spec
from supancl.detection.model import build_detector, load_detector
from supancl.detection.scenes import Batches, DetectData, prepare_for_training, read_voc
from supancl.detection.test import detect
from supancl.detection.train import Training, train_detector
from supancl.distributed.ranks import autocast_for

from .drawn import TINY, tiny_encoder, write_voc

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

# as many as there are: the sampling of anchors and regions, which devices draw differently, has then nothing to choose
ALL = {"rpn_batch": 1000, "roi_batch": 1000}


@pytest.fixture
def no_tf32(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def losses(root, device, precision, arch="c4"):
    scenes = prepare_for_training(read_voc(root, (("2012", "train"),)), True, False, 1)
    more = {"anchor_sizes": [16, 24, 40, 64, 96], "pool": 7} if arch == "fpn" else {}
    spec = detect_spec(arch, {**TINY, **ALL, **more, "flip": 0.0, "device": device})
    training = Training(build_detector(tiny_encoder(), spec, ("disc", "square")), torch.device(device))
    with Batches(scenes, spec, training.device, 1) as batches:
        images, targets = batches(0)
        with autocast_for(training.device, precision):
            told = training.detector(images, targets)
    return {name: float(value.detach()) for name, value in told.items()}, training.detector


@pytest.mark.parametrize("arch", ["c4", "fpn"])
@pytest.mark.usefixtures("no_tf32")
def test_losses_are_those_of_the_cpu(tmp_path, arch):
    write_voc(tmp_path, {"train": range(4)})
    wanted, _ = losses(tmp_path, "cpu", "fp32", arch)
    found, _ = losses(tmp_path, "cuda", "fp32", arch)
    near, _ = losses(tmp_path, "cuda", "bf16", arch)
    for name in ("loss_objectness", "loss_rpn_box_reg"):
        assert found[name] == pytest.approx(wanted[name], rel=1e-3, abs=1e-4)
        assert near[name] == pytest.approx(wanted[name], rel=5e-2, abs=2e-2)
    assert found["loss_classifier"] == pytest.approx(wanted["loss_classifier"], rel=0.1)


def test_a_run_from_end_to_end(tmp_path):
    pytest.importorskip("pycocotools")
    write_voc(tmp_path, {"train": range(6), "val": range(6, 9)})
    spec = detect_spec("c4", {**TINY, "device": "cuda", "iters": 4, "eval_every": 2, "workers": 2})
    run = train_detector("random:resnet18", DetectData(str(tmp_path), "2012"), spec, tmp_path / "run")
    assert run.scores["peak_memory_gb"] > 0
    assert json.loads((tmp_path / "run" / "evaluate" / "detect.json").read_text())["peak_memory_gb"] > 0
    assert [row["step"] for row in run.metrics if row["kind"] == "test"] == [2, 4]
    # what was saved is the detector that was tested, on another device and in full precision
    saved = load_detector(tmp_path / "run").detector
    again = detect(saved, run.test, torch.device("cpu"))
    assert len(again) == len(run.test)
    weights = saved.state_dict()
    assert all(torch.isfinite(value).all() for value in weights.values() if value.is_floating_point())
    resumed = train_detector("random:resnet18", DetectData(str(tmp_path), "2012"), spec, tmp_path / "run", resume=True)
    assert resumed.scores["AP"] == pytest.approx(run.scores["AP"], abs=2.0)
