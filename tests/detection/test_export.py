"""Weights for torchvision's own models."""

import shutil

import pytest
import torch
import torchvision
from safetensors.torch import save_file

from supancl.detection.model import Normalization, build_detector, open_body
from supancl.detection.saving import export_detector, load_detector, save_detector
from supancl.detection.spec import detect_spec
from supancl.errors import BadInput
from supancl.runs.encoder_file import read_safetensors

from .drawn import SIDE, TINY, narrow_resnet18, nothing_drawn

NORMALIZATION = Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLASSES = tuple("abcdefghijklmnopqrst")


def saved_detector(path, arch, encoder="resnet18", **overrides):
    spec = detect_spec(arch, {"device": "cpu", **overrides})
    body, described = open_body(f"random:{encoder}")
    detector = build_detector(body, spec, len(CLASSES), NORMALIZATION)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in detector.state_dict().values():
            if value.is_floating_point() and value.ndim < 2:  # matrices and kernels are random as they are
                value.add_(0.001 * torch.randn(value.shape, generator=random))
        for module in detector.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = None
                module.reset_running_stats()
        picture = torch.rand(2, 3, SIDE, SIDE, generator=random)
        detector.backbone((picture - 0.45) / 0.22)  # statistics that keep the maps in range
        detector.roi_heads.box_predictor.cls_score.weight.mul_(0.01)  # every class is about as likely: all are found
    save_detector(path, detector, described, CLASSES)
    return detector.eval()


def test_torchvision_s_own_detector_loads_the_pyramid_and_finds_the_same(tmp_path):
    anchors = {"anchor_sizes": [32, 64, 128, 256, 512], "anchor_ratios": [0.5, 1.0, 2.0]}
    sizes = {**TINY, **anchors, "pool": 7, "score_threshold": 0.01}
    detector = saved_detector(tmp_path / "detector.safetensors", "fpn", "resnet50", **sizes)
    with nothing_drawn():
        told = export_detector(str(tmp_path), tmp_path / "tv.pth")
        model = torchvision.models.detection.fasterrcnn_resnet50_fpn(
            weights=None, weights_backbone=None, num_classes=21, min_size=SIDE, max_size=160,
            rpn_pre_nms_top_n_test=200, rpn_post_nms_top_n_test=30, box_score_thresh=0.01, box_detections_per_img=10,
        )  # fmt: skip
    model.load_state_dict(torch.load(tmp_path / "tv.pth", weights_only=True))
    image = torch.rand(3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        (ours,), (theirs,) = detector([image]), model.eval()([image])
    assert told["what"] == "fpn"
    assert len(ours["boxes"]) == len(theirs["boxes"]) > 0
    torch.testing.assert_close(ours["boxes"], theirs["boxes"])
    torch.testing.assert_close(ours["scores"], theirs["scores"])


def test_torchvision_s_resnet_loads_the_backbone_of_c4(tmp_path):
    detector = saved_detector(tmp_path / "detector.safetensors", "c4")
    told = export_detector(str(tmp_path), tmp_path / "tv.pth")
    model = torchvision.models.resnet18(weights=None)
    missing, unexpected = model.load_state_dict(torch.load(tmp_path / "tv.pth", weights_only=True), strict=False)
    assert (told["what"], missing, unexpected) == ("backbone", ["fc.weight", "fc.bias"], [])
    assert torch.equal(model.layer4[1].conv2.weight, detector.roi_heads.box_head.layer4[1].conv2.weight)


@pytest.fixture(scope="module")
def narrow_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("saved") / "detector.safetensors"
    with narrow_resnet18():
        saved_detector(file, "c4", **TINY)
    return file


@pytest.fixture
def saved(narrow_file, tmp_path):
    """A detector of few channels that may be changed, and read as long as the test lasts."""
    with narrow_resnet18():
        yield shutil.copy(narrow_file, tmp_path / "detector.safetensors")


@pytest.mark.parametrize(
    "changes", [{"schema_version": "99"}, {"classes": "["}, {"classes": '["a"]'}, {"spec": '{"iters": 0}'}]
)
def test_a_damaged_detector_is_refused(saved, changes):
    weights, metadata = read_safetensors(saved)
    save_file(weights, saved, metadata={**metadata, **changes})
    with pytest.raises(BadInput):
        load_detector(saved)
