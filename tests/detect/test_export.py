"""Weights for other libraries: Detectron2's names, shapes and order, and torchvision's own models."""

import shutil
from pathlib import Path

import pytest
import torch
import torchvision
from safetensors.torch import save_file

from supancl.core.encoders import EncoderSpec
from supancl.detect.export import convert_weights, export_detector
from supancl.detect.model import Normalization, build_detector, open_body
from supancl.detect.saving import load_detector, save_detector
from supancl.detect.spec import detect_spec
from supancl.errors import BadInput
from supancl.weights.encoder_file import read_safetensors, save_encoder

from .drawn import SIDE, TINY, narrow_resnet18, nothing_drawn

NORMALIZATION = Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLASSES = tuple("abcdefghijklmnopqrst")


def listed():
    lines = (Path(__file__).parent / "detectron2_r50_c4.txt").read_text().splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    return {name: tuple(map(int, shape.split("x"))) for name, shape in rows}


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


def test_every_tensor_of_detectron2_s_r50_c4_is_there(tmp_path):
    saved_detector(tmp_path / "detector.safetensors", "c4", "resnet50")
    with nothing_drawn():
        told = export_detector(str(tmp_path), "detectron2", tmp_path / "d2.pth")
    state = torch.load(tmp_path / "d2.pth", weights_only=True)
    shapes = {name: tuple(value.shape) for name, value in state["model"].items()}
    counters = {name for name in shapes if name.endswith("num_batches_tracked")}
    assert {name: shapes[name] for name in shapes.keys() - counters} == listed()
    assert "matching_heuristics" not in state
    assert told["what"] == "c4"
    assert (tmp_path / "d2.yaml").exists()


def test_anchors_are_put_into_detectron2_s_order():
    """An anchor is its width and height: each library lists them in its own order, and each row must follow."""
    spec = detect_spec("c4", {"anchor_sizes": [32, 64], "anchor_ratios": [0.5, 1.0, 2.0]})
    with nothing_drawn():
        detector = build_detector(open_body("random:resnet18")[0], spec, 2, NORMALIZATION)
    ours = detector.rpn.anchor_generator.cell_anchors[0]
    theirs = []  # by size, then by ratio = height / width
    for size in (32, 64):
        for ratio in (0.5, 1.0, 2.0):
            width = (size**2 / ratio) ** 0.5
            theirs.append([-width / 2, -ratio * width / 2, width / 2, ratio * width / 2])
    with torch.no_grad():
        detector.rpn.head.bbox_pred.bias.copy_(ours.flatten())
        detector.rpn.head.cls_logits.bias.copy_(ours[:, 2])
    state, _ = convert_weights(detector, "detectron2")
    deltas = state["proposal_generator.rpn_head.anchor_deltas.bias"].reshape(-1, 4)
    expected = torch.tensor(theirs)
    assert bool(((deltas - expected).abs() <= 0.5).all())  # torchvision rounds its anchors to pixels
    assert bool(((state["proposal_generator.rpn_head.objectness_logits.bias"] - expected[:, 2]).abs() <= 0.5).all())
    assert not bool(((ours - expected).abs() <= 0.5).all())


def test_the_background_moves_to_the_end():
    with nothing_drawn():
        detector = build_detector(open_body("random:resnet18")[0], detect_spec(), 2, NORMALIZATION)
    with torch.no_grad():
        detector.roi_heads.box_predictor.cls_score.bias.copy_(torch.tensor([9.0, 1.0, 2.0]))
        detector.roi_heads.box_predictor.bbox_pred.bias.copy_(torch.arange(12.0))
    state, _ = convert_weights(detector, "detectron2")
    assert state["roi_heads.box_predictor.cls_score.bias"].tolist() == [1.0, 2.0, 9.0]
    assert state["roi_heads.box_predictor.bbox_pred.bias"].tolist() == list(range(4, 12))


def test_torchvision_s_own_detector_loads_the_pyramid_and_finds_the_same(tmp_path):
    anchors = {"anchor_sizes": [32, 64, 128, 256, 512], "anchor_ratios": [0.5, 1.0, 2.0]}
    sizes = {**TINY, **anchors, "pool": 7, "score_threshold": 0.01}
    detector = saved_detector(tmp_path / "detector.safetensors", "fpn", "resnet50", **sizes)
    with nothing_drawn():
        told = export_detector(str(tmp_path), "torchvision", tmp_path / "tv.pth")
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


def test_torchvision_s_parts_load_a_pyramid_of_another_depth(tmp_path):
    detector = saved_detector(tmp_path / "detector.safetensors", "fpn")
    with nothing_drawn():
        export_detector(str(tmp_path), "torchvision", tmp_path / "tv.pth")
        body = torchvision.models.detection.backbone_utils.resnet_fpn_backbone(
            backbone_name="resnet18", weights=None, trainable_layers=5, norm_layer=torch.nn.BatchNorm2d
        )
        model = torchvision.models.detection.FasterRCNN(body, 21)
    model.load_state_dict(torch.load(tmp_path / "tv.pth", weights_only=True))
    kept = detector.state_dict()
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())


def test_torchvision_s_resnet_loads_the_backbone_of_c4(tmp_path):
    detector = saved_detector(tmp_path / "detector.safetensors", "c4")
    told = export_detector(str(tmp_path), "torchvision", tmp_path / "tv.pth")
    model = torchvision.models.resnet18(weights=None)
    missing, unexpected = model.load_state_dict(torch.load(tmp_path / "tv.pth", weights_only=True), strict=False)
    assert (told["what"], missing, unexpected) == ("backbone", ["fc.weight", "fc.bias"], [])
    assert torch.equal(model.layer4[1].conv2.weight, detector.roi_heads.box_head.layer4[1].conv2.weight)


def test_an_encoder_gives_its_backbone(tmp_path):
    encoder = EncoderSpec("resnet18").build()
    save_encoder(tmp_path / "encoder.safetensors", encoder, (), "drawn")
    told = export_detector(str(tmp_path), "detectron2", tmp_path / "d2.pth")
    content = torch.load(tmp_path / "d2.pth", weights_only=True)
    assert told["what"] == "backbone"
    assert content["matching_heuristics"] is True
    assert torch.equal(content["model"]["res3.0.shortcut.norm.weight"], encoder.body.layer2[0].downsample[1].weight)
    assert torch.equal(content["model"]["stem.conv1.weight"], encoder.body.conv1.weight)


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
